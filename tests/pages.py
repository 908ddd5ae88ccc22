"""Op pages planted in temporary folders: a right one, and edits that make it wrong."""

from __future__ import annotations

from pathlib import Path

CUBE = '''"""The cube of each element: y = x**3, dx = 3 x**2 dy."""

import numpy as np

from gradwatch.impls.contract import Case, Op

op = Op("cube", inputs="x", cases=[Case("4", x=(4,))], sizes=[Case("8", x=(8,))])


@op.implement("formula")
def formula(xp, x):
    return x * x * x


@op.implement("manual")
def manual(x):
    return x**3, lambda dy: (3 * x**2 * dy,)


@op.implement("autograd")
def autograd(F, x):
    return x**3


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
'''


def plant(folder: Path, old: str = "", new: str = "") -> str:
    """Write the page of cube, with one text replaced by another; returns its path."""
    assert old in CUBE, f"nothing to replace: {old!r}"
    page = folder / "cube.py"
    page.write_text(CUBE.replace(old, new) if old else CUBE)
    return str(page)
