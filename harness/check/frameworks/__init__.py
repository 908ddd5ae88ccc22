"""The frameworks of `check`: a module for each, with the same functions.

tensors, mapped, paths      the tensors in the framework's containers
made, filled, moved, relaid a tensor of NumPy's numbers, in another type, laid out
array_of, same              its numbers in NumPy, whether two are equal
Call, bind                  a function of tensors alone; the candidate as one
forward, observe            outputs; outputs and gradients, in several ways
differentiated, refusals    second derivatives, and the orders it does not support
device, settings, precision the device and the settings of a check
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import types
from dataclasses import dataclass
from typing import Any, NamedTuple

from gradwatch.harness.judging.precisions import name_of
from gradwatch.impls.contract import Op

#: The remedy for a call that lacks arguments.
ARGUMENTS = (
    "give a shape or a tensor for each input, and what is no tensor by kwargs"
    ' (kwargs={"dim": -1}, --arg dim=-1)'
)


def framework(name: str) -> Any:
    """The module of "pytorch" or of "jax", imported when it is needed."""
    return importlib.import_module(f"{__name__}.{name}")


def dtype_of(tensor: Any) -> str:
    """The name of a tensor's or an array's type."""
    return name_of(tensor.dtype)


@dataclass(frozen=True)
class Bound:
    """A subject at one trial: its tensors by name, and which need a gradient.

    `results` names its outputs, `updated` are indices of tensors that it may write to,
    `traced` is the trace of a PyTorch function, `draws` are the generators it used.
    """

    call: Any
    names: tuple[str, ...]
    tensors: tuple[Any, ...]
    wanted: tuple[bool, ...]
    results: tuple[str, ...]
    updated: frozenset[int] = frozenset()
    traced: Any = None
    draws: tuple[Any, ...] = ()


class Forward(NamedTuple):
    """Outputs, which of them are differentiable, and the tensors written to."""

    outputs: tuple[Any, ...]
    followed: tuple[bool, ...]
    written: frozenset[int]


class Elsewhere:
    """A candidate in a process of its own; see `subjects.apart`."""

    missing: list[str]
    names: list[str]  # of a module's parameters and buffers
    observe: Any
    train: Any


class Raised(Exception):
    """An exception of a candidate in another process, or how its process `ended`."""

    def __init__(self, words: str, ended: bool = False) -> None:
        super().__init__(words)
        self.ended = ended


def are_of_jax(reference: Any, candidate: Any, inputs: Any) -> tuple[bool, bool]:
    """Whether reference and candidate are functions of JAX's.

    Without PyTorch every function is. A function that uses neither is taken for one
    of JAX's where the other function, or an input, is.
    """
    functions = (reference, candidate)
    if importlib.util.find_spec("torch") is None and importlib.util.find_spec("jax"):
        ours, theirs = (callable(f) and not isinstance(f, Op) for f in functions)
        return ours, theirs
    if "jax" not in sys.modules:
        return False, False
    import jax

    homes = [_homes(function) for function in functions]
    known = [not own.isdisjoint(("jax", "jaxlib")) for own in homes]
    arrays = any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(inputs))
    if not (any(known) or arrays):
        return False, False
    ours, theirs = (  # operators alone, such as x * y, run in either framework
        is_jax or (callable(f) and "torch" not in own)
        for f, own, is_jax in zip(functions, homes, known, strict=True)
    )
    return ours, theirs


def _homes(function: Any) -> set[str]:
    """The packages that define a function or its type, and those its code names."""
    inner = inspect.unwrap(function) if callable(function) else function
    inner = getattr(inner, "func", inner)  # of a partial
    code, around = getattr(inner, "__code__", None), getattr(inner, "__globals__", {})
    used = [around.get(name) for name in _names_in(code)] if code else []
    homes = set()
    for held in (function, inner, *used):
        for one in (held, *type(held).__mro__):
            is_module = isinstance(one, types.ModuleType)
            name = one.__name__ if is_module else getattr(one, "__module__", "")
            homes.add(str(name).partition(".")[0])
    return homes


def _names_in(code: types.CodeType) -> list[str]:
    inner = [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return [*code.co_names, *(n for c in inner for n in _names_in(c))]


def require_instance(given: Any) -> None:
    """Raise ValueError for a class in place of a function, and suggest a function."""
    if not inspect.isclass(given):
        return
    name = given.__name__
    if hasattr(given, "backward"):  # of PyTorch's autograd
        raise ValueError(f"{name} is a class: give {name}.apply")
    raise ValueError(f"{name} is a class: give an instance, {name}(...)")
