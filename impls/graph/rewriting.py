"""A graph in which some values are replaced: its values, and its steps, made again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gradwatch.impls.graph.arithmetic import multiply
from gradwatch.impls.graph.choices import where
from gradwatch.impls.graph.engine import (
    PRIMITIVES,
    Array,
    Node,
    as_array,
    computed,
    largest_magnitude,
    rounded_to,
    topological_order,
    variable,
)

At = Callable[[Node], Any]  # a node's value; or a node for it, where steps are made
Make = Callable[[At], Any]
#: New values by node, as functions of the values of others.
Edits = Mapping[Node, Make]

_SUMS = PRIMITIVES["add"], PRIMITIVES["subtract"]
_LOST = 2.0**-55  # the share of a sum below which float64, too, loses an operand


@np.errstate(all="ignore")
def rerun(order: Iterable[Node], edits: Edits, at: At) -> dict[Node, Array]:
    """The new values of nodes that change with edits; `at` gives the old ones."""
    new = dict[Node, Array]()

    def now(node: Node) -> Array:
        return new[node] if node in new else at(node)

    for node in order:
        if not new.keys().isdisjoint(node.inputs):
            new[node] = computed(node, [*map(now, node.inputs)])
        if node in edits:
            # Inputs change at once, as two that are exchanged.
            new[node] = as_array(edits[node](now if node.inputs else at))
    return new


def again(node: Node, inputs: Sequence[Any], **changed: Any) -> Any:
    """A step with other inputs or attributes: its value, or the node, of nodes."""
    how, step = node.attributes | changed, node.primitive
    assert step is not None
    if isinstance(inputs[0], Node):
        return Node(step, tuple(inputs), how)
    return as_array(step.compute(*inputs, **how))


def absorbs(node: Node, share: float, least: float) -> tuple[Array, Array] | None:
    """Where each operand of a sum is below a share of the other; None if nowhere.

    So it is where none of them is over `least`.
    """
    if node.primitive not in _SUMS or node.dtype.kind != "f" or not node.ndim:
        return None
    with np.errstate(all="ignore"):
        if not largest_magnitude(node.value) * share > least / 2:
            return None  # nor is any operand so large
        a, b = (np.abs(source.value) for source in node.inputs)
        pairs = [(a, b), (b, a)]
        gone = [(x > 0) & (x < share * y) & (y < np.inf) for x, y in pairs]
        felt = ((gone[0] | gone[1]) & (np.minimum(a, b) > least)).any()
    return (gone[0], gone[1]) if felt else None


def absorb(
    nodes: Iterable[Node], how: Callable[[Node], tuple[float, float]], *, kept: bool
) -> None:
    """Let sums of a graph lose small operands for certain, or keep them all.

    A score beside a mask of -1e9 is lost where their sum is rounded to float32, and
    kept where nothing rounds it; in between there is nothing.

    Args:
        nodes: The ends of the graph, whose sums are changed in their place: what is
            known of a node stays true.
        how: Gives the other arguments of `absorbs` for a node.
        kept: Whether these sums have the rounding of float64, and lose no more.
    """
    order = topological_order(nodes)
    for node in order:
        if node.inputs and node.held:  # as an index needed it when the graph was built
            node.drop()
    for node in order:
        if (gone := absorbs(node, *how(node))) is None:
            continue
        lost, inputs = absorbs(node, _LOST, 0.0) if kept else gone, node.inputs
        with rounded_to(node.precision):
            if lost is not None:
                ones = (variable((~g).astype(node.dtype)) for g in lost)
                inputs = tuple(map(multiply, inputs, ones))
            made = again(node, inputs)
        if kept:
            with rounded_to("float64"):
                exact = again(node, inputs)
            made = where(variable(gone[0] | gone[1]), exact, made)
        node.primitive, node.inputs = made.primitive, made.inputs
        node.hold(made.value)
