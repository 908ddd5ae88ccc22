"""A page of y = x * x that does something more, and the task of running it."""

import textwrap
from dataclasses import replace
from pathlib import Path

import numpy as np

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.workers.pool import Task
from gradwatch.impls.contract import Op, Problem

_PAGE = """
import ctypes, os, signal, sys, time
import numpy as np
from gradwatch.impls.contract import Op, Unsupported

op = Op("square", inputs="x")


@op.implement("formula")
def formula(xp, x):
    return x * x


@op.implement("manual")
def manual(x):
    saved = x.copy()
    #forward
    def backward(dy):
        #backward
        return (2 * saved * dy,)

    return x * x, backward


@op.implement("custom")
class Square:
    @staticmethod
    def forward(ctx, x):
        saved = x.clone()
        #forward
        ctx.save_for_backward(saved)
        return x * x

    @staticmethod
    def backward(ctx, dy):
        (saved,) = ctx.saved_tensors
        #backward
        return 2 * saved * dy
"""

X, DY = np.array([1.0, 2.0, 3.0]), np.array([1.0, -1.0, 0.5])
DX = 2 * X * DY


def page(folder: Path, *, forward: str = "", backward: str = "") -> str:
    """The path of a page whose `manual` and `custom` do these statements too."""
    lines = []
    for line in _PAGE.splitlines():
        what, indent = line.strip(), line[: len(line) - len(line.lstrip())]
        more = {"#forward": forward, "#backward": backward}.get(what)
        lines.append(line if more is None else textwrap.indent(more, indent))
    path = folder / "square.py"
    path.write_text("\n".join(lines), encoding="utf-8")
    return str(path)


PROBLEM = Problem(Op("square", inputs="x"), {"x": X}, [DY])


def task(op: str, backend: str = "numpy_manual", case: str = "", **fields) -> Task:
    """The page at X with the cotangent DY; fields of the trial, or of the problem."""
    layout = fields.pop("layout", "contiguous")
    device, options = fields.pop("device", "cpu"), fields.pop("options", {})
    trial = Trial(str(op), case, "", replace(PROBLEM, **fields), layout)
    return Task(trial, backend, device, options=options)
