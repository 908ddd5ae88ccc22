"""Counts the mistakes in copies of published kernels that the diagnosis names.

The forward of each in mistakes.txt is right, its gradient that of another function. A
mistake is named if the first sentence on some wrong tensor has the words beside it.

    python scripts/studies/mistakes.py [a word of the name]
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import gradwatch

Function = Callable[..., Tensor]


def as_if(right: Function, wrong: Function) -> Function:
    """The values of one function, the gradient of another."""

    def candidate(*tensors: Tensor) -> Tensor:
        moved = wrong(*tensors)
        return right(*tensors).detach() + (moved - moved.detach())

    return candidate


def slope(factor: float) -> Function:
    """The identity, whose gradient is multiplied."""
    return as_if(lambda x: x, lambda x: factor * x)


def bent(function: Function) -> Function:
    """A function whose slope is taken for 1."""
    return as_if(function, lambda x: x)


def takes(value: Tensor, other: Tensor) -> Tensor:
    """A value with the gradient of another."""
    return value + (other - other.detach())


def without_delta(scores: Tensor, axis: int) -> Tensor:
    """A softmax whose gradient lacks the sum of each row."""
    return torch.softmax(scores, axis).detach() * (1 + scores - scores.detach())


KNOWN: dict[str, Any] = {
    "torch": torch,
    "F": functional,
    "softmax": torch.softmax,
    "bent": bent,
    "held": Tensor.detach,
    "slope": slope,
    "takes": takes,
    "without_delta": without_delta,
}


def function(names: str, steps: str) -> Function:
    """The function of tensors with these names that runs the steps."""
    body = re.sub(
        "^", "    ", re.sub("^=", "return", steps.strip(), flags=re.M), flags=re.M
    )
    known = dict(KNOWN)
    exec(f"def call({names}):\n{body}", known)  # our own text
    made: Function = known["call"]
    return made


def rows() -> Iterator[tuple[str, str, Function, list[list[int]], Function]]:
    """The mistakes: name, words, the right function, shapes, and the wrong function."""
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    for part in text.split("\n[")[1:]:
        (head, *lines), steps = part.strip().split("\n"), ""
        title, _, inputs = head.partition("] ")
        names, sizes = zip(*(i.split("=") for i in inputs.split()), strict=True)
        shapes = [[*map(int, size.split("x"))] for size in sizes]
        for line in lines:
            if not line.startswith("- "):
                steps += f"{line}\n"
                continue
            mistake, words, changes = line.removeprefix("- ").split(" | ")[:3]
            spoilt = steps
            for change in changes.split(" ; "):
                old, _, new = change.partition(" ->")
                assert old in spoilt, line
                spoilt = spoilt.replace(old, new.strip())
            right = function(", ".join(names), steps)
            wrong = as_if(right, function(", ".join(names), spoilt))
            yield f"{title}: {mistake}", words, right, shapes, wrong


def main() -> None:
    """Print each mistake with the sentence on it, and how many are named."""
    named = tried = 0
    for name, words, right, shapes, wrong in rows():
        if not all(word in name for word in sys.argv[1:]):
            continue
        torch.manual_seed(3)
        inputs = [torch.randn(s) for s in shapes]
        report = gradwatch.check(right, wrong, inputs=inputs, quick=True)
        said = sorted({j.diagnosis for j in report if j.diagnosis})
        found = [s for s in said if re.search(words, s)]
        tried, named = tried + 1, named + bool(found)
        shown = found[0] if found else "; ".join(said) or f"nothing ({report.passes=})"
        print("named " if found else "-     ", f"{name}: {shown}", flush=True)
    print(f"{named} of {tried} are named")


if __name__ == "__main__":
    main()
