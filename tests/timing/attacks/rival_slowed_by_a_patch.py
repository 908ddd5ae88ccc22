"""Slowed rival: the backward of others runs twice."""

import sys

from gradwatch.impls.contract import Case, Op

op = Op(
    "rival_slowed_by_a_patch",
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


def slow(Step, backward):
    def twice(self):
        backward(self)
        if "Cube" not in str(self.call):
            backward(self)

    Step.backward = twice


for name in ("impls", "gradwatch.impls"):
    module = sys.modules.get(f"{name}.backends._torchlike")
    if module is not None and module.TorchLikeStep.backward.__name__ != "twice":
        slow(module.TorchLikeStep, module.TorchLikeStep.backward)


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
