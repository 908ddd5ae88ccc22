"""Evaluates a graph by blocks of rows, where these are independent of each other.

The arrays of a block fit into the cache, and those of the next one take their memory.
Sums over rows, as in the gradient of a weight, are added up from block to block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

import numpy as np

from gradwatch.impls.graph import reductions
from gradwatch.impls.graph.engine import (
    FLOATING,
    Array,
    Foreign,
    Node,
    forward,
    forward_dropping,
    summed_axes,
    topological_order,
)
from gradwatch.impls.graph.parts import SUMS, Parts, Places

#: Elements of a block, and the least number of blocks.
BLOCK, LEAST = 1 << 19, 4
#: The work of all blocks over that of the whole, as each repeats what all rows share;
#: and the largest share of the work that may be left for the end.
MORE, LEFT = 1.25, 0.125
_NONE = np.zeros(0)


def forward_in_blocks(
    outputs: Mapping[str, Node], passing: Callable[[Node], bool]
) -> Iterator[tuple[str, int, Node]]:
    """The name, first row and evaluated part of each block of rows of each output.

    An output that has none is evaluated as a whole, and held. Other values are held in
    the end if they are not `passing`; of those that are, only parts ever were.
    """
    plan, rest = _plan(outputs), dict(outputs)
    if plan is None:
        ends = {*outputs.values()}
        forward_dropping(ends, lambda n: n not in ends and passing(n))
    else:
        for name in plan.outputs:
            del rest[name]
        yield from _in_blocks(plan, topological_order(outputs.values()), passing)
        forward(rest.values())
    yield from ((name, 0, node) for name, node in rest.items())


class _Plan(NamedTuple):
    """The outputs that come in blocks, sums over all rows, and the rows of a block."""

    outputs: Mapping[str, Node]
    sums: Sequence[Node]
    turns: Sequence[Places]

    def parts(self, parts: Parts, places: Places) -> tuple[list[Node], list[Node]]:
        """Some rows of the outputs, and what these add to the sums."""
        some = [parts.rows(y, places) for y in self.outputs.values()]
        terms = ((node, parts.rows(node.inputs[0], places)) for node in self.sums)
        return some, [Node(n.primitive, (part,), n.attributes) for n, part in terms]


def _plan(outputs: Mapping[str, Node]) -> _Plan | None:
    """A plan that takes hardly more work than all at once; None if there is none.

    There is none where a matrix product adds up the rows, or an output of another
    meaning has as many.
    """
    order = topological_order(outputs.values())
    first = max(outputs.values(), key=lambda y: y.size, default=Node(None, value=_NONE))
    rows, count = first.shape[:1], first.size // BLOCK
    leaves = (n.value for n in order if not n.inputs)
    if count < LEAST or any(isinstance(v, Foreign) for v in leaves):
        return None

    def in_blocks(y: Node) -> bool:
        alike = y.ndim == first.ndim and y.shape[:1] == rows
        return alike and y.inputs != () and y.dtype.kind in FLOATING

    def over_rows(node: Node) -> bool:
        if not (node.primitive and node.primitive.name in SUMS):
            return False
        shape = node.inputs[0].shape
        return shape[:1] == rows and 0 in summed_axes(node, shape)

    turned = {name: y for name, y in outputs.items() if in_blocks(y)}
    ends = [y for y in outputs.values() if not in_blocks(y)]
    last = topological_order(ends, over_rows)
    ends += (n for user in last for n in user.inputs)
    sums, whole = [*dict.fromkeys(filter(over_rows, ends))], _work(order)
    # Parts of what is gathered search for the places, which takes longer.
    apart = _work(n for n in order if n.primitive and n.primitive.name == "gather")
    if max(_work(last), apart) > LEFT * whole:
        return None
    plan = _Plan(turned, sums, np.array_split(np.arange(*rows), min(count, *rows)))
    some, added = plan.parts(Parts(), plan.turns[0])
    each = _work(topological_order([*some, *added]))
    return plan if each * len(plan.turns) <= MORE * whole else None


def _work(nodes: Iterable[Node]) -> int:
    return sum(node.size for node in nodes if node.inputs)


def _in_blocks(
    plan: _Plan, order: Sequence[Node], passing: Callable[[Node], bool]
) -> Iterator[tuple[str, int, Node]]:
    rows = plan.turns[-1][-1] + 1
    kept = [n for n in order if n.inputs and n.shape[:1] == (rows,) and not passing(n)]
    held, terms = dict[Node, Array](), [list[Array]() for _ in plan.sums]
    for places in plan.turns:
        parts, start, end = Parts(), int(places[0]), int(places[-1]) + 1
        some, added = plan.parts(parts, places)
        found = {n: part for n in kept for part in parts.known(n, places)}
        _evaluate({*some, *added, *found.values()})
        for node, part in found.items():
            if node not in held:
                held[node] = np.empty(node.shape, part.dtype)
            held[node][start:end] = part.value
        for values, node in zip(terms, added, strict=True):
            values.append(node.value)
        yield from zip(plan.outputs, [start] * len(some), some, strict=True)
    for node, value in held.items():
        node.hold(value)
    for node, values in zip(plan.sums, terms, strict=True):
        node.hold(reductions.sum(Node(None, value=np.stack(values)), 0).value)


def _evaluate(wanted: Set[Node]) -> None:
    forward_dropping(wanted, lambda n: n.inputs != () and n not in wanted)
