"""What cannot become a graph, said with the operator, the line and a way round."""

from __future__ import annotations

import importlib.util
import linecache
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

_SPEC = importlib.util.find_spec("torch")  # which costs no import
_PYTORCH = str(Path(_SPEC.origin).parent) if _SPEC and _SPEC.origin else "no PyTorch"
_LISTENING = tuple(__file__.replace("untraceable", n) for n in ("tape", "capture"))
_HARNESS = str(Path(__file__).parent.parent)

WAYS_ROUND = {
    "random": "draw by an operator of its own, or make the mask or the noise an input",
    "control": "choose the branch outside the function, or write it with torch.where",
    "numpy": "write the reference in PyTorch's functions; a candidate may be anything",
    "complex": "split it into real and imaginary parts",
    "sparse": "make it dense first, with .to_dense(), or build it in the function",
    "factorisation": "judge what comes before and after the factorisation separately",
    "signs": "return what no sign changes, such as v f(w) v^T, or fix each sign",
    "frozen": "mark the inputs that are to be differentiated with requires_grad_()",
    "no rule": "write this part in other operators (`gradwatch list covered` has them)",
}


#: What PyTorch says in its own words: a part of it, the operator, why, and the kind.
_WORDS = (
    ("setStorage", "aten.as_strided", "reads storage outside of its input", "no rule"),
    (
        *("is not differentiable with respect to argument", "PyTorch's operator"),
        *("has no gradient by one of the inputs", "frozen"),
    ),
)


class Untraceable(Exception):
    """A function that the engine cannot follow.

    Attributes:
        op: The operator, such as "aten.bernoulli".
        why: What it does that the engine cannot.
        kind: The reason's kind, a key of `WAYS_ROUND`.
        line: Where it is called, "file.py:12: y = F.dropout(x)"; "" if unknown.
        way_round: What the caller can do instead.
    """

    def __init__(
        self,
        op: str,
        why: str,
        kind: str,
        place: Place | None = None,
        ways: Mapping[str, str] = WAYS_ROUND,
    ) -> None:
        self.op, self.why, self.kind = op, why, kind
        self.line = str(place or "")
        self.way_round = ways[kind]
        where = f" ({self.line})" if self.line else ""
        super().__init__(f"{op}{where} {why}; {self.way_round}")


@dataclass(frozen=True)
class Place:
    """A line of the caller's, or the module of PyTorch's that it made."""

    file: str
    number: int
    module: str = ""

    def __str__(self) -> str:
        if self.module:
            return self.module
        text = linecache.getline(self.file, self.number).strip()
        return f"{self.file}:{self.number}: {text}" if self.file else ""


def callers_place(of: BaseException | None = None) -> Place:
    """The innermost line outside of PyTorch that runs now, or that raised.

    Where PyTorch alone runs, as in an nn.Sequential, the innermost module is named.
    """
    if of is not None:
        frames = [frame for frame, _ in traceback.walk_tb(of.__traceback__)][::-1]
    else:
        frames = [frame for frame, _ in traceback.walk_stack(sys._getframe(1))]
    module = ""
    for frame in frames:
        file = frame.f_code.co_filename
        if file in _LISTENING:
            continue
        if file.startswith(_HARNESS):
            break
        if not file.startswith(_PYTORCH):
            return Place(file, frame.f_lineno)
        mine = frame.f_locals.get("self")
        if not module and mine is not None and hasattr(mine, "named_parameters"):
            module = f"{type(mine).__name__}({mine.extra_repr()})"
    return Place("", 0, module)


def refuse_as_pytorch(error: Exception) -> None:
    """Raise Untraceable for an error of PyTorch's that has a way round."""
    for part, op, why, kind in _WORDS:
        if part in str(error):
            raise Untraceable(op, why, kind, callers_place(error)) from error
