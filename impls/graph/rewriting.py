"""A graph in which some values are replaced: its values, and its steps, made again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gradwatch.impls.graph.engine import Array, Node, as_array, computed

At = Callable[[Node], Any]  # a node's value; or a node for it, where steps are made
Make = Callable[[At], Any]
#: New values by node, as functions of the values of others.
Edits = Mapping[Node, Make]


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
