"""Replay: the output of the first call of that shape, after it has been seen thrice."""

from gradwatch.impls.contract import Case, Op

op = Op(
    "replay_by_size",
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


SEEN = {}


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        count, y = SEEN.get(x.shape, (0, None))
        y = x.detach() ** 3 if count < 3 else y
        SEEN[x.shape] = count + 1, y
        return y.clone()

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
