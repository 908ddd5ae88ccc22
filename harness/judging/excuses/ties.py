"""Ties that are broken in another way from row to row.

At a tie the gradient is a set, and each tied row may pick its own member: a vectorised
maximum takes the first of one row and the last of the next. Rows are told apart where
this is certain: every choice of the graph is made among tensors of one shape, which
only elementwise steps separate from the inputs, and all gradients that depend on a
choice have that shape. Then a choice touches its own *group* alone: the same row of all
these gradients, along the axes of the maxima.

A group is right by one of the conventions, or by shares of its own: each tied element
lies between what the conventions give those of its group, and the total is kept. A kink
(abs, a maximum against a constant) has a group of one element, and no total to keep.
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
) -> dict[str, dict[str, Array]] | None:
    """For each convention the tensors, right but for the rows it has to answer for.

    Args:
        right: The reference, `set_valued`.
        got: The tensors to be judged.
        allowed: Of a reference, a convention and a tensor: how far each element may be
            off.

    Returns:
        For each convention the gradients that depend on ties, in the wide type. Rows
        that another convention fits best hold the convention's own values, and so do
        rows that have shares of their own. None where rows cannot be told apart.
    """
    names = [name for name in got if right.depends_on_ties(name)]
    conventions = tuple(right.graphs)
    axes = _axes(right.choices)
    shapes = {right.graphs["first"][name].shape for name in names}
    arrays = [got[name] for name in names]
    if axes is None or len(shapes) != 1 or {axes[0]} != shapes:
        return None
    if any(a is None or a.shape != axes[0] for a in arrays):
        return None
    given = np.stack([np.asarray(a).astype(right.wide) for a in arrays])
    along = (0, *(axis + 1 for axis in axes[1]))
    values = {
        c: np.stack([right.graphs[c][n].value for n in names]) for c in conventions
    }
    room = {c: np.stack([allowed(right, c, n) for n in names]) for c in conventions}
    with np.errstate(all="ignore"):
        chosen = np.argmin(
            [_off(given, values[c], room[c], along) for c in conventions], 0
        )
        free = _shared(given, values, room, along)
    return {
        c: dict(
            zip(names, np.where((chosen == i) & ~free, given, values[c]), strict=True)
        )
        for i, c in enumerate(conventions)
    }


def _off(given: Array, value: Array, room: Array, along: tuple[int, ...]) -> Array:
    """The largest error of each group, in units of what is allowed."""
    error = np.abs(given - value).astype(np.float64)
    ratios = np.where(
        (error == 0) | (np.isnan(given) & np.isnan(value)), 0, error / room
    )
    worst: Array = np.max(np.nan_to_num(ratios, nan=np.inf), axis=along, keepdims=True)
    return worst


def _shared(
    given: Array, values: Mapping[str, Array], room: Mapping[str, Array], along: Any
) -> Array:
    """Groups whose tied elements share what the conventions give them.

    Each is between the least and the most that a tied one of its group gets by some
    convention, and the group's total is the same.
    """
    stack = np.stack(list(values.values()))
    slack = np.max(list(room.values()), axis=0)
    tied = (stack != stack[0]).any(axis=0)
    least, most = (
        extreme(np.where(tied, ends, none), axis=along, keepdims=True)
        for extreme, ends, none in (
            (np.min, stack.min(axis=0), np.inf),
            (np.max, stack.max(axis=0), -np.inf),
        )
    )
    near = np.abs(given - stack[0]) <= slack
    inside = np.where(tied, (given >= least - slack) & (given <= most + slack), near)
    totals = [np.sum(v, axis=along, keepdims=True) for v in (given, *stack)]
    enough = np.sum(slack, axis=along, keepdims=True)
    kept = np.ptp(totals, axis=0) <= enough  # false for nan
    alone = given.size == kept.size  # one element in each group
    good: Array = np.all(inside, axis=along, keepdims=True) & (kept | alone)
    return good


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
