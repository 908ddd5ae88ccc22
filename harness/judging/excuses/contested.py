"""Choices that rounding may turn around: which they are, and what that changes.

The gradient of a maximum, a ReLU, a pool or abs is a cotangent times a weight (0, 1 or
-1) that says which value is the largest. Where another value is as near to it as
rounding moves them, the choice is *contested*: an honest implementation may have made
it the other way, and its weight is another one. In 16 bits that is so for some elements
of any ReLU, and a draw that happens to turn one around says little of the next.

So the draws of the spread keep all choices as the reference makes them, and move each
contested weight by what turning it around changes, to either side. The gradient is
linear in the weights, so that this is first-order like the rest of the spread. In a
quarter of the draws all weights of a tensor move to the same side: a mean that is off
turns all of its contested elements in one direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.rounding.errors import operation
from gradwatch.harness.judging.rounding.thresholds import FEW_DRAWS, SMALL
from gradwatch.impls.graph import SELECTIONS, Node, topological_order

Array = NDArray[Any]
Mask = NDArray[np.bool_]

#: Pairs of draws that measure how far rounding moves the values to be chosen among. Of
#: three, less than a quarter of the true rms is found in 1 of 50 cases (chi-squared).
PILOTS = 3
#: Of what the judge allows a gap to move, the share within which a choice is contested.
#: Right bfloat16 networks move it by 1.2 radii at most, of 19 to 24 that are allowed.
REACH = SMALL
#: How many times a weight is moved by what turning it changes. One turned choice is
#: right by that margin; of several that cancel in a draw, enough is left for each.
TURNS = FEW_DRAWS
#: Of this many pairs of draws, one moves all weights of a tensor to the same side.
ALIKE = 4


def is_choice(node: Node) -> bool:
    """Whether a node is the weight of a choice."""
    return operation(node) in SELECTIONS


def behind(choices: Sequence[Node]) -> list[Node]:
    """All that choices are made among, each node after its inputs."""
    return topological_order([source for node in choices for source in node.inputs])


def gap(node: Node, *inputs: Array) -> Array:
    """What a choice depends on the sign of, for other values of its inputs.

    Of a maximum along an axis, how far each element is from the one that is chosen.
    """
    if operation(node) != "pick":
        return inputs[0] - inputs[1] if len(inputs) == 2 else inputs[0]
    axis = node.attributes["axis"]
    if not inputs[0].size:
        return inputs[0]
    chosen = np.argmax(node.inputs[0].value, axis=axis, keepdims=True)
    distance: Array = inputs[0] - np.take_along_axis(inputs[0], chosen, axis)
    return distance


def contested(node: Node, moved: Array) -> Mask:
    """Where rounding may turn a choice around.

    Args:
        node: The choice.
        moved: How far the judge allows its gap to move: root mean squares of draws; nan
            where a draw is outside of a function's domain, so that nothing is certain.
    """
    apart = _apart(node)
    open_: Mask = np.isfinite(apart) & (moved != 0) & ~(apart > REACH * moved)
    return open_


def chances(node: Node, moved: Array) -> Array:
    """Roots of the largest probabilities that rounding turns a choice around.

    By Hoeffding's inequality: a sum of independent uniform roundings of root mean
    square `moved` is beyond the gap in at most exp(-(gap / moved)^2 / 2) of all cases,
    and, as it is symmetric, in half of them. Of a maximum along an axis, the most
    likely contender's.
    """
    apart = _apart(node)
    away = np.divide(apart, moved, out=np.zeros_like(apart), where=moved > 0)
    share: Array = np.minimum(np.exp(-np.square(away) / 4), 0.5**0.5)
    if operation(node) != "pick":
        return share
    others = np.where(node.value == 0, share, 0.0)
    largest: Array = np.max(others, axis=node.attributes["axis"], keepdims=True)
    return largest


def _apart(node: Node) -> Array:
    apart: Array = np.abs(gap(node, *(source.value for source in node.inputs)))
    return apart


def turned(node: Node, open_: Mask, rng: np.random.Generator, *, together: bool) -> Any:
    """By what the weights of a draw differ from the reference's; 0 for no choice."""
    if not open_.any():
        return 0.0
    if operation(node) != "pick":
        jump = 2.0 if operation(node) == "sign" else 1.0
        return TURNS * jump * np.where(open_, _signs(open_.shape, rng, together), 0.0)
    axis = node.attributes["axis"]
    drawn = np.where(open_, rng.random(open_.shape), -1.0)
    other = (drawn == drawn.max(axis=axis, keepdims=True)) & open_
    rows = other.any(axis=axis, keepdims=True)
    change = np.where(rows, other - node.value, 0.0)
    return TURNS * change * _signs(rows.shape, rng, together)


def _signs(shape: tuple[int, ...], rng: np.random.Generator, together: bool) -> Any:
    return 1.0 if together else rng.choice((-1.0, 1.0), shape)
