"""Wrong tail: elements beyond a multiple of 4096 are not written, in large tensors."""

from gradwatch.impls.contract import Case, Op

op = Op(
    "wrong_tail",
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


BLOCK = 4096


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        dx = 3 * x * x * dy
        if dx.numel() > BLOCK:
            dx.view(-1)[-(BLOCK - 1) :] = 0
        return dx
