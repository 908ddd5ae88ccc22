"""Functions that cannot become a graph; names of functions, their inputs and lines."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import linecache
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SPEC = importlib.util.find_spec("torch")  # which costs no import
_PYTORCH = str(Path(_SPEC.origin).parent) if _SPEC and _SPEC.origin else "no PyTorch"
_LISTENING = tuple(__file__.replace("untraceable", n) for n in ("tape", "capture"))
_HARNESS = str(Path(__file__).parent.parent)

WAYS_ROUND = {
    "random": "draw by an operator of its own, or make the mask or the noise an input",
    "control": "choose the branch outside the function, or write it with torch.where",
    "loop": "write it with a count that is known, by lax.scan or lax.fori_loop",
    "long": "give shorter inputs",
    "callback": "write the reference in jax.numpy; a candidate may be anything",
    "numpy": "write the reference in PyTorch's functions; a candidate may be anything",
    "complex": "split it into real and imaginary parts",
    "sparse": "make it dense first, with .to_dense(), or build it in the function",
    "factorisation": "judge what comes before and after the factorisation separately",
    "signs": "return what no sign changes, such as v f(w) v^T, or fix each sign",
    "frozen": "mark the inputs that are to be differentiated with requires_grad_()",
    "no rule": "write this part in other operators (`gradwatch list covered` has them)",
}


class Untraceable(Exception):
    """A function that the engine cannot follow.

    Attributes:
        op: The operator, such as "aten.bernoulli".
        why: The reason, as a predicate, such as "factorises a matrix".
        kind: The reason's kind, a key of `WAYS_ROUND`.
        line: Where it is called, "file.py:12: y = F.dropout(x)"; "" if unknown.
        way_round: Advice to the caller.
    """

    def __init__(
        self, op: str, why: str, kind: str, place: Place | None = None
    ) -> None:
        self.op, self.why, self.kind = op, why, kind
        self.line = str(place or "")
        self.way_round = WAYS_ROUND[kind]
        where = f" ({self.line})" if self.line else ""
        super().__init__(f"{op}{where} {why}; {self.way_round}")


@dataclass(frozen=True)
class Place:
    """A line of the caller's code, or a module of PyTorch's that the caller made."""

    file: str
    number: int
    module: str = ""

    def __str__(self) -> str:
        if self.module:
            return self.module
        text = linecache.getline(self.file, self.number).strip()
        return f"{self.file}:{self.number}: {text}" if self.file else ""


def callers_place(of: BaseException | None = None) -> Place:
    """The innermost line outside of PyTorch that runs now, or that raised `of`.

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


def parameters_of(
    function: Callable[..., Any], count: int, ahead: int = 0
) -> list[str]:
    """Names of positional parameters after some; x0, x1, ... where there are none."""
    try:
        known = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # most of a framework's own have no signature
        known = []
    positional = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )
    names = [p.name for p in known if p.kind in positional][ahead:]
    if len(names) >= count:
        return names[:count]
    return ["x"] if count == 1 else [f"x{i}" for i in range(count)]


def name_of(function: Any) -> str:
    """The module and name of a function, without Python's decoration."""
    if isinstance(function, functools.partial):
        given = ", ".join(f"{k}={v!r}" for k, v in function.keywords.items())
        return f"{name_of(function.func)}({given})" if given else name_of(function.func)
    if hasattr(function, "named_parameters"):
        return f"{type(function).__name__} module"
    owner = getattr(function, "__self__", None)  # Function.apply is bound to its class
    if inspect.isclass(owner):
        return f"{owner.__qualname__}.{function.__name__}"
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", None) or type(function).__name__
    name = name.removeprefix("_VariableFunctionsClass.")  # of torch.softmax and others
    _, _, part = module.partition("torch._C._")  # of torch.fft.fft and others
    if part:
        module = "torch.nn.functional" if part == "nn" else f"torch.{part}"
        name = name.removeprefix(f"{part}_")
    return f"{module}.{name}" if module.startswith("torch") else str(name)
