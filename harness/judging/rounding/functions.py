"""Running errors of functions of one element, of powers and steps.

A function that is monotone, or convex, between a - h and a + h is farthest from f(a)
at one of the two ends. That one rule serves all functions here, with h the uncertainty
of a. Where it would not hold: `tan` has poles, and beyond one the bound is infinite;
a power may have its minimum, or a pole, at 0 between the ends (`_pow`).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from gradwatch.harness.judging.rounding.errors import At, Error, Table, computed


def _uncertainty(at: At, which: int) -> Any:
    """How far an input may lie from its value, in the wide type: at least one place."""
    value, error = at.node.inputs[which].value, at.e[which]
    if value.dtype.kind not in "f":
        return at.u * error
    least = np.finfo(value.dtype).eps * np.abs(value)
    return np.where(error > 0, np.maximum(at.u * error, least), 0.0)


def _ends(at: At, function: Callable[..., Any]) -> Error:
    """The larger distance of f(a - h) and f(a + h) from f(a), in units of E."""
    a, h = at.node.inputs[0].value, _uncertainty(at, 0)
    if not h.any():
        return np.zeros_like(at.v)
    moved = (np.abs(function(a + s * h) - at.node.value) for s in (-1, 1))
    reach = np.maximum(*moved).astype(np.float64) / at.u
    return _bound(np.where(h > 0, reach, 0.0))


def _bound(error: Error) -> Error:
    return np.where(np.isnan(error), np.inf, error)


def _rounded(at: At) -> Error:
    """One rounding of the result, which may underflow."""
    return at.v + np.where(at.v != 0, at.tiny, 0.0)


def _monotone(at: At) -> Error:
    return _ends(at, functools.partial(computed, at.node)) + _rounded(at)


def _tan(at: At) -> Error:
    """Rising between two poles: where it falls, a pole lies between the ends."""
    a, h = at.node.inputs[0].value, _uncertainty(at, 0)
    falls = (np.tan(a + h) < np.tan(a - h)) | (h > np.pi / 2)
    return np.where(falls, np.inf, _monotone(at))


def _step(at: At) -> Error:
    """Whole numbers are exact unless a jump lies within reach."""
    return _ends(at, functools.partial(computed, at.node))


def _corners(at: At) -> tuple[Any, Any, list[Any]]:
    """Values and uncertainties of two inputs, and the results at the four corners."""
    a, b = (source.value for source in at.node.inputs)
    da, db = _uncertainty(at, 0), _uncertainty(at, 1)
    signs = itertools.product((-1, 1), repeat=2)
    return da, db, [computed(at.node, a + s * da, b + t * db) for s, t in signs]


def _pow(at: At) -> Error:
    da, db, corners = _corners(at)
    a, b = (source.value for source in at.node.inputs)
    moved = np.max([np.abs(c - at.node.value) for c in corners], axis=0)
    through_zero = (da > 0) & (np.abs(a) <= da)
    moved = moved + np.where(through_zero, at.v, 0.0)  # down to 0 in between
    moved = np.where(through_zero & (b - db < 0), np.inf, moved)
    certain = ~((da > 0) | (db > 0))
    error = np.where(certain, 0.0, _bound(moved.astype(np.float64)) / at.u)
    return error + _rounded(at)


def _atan2(at: At) -> Error:
    """The angle moves by at most asin(shift / distance), below pi/2 of that ratio."""
    shift = np.hypot(_uncertainty(at, 0), _uncertainty(at, 1)).astype(np.float64)
    ratio = np.where(shift == 0, 0.0, shift / np.hypot(at.a, at.b))
    turned = np.where(ratio < 1, np.arcsin(np.minimum(ratio, 1.0)), 2 * np.pi)
    # Across the cut along the negative axis the angle jumps by a whole turn.
    a, b = (source.value for source in at.node.inputs)
    jumps = (ratio > 0) & (b < 0) & (np.abs(a) <= _uncertainty(at, 0))
    return np.where(jumps, 2 * np.pi, turned) / at.u + _rounded(at)


def _converted(at: At) -> Error:
    """Exact between floating types and from integers; to integers it is a step."""
    node = at.node
    source, target = node.inputs[0].dtype.kind, node.dtype.kind
    if source != "f" or target == "f":
        return at.e[0]
    return _ends(at, lambda x: x.astype(node.dtype).astype(np.float64))


MONOTONE = (
    *("log", "expm1", "log1p", "sqrt", "square", "tanh", "sigmoid"),
    *("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
    *("erf", "erfc"),
)
RULES: Table = {
    **dict.fromkeys(MONOTONE, _monotone),
    "tan": _tan,
    "step": _step,
    "pow": _pow,
    "atan2": _atan2,
    "astype": _converted,
}
