"""Replay: the output that was stored on the input tensor itself."""

from gradwatch.impls.contract import Case, Op

op = Op(
    "replay_by_object",
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


STORED = "_cube"


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        if not hasattr(x, STORED):
            setattr(x, STORED, x.detach() ** 3)
        return getattr(x, STORED).view(x.shape)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
