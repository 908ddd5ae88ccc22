"""Ties that are broken in another way from row to row.

At a tie the gradient is a set, and each tied row may pick its own member: a vectorised
maximum takes the first of one row and the last of the next. Rows are told apart where
this is certain: every choice of the graph is made among tensors of one shape, which
only elementwise steps separate from the inputs, and all gradients that depend on a
choice have that shape. Then a choice touches its own *group* alone: the same row of all
these gradients, along the axes of the maxima.

A group is right if each of its tied elements lies between what the conventions give
the tied ones of the group, and so does their total. A kink (abs, a maximum against a
constant) has a group of one element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.impls.graph import Choice, topological_order

if TYPE_CHECKING:
    from gradwatch.harness.judging.reference import Reference

Array = NDArray[Any]
Allowed = Callable[["Reference", str, str], NDArray[np.float64]]

#: Steps between an input and a choice, each from one element to the same element.
_ELEMENTWISE = frozenset(
    ("add", "subtract", "multiply", "divide", "negative", "maximum", "broadcast_to")
)


def put_right(
    right: Reference, got: Mapping[str, Array | None], allowed: Allowed
) -> dict[str, Array] | None:
    """The tensors that depend on ties, their right groups as by the first convention.

    They are in the wide type. None where rows cannot be told apart.

    Args:
        right: The reference, `set_valued`.
        got: The tensors to be judged.
        allowed: Of a reference, a convention and a tensor: how far each element may be
            off.
    """
    names = [name for name in got if right.depends_on_ties(name)]
    axes = _axes(right.choices)
    shapes = {right.graphs["first"][name].shape for name in names}
    arrays = [got[name] for name in names]
    if axes is None or len(shapes) != 1 or {axes[0]} != shapes:
        return None
    if any(a is None or a.shape != axes[0] for a in arrays):
        return None
    given = np.stack([np.asarray(a).astype(right.wide) for a in arrays])
    values = np.stack([[g[n].value for n in names] for g in right.graphs.values()])
    room = np.stack([[allowed(right, c, n) for n in names] for c in right.graphs])
    group: Any = {"axis": (0, *(axis + 1 for axis in axes[1])), "keepdims": True}
    along = (1, *(axis + 2 for axis in axes[1]))  # of all ways at once
    with np.errstate(all="ignore"):
        tied = (values != values[0]).any(axis=0)
        slack = np.where(tied, room.max(axis=0), 0.0)
        least = np.min(values.min(axis=0), where=tied, initial=np.inf, **group)
        most = np.max(values.max(axis=0), where=tied, initial=-np.inf, **group)
        inside = ~tied | ((given >= least - slack) & (given <= most + slack))
        totals = np.sum(np.where(tied, values, 0.0), axis=along, keepdims=True)
        total, enough = (
            np.sum(np.where(tied, a, 0.0), **group) for a in (given, slack)
        )
        inside &= total >= totals.min(axis=0) - enough
        inside &= total <= totals.max(axis=0) + enough
        good = np.all(inside, **group)
    return dict(zip(names, np.where(tied & good, values[0], given), strict=True))


def _axes(
    choices: Sequence[Choice],
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The shape in which all choices are made, and the axes of the maxima."""
    sources = [source for choice in choices for source in choice.among]
    shapes = {source.shape for source in sources}
    behind = {n.primitive.name for n in topological_order(sources) if n.primitive}
    if len(shapes) != 1 or not behind <= _ELEMENTWISE:
        return None
    along = {choice.axis for choice in choices if choice.axis is not None}
    return shapes.pop(), tuple(sorted(along))
