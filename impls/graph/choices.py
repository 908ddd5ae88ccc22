"""Comparisons, logic, and `where`.

A comparison is a node like any other, without a gradient. Rounding may change its
result; harness/judging/rounding/analysis.py computes the error that follows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any

import numpy as np

from gradwatch.impls.graph.engine import (
    PRIMITIVES,
    Array,
    Node,
    as_array,
    as_nodes,
    broadcast,
    broadcasting,
    computed,
    no_gradient,
    primitive,
    public,
    setting,
    to_bool,
    topological_order,
    variable,
)

COMPARISONS = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
LOGIC = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


#: Comparisons, each with the one that differs from it where two numbers are equal.
_OTHER = {
    "less": "less_equal",
    "less_equal": "less",
    "greater": "greater_equal",
    "greater_equal": "greater",
}
_OTHER_SIDE: ContextVar[bool] = ContextVar("other_side", default=False)


def other_side() -> AbstractContextManager[bool]:
    """Let comparisons built inside decide otherwise where two numbers are equal."""
    return setting(_OTHER_SIDE, True)


def is_other_side() -> bool:
    """Whether comparisons are being built inside `other_side`."""
    return _OTHER_SIDE.get()


_Run = tuple[Mapping[Node, Any], Callable[[Any], Array]]
_RUN: ContextVar[_Run] = ContextVar("run")


def as_run(
    values: Mapping[Node, Any], array_of: Callable[[Any], Array]
) -> AbstractContextManager[_Run]:
    """Choose and compare inside what nodes were in a run, not their own values."""
    return setting(_RUN, (values, array_of))


def ran(*nodes: Node, chosen: Node | None = None) -> tuple[Node, ...]:
    """The nodes, or their values in the run that decides choices.

    The run may know which of a number and a node is the larger, `chosen`, and not the
    node.
    """
    run, array_of = _RUN.get(({}, as_array))
    if not run:
        return nodes
    made = dict[Node, Array]()

    def value(node: Node) -> Array:
        return made[node] if node in made else array_of(run[node])

    for node in topological_order(nodes, run.__contains__):
        given = [value(source) for source in node.inputs]
        made[node] = computed(node, given) if node.inputs else node.value
    values = [value(node) for node in nodes]
    if chosen is not None and chosen in run and not nodes[0].inputs:
        largest, (least, other) = value(chosen), values
        values[1] = np.where(largest == least, np.minimum(other, least), largest)
    return tuple(map(variable, values))


def _ordered(a: Any, b: Any, how: str) -> Node:
    a, b = ran(*as_nodes((a, b)))
    return _compare(a, b, how=_OTHER[how] if _OTHER_SIDE.get() else how)


def _compared(a: Array, b: Array, how: str) -> Array:
    return as_array(COMPARISONS[how](a, b), bool)


_compare = primitive("compare", _compared, no_gradient, dtype=to_bool, shape=broadcast)
_logical = primitive(
    "logical",
    lambda a, b, how: as_array(LOGIC[how](a, b), bool),
    no_gradient,
    dtype=to_bool,
    shape=broadcast,
)


@public
def equal(a: Any, b: Any) -> Node:
    """a == b."""
    return _compare(a, b, how="equal")


@public
def not_equal(a: Any, b: Any) -> Node:
    """a != b."""
    return _compare(a, b, how="not_equal")


@public
def less(a: Any, b: Any) -> Node:
    """a < b."""
    return _ordered(a, b, how="less")


@public
def less_equal(a: Any, b: Any) -> Node:
    """a <= b."""
    return _ordered(a, b, how="less_equal")


@public
def greater(a: Any, b: Any) -> Node:
    """a > b."""
    return _ordered(a, b, how="greater")


@public
def greater_equal(a: Any, b: Any) -> Node:
    """a >= b."""
    return _ordered(a, b, how="greater_equal")


def condition(value: Any) -> Node:
    """A node of booleans: whether elements are not 0."""
    if not isinstance(value, Node):
        return variable(as_array(value, bool))
    return value if value.dtype == bool else not_equal(value, 0)


@public
def logical_and(a: Any, b: Any) -> Node:
    """Both."""
    return _logical(condition(a), condition(b), how="and")


@public
def logical_or(a: Any, b: Any) -> Node:
    """At least one."""
    return _logical(condition(a), condition(b), how="or")


@public
def logical_xor(a: Any, b: Any) -> Node:
    """Exactly one."""
    return _logical(condition(a), condition(b), how="xor")


@public
def logical_not(a: Any) -> Node:
    """The opposite of a boolean."""
    return _logical(condition(a), variable(np.asarray(True)), how="xor")


@public
def isnan(x: Any) -> Node:
    """Whether elements are not a number."""
    return not_equal(x, x)


@public
def isinf(x: Any) -> Node:
    """Whether elements are infinite."""
    return logical_or(equal(x, np.inf), equal(x, -np.inf))


@public
def isfinite(x: Any) -> Node:
    """Whether elements are neither infinite nor nan."""
    return logical_and(
        _compare(x, np.inf, how="less"), _compare(x, -np.inf, how="greater")
    )


# where ----------------------------------------------------------------------------


@broadcasting
def _where_rule(dy: Node, y: Node, c: Node, a: Node, b: Node) -> list[Node | None]:
    return [None, where(c, dy, 0.0), where(c, 0.0, dy)]


primitive("where", np.where, _where_rule, dtype=lambda c, a, b: a, shape=broadcast)


@public
def where(c: Any, a: Any, b: Any) -> Node:
    """Elements of a where the condition holds, of b elsewhere."""
    chosen = condition(c)
    a, b = as_nodes((a, b), like=chosen)
    return Node(PRIMITIVES["where"], (chosen, a, b))
