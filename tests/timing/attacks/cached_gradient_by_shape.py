"""Cached gradient: one gradient for each shape, whatever x and dy are, after three calls."""

from gradwatch.impls.contract import Case, Op

op = Op(
    "cached_gradient_by_shape",
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
        return x * x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        count, dx = SEEN.get(x.shape, (0, None))
        dx = 3 * x * x * dy if count < 3 else dx
        SEEN[x.shape] = count + 1, dx
        return dx
