"""What can be traced: each operator of PyTorch's and JAX's, and what it maps to."""

from __future__ import annotations

import dis
import functools
import importlib.util
import itertools
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from gradwatch.impls import graph
from gradwatch.impls.graph.engine import Primitive

_OURS = "gradwatch.harness.tracing"
_PLUMBING = {"astype", "convention", "variable"}
#: Where rules are, by framework: a module, and tables in it.
_TABLES = {
    "torch": ("aten.table ON_FLOATS ON_VALUES MOVES", "aten.complex ON_COMPLEX"),
    "jax": ("lax ON_NODES RULES HIGHER",),
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
    cells: list[Any] = []
    if isinstance(rule, functools.partial):
        rule, cells = rule.func, [*rule.args]
    if rule in seen:
        return
    seen.add(rule)
    cells += [c.cell_contents for c in getattr(rule, "__closure__", None) or ()]
    primitives = [cell.name for cell in cells if isinstance(cell, Primitive)]
    name = getattr(rule, "__name__", "")
    if primitives or getattr(graph, name, None) is rule:
        yield from primitives or [name]
    elif getattr(rule, "__module__", "").startswith(_OURS):
        yield from (cell for cell in cells if isinstance(cell, str))
        for called in (*_called(rule.__code__, rule.__globals__), *cells):
            if isinstance(called, (FunctionType, functools.partial)):
                yield from _parts(called, seen)


def _called(code: CodeType, around: dict[str, Any]) -> Iterator[Any]:
    """What a function's code names: globals, and what modules among them have."""
    for step, after in itertools.pairwise(dis.get_instructions(code)):
        if step.opname == "LOAD_GLOBAL":
            held = around.get(step.argval)
            is_module = isinstance(held, ModuleType)
            yield getattr(held, str(after.argval), None) if is_module else held
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _called(inner, around)
