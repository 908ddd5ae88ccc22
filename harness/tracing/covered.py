"""What can be traced: each operator of PyTorch's and JAX's, and what it maps to."""

from __future__ import annotations

import dis
import functools
import importlib.util
import itertools
from collections.abc import Iterator
from types import CodeType
from typing import Any

from gradwatch.impls import graph
from gradwatch.impls.graph.engine import Primitive

_OURS = "gradwatch.harness.tracing"
_PLUMBING = {"astype", "convention", "variable"}
#: Where rules are, by framework: a module, and tables in it.
_TABLES = {
    "torch": ("aten.table ON_FLOATS ON_VALUES MOVES", "aten.complex ON_COMPLEX"),
    "jax": ("lax ON_NODES BY_PARAMS RULES HIGHER",),
}


def covered() -> dict[str, str]:
    """By operator, such as "aten.mm", the engine's functions that stand for it.

    Operators of a framework that is not installed are left out, and those that PyTorch
    itself decomposes into others.
    """
    found: dict[str, set[str]] = {}
    for framework, tables in _TABLES.items():
        for text in tables if importlib.util.find_spec(framework) else ():
            module, *names = text.split()
            held = importlib.import_module(f"{_OURS}.{module}")
            for operator, rule in itertools.chain(
                *(getattr(held, n).items() for n in names)
            ):
                parts = found.setdefault(
                    f"{module.partition('.')[0]}.{operator}", set()
                )
                parts.update(_parts(rule, set()))
    return {name: " ".join(sorted(found[name] - _PLUMBING)) for name in sorted(found)}


def _parts(rule: Any, seen: set[Any]) -> Iterator[str]:
    """Names of the engine's functions in a rule, and in what it calls of ours."""
    rule = rule.func if isinstance(rule, functools.partial) else rule
    if rule in seen:
        return
    seen.add(rule)
    cells = [cell.cell_contents for cell in getattr(rule, "__closure__", None) or ()]
    primitives = [cell.name for cell in cells if isinstance(cell, Primitive)]
    name = getattr(rule, "__name__", "")
    if primitives or getattr(graph, name, None) is rule:
        yield from primitives or [name]
    elif getattr(rule, "__module__", "").startswith(_OURS):
        yield from (cell for cell in cells if isinstance(cell, str))
        for word, ours in _words(rule.__code__):
            called = None if ours else rule.__globals__.get(word)
            if ours and callable(getattr(graph, word, None)):
                yield word
            elif callable(called) and hasattr(called, "__code__"):
                yield from _parts(called, seen)
        for cell in cells:
            if hasattr(cell, "__code__"):
                yield from _parts(cell, seen)


def _words(code: CodeType) -> Iterator[tuple[str, bool]]:
    """Names in a function's code, and whether each is one of `graph`."""
    steps = list(dis.get_instructions(code))
    for step, after in itertools.pairwise(steps):
        if step.opname == "LOAD_GLOBAL":
            ours = step.argval == "graph"
            yield after.argval if ours else step.argval, ours
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _words(inner)
