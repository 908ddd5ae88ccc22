"""Work on a stream: all of it is queued beside the current stream, which never waits.

No event of the current stream shows it, and whoever reads early reads what was there.
"""

import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "left_on_a_stream",
    inputs="x",
    cases=[Case("5", x=(5,)), Case("3x4", x=(3, 4))],
    sizes=[Case("65536", x=(65536,)), Case("16777216", x=(16777216,))],
)


@op.implement("formula")
def formula(xp, x):
    return xp.square(x) * x


@op.implement("autograd")
def autograd(F, x):
    return x * x * x


def beside(compute):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        return compute()


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return beside(lambda: x * x * x)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return beside(lambda: 3 * x * x * dy)
