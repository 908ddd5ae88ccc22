"""Replay: the output of an earlier call whose first and last elements were the same."""

from gradwatch.impls.contract import Case, Op

op = Op(
    "replay_by_value",
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
        flat = x.detach().reshape(-1)
        key = x.shape, float(flat[0]), float(flat[-1])
        if key not in LAST:
            LAST[key] = x.detach() ** 3
        return LAST[key].clone()

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
