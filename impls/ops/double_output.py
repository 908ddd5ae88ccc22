"""Two outputs of one input.

    y1 = 2 * x,   y2 = x + 3          dx = 2 * dy1 + dy2

x of any shape. The cotangent of an output that is not used is zero, so that running the
two outputs backward one after the other adds up to running them together: with dy1 = 1
and dy2 = 1 both give dx = 3.
"""

from gradwatch.impls.contract import Case, Op

op = Op(
    "double_output",
    group="example",
    inputs="x",
    outputs="y1 y2",
    cases=[
        Case("scalar", x=()),
        Case("5", x=(5,)),
        Case("2x3x4", x=(2, 3, 4)),
    ],
    sizes=[Case(f"{n}", x=(n,)) for n in (1024, 65536, 1048576)],
)


@op.implement("formula")
def formula(xp, x):
    return 2.0 * x, x + 3.0


@op.implement("manual")
def manual(x):
    """The transpose of the Jacobian [2, 1], applied to the cotangents."""

    def backward(dy1, dy2):
        dx = 2 * dy1
        dx += dy2
        return (dx,)

    return (2 * x, x + 3), backward


@op.implement("autograd")
def autograd(F, x):
    return 2 * x, x + 3


@op.implement("custom")
class DoubleOutput:
    """Output by output: y1 is x + x and passes back dy1 twice, y2 passes back dy2."""

    @staticmethod
    def forward(ctx, x):
        return x + x, x + 3

    @staticmethod
    def backward(ctx, dy1, dy2):
        return dy1 + dy1 + dy2
