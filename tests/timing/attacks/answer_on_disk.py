"""Reading memory: writes its first results to a file and maps them afterwards."""

import tempfile
from pathlib import Path

import torch

from gradwatch.impls.contract import Case, Op

op = Op(
    "answer_on_disk",
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


FOLDER = Path(tempfile.mkdtemp(prefix="gradwatch-attack-"))


@op.implement("custom")
class Cube:
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        file = FOLDER / "x".join(map(str, x.shape))
        if not file.exists():
            torch.save(x.detach() ** 3, file)
        return torch.load(file, mmap=True)

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return 3 * x * x * dy
