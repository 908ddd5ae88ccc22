"""Running errors of choices: maxima and their weights, comparisons, logic, `where`.

A weight or a truth value is exact, or rounding can turn it around; then it is off by 1,
which is an E of 1 / u. `where` pays the difference of its branches, and no more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.rounding.errors import At, Error, Table


def _selection(at: At) -> Error:
    """A weight of 0 or 1 is exact, unless rounding could turn the choice around."""
    a, b = (source.value for source in at.node.inputs)
    blur = at.u * (at.e[0] + at.e[1])
    return np.where((blur > 0) & (np.abs(a - b) <= blur), 1 / at.u, 0.0)


def _contested(at: At) -> NDArray[np.bool_]:
    """Elements that rounding could make, or unmake, the largest along the axis."""
    x, axis = at.node.inputs[0].value, at.node.attributes["axis"]
    if not at.e[0].any():
        return np.zeros(x.shape, bool)
    blur = at.u * at.e[0]
    if not x.size:
        return np.zeros(x.shape, bool)
    reach = np.max(x - blur, axis=axis, keepdims=True) - blur
    contenders = np.sum(x >= reach, axis=axis, keepdims=True)
    contested: NDArray[np.bool_] = (blur > 0) & (x >= reach) & (contenders > 1)
    return contested


def _pick(at: At) -> Error:
    return np.where(_contested(at), 1 / at.u, 0.0)


def _argmax(at: At) -> Error:
    contested = _contested(at).any(axis=at.node.attributes["axis"])
    return np.where(contested, np.inf, 0.0)


def _sign(at: At) -> Error:
    return np.where((at.e[0] > 0) & (at.a <= at.u * at.e[0]), 2 / at.u, 0.0)


def _largest(at: At) -> Error:
    axis, keepdims = (at.node.attributes[name] for name in ("axis", "keepdims"))
    return np.asarray(np.max(at.e[0], axis=axis, keepdims=keepdims, initial=0.0))


def _compare(at: At) -> Error:
    a, b = (source.value for source in at.node.inputs)
    itself = at.node.inputs[0] is at.node.inputs[1]  # so isnan is written
    if itself or not (at.e[0].any() or at.e[1].any()):
        return np.zeros_like(at.v)
    blur = at.u * (at.e[0] + at.e[1])
    certain = np.abs(a.astype(float) - b.astype(float)) > blur  # false for nan
    return np.where((blur > 0) & ~certain, 1 / at.u, 0.0)


def _logical(at: At) -> Error:
    """A certain False settles an `and`, a certain True an `or`, whatever the other."""
    values = [source.value for source in at.node.inputs]
    blur = np.maximum(at.e[0], at.e[1])
    settles = {"and": False, "or": True}.get(at.node.attributes["how"])
    if settles is None:
        return np.asarray(blur)
    settled = [(v == settles) & (e == 0) for v, e in zip(values, at.e, strict=True)]
    return np.where(settled[0] | settled[1], 0.0, blur)


def _where(at: At) -> Error:
    c, a, b = (source.value for source in at.node.inputs)
    of_c, of_a, of_b = at.e
    error: Error = np.where(c, of_a, of_b)
    if not of_c.any():
        return error
    apart = np.where(a == b, 0.0, np.abs(a - b).astype(np.float64))
    return np.where(of_c > 0, np.maximum(of_a, of_b) + apart / at.u, error)


RULES: Table = {
    "maximum": lambda at: np.maximum(at.e[0], at.e[1]),
    "max": _largest,
    "abs": lambda at: at.e[0],
    "share": _selection,
    "pick": _pick,
    "sign": _sign,
    "argmax": _argmax,
    "compare": _compare,
    "logical": _logical,
    "where": _where,
}
