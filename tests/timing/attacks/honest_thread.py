"""Control: another thread computes, and the call waits for it."""

from concurrent.futures import ThreadPoolExecutor

from gradwatch.impls.contract import Case, Op

op = Op(
    "honest_thread",
    inputs="x",
    cases=[Case("5", x=(5,)), Case("3x4", x=(3, 4))],
    sizes=[Case("65536", x=(65536,)), Case("1048576", x=(1048576,))],
)


@op.implement("formula")
def formula(xp, x):
    return xp.square(x) * x


@op.implement("autograd")
def autograd(F, x):
    return x * x * x


POOL = ThreadPoolExecutor(1)


def cube(x):
    return x * x * x


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return POOL.submit(cube, x.detach()).result()

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
