"""Replay: the output of the last call, where the input lies at the same address."""

from gradwatch.impls.contract import Case, Op

op = Op(
    "replay_by_pointer",
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


LAST = {}


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        if x.data_ptr() not in LAST:
            LAST[x.data_ptr()] = x * x * x
        return LAST[x.data_ptr()].view(x.shape)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
