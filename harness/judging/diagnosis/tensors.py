"""Mistakes that are seen from a tensor alone: a factor, an order, a region."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwatch.harness.judging.diagnosis.edits import forms
from gradwatch.harness.judging.diagnosis.sweep import Array, Tensors
from gradwatch.harness.judging.diagnosis.words import factored, number, written
from gradwatch.harness.judging.precisions import PRECISIONS

Mask = np.ndarray[Any, np.dtype[np.bool_]]
BLOCKS = (128, 64, 32, 16, 8)


@dataclass(frozen=True)
class Fact:
    """What stands for a tensor, as a function of the right ones."""

    rank: int
    kind: str
    words: str
    predict: Callable[[Tensors], Array]


def facts(
    name: str, right: Tensors, got: Array, tolerance: Array, digits: int
) -> Iterator[Fact]:
    """From the plainest: each predicts the tensor from the right ones.

    Args:
        name: Of the tensor.
        right: All right ones.
        got: What came back.
        tolerance: How far each element may be off.
        digits: Of the precision under test.
    """
    value = right[name]
    yield Fact(0, "zero", f"{name} is zero everywhere", lambda r: np.zeros_like(r[name]))
    yield from _factors(name, right, got, tolerance)
    for other, array in right.items():
        if other != name and array.shape == value.shape:
            words = f"{name} has the values of {other}"
            yield Fact(1, "swapped", words, lambda r, o=other: r[o])
            words = f"{other} is added to {name}"
            yield Fact(4, "swapped", words, lambda r, o=other: r[name] + r[o])
    for rank, kind, text, form in forms(value, digits):
        if kind not in ("factor left out", "value", "narrow") or "absolute" in text:
            words = text.format(name)
            yield Fact(rank - 3, kind, words, lambda r, f=form: f(r[name]))
    yield from _elementwise(name, value, got, tolerance)
    yield from _regions(name, value, got, tolerance)
    for narrower, precision in PRECISIONS.items():
        if precision.digits < digits:
            words = f"{name} is rounded to {narrower}"
            yield Fact(3, "narrow", words, lambda r, p=precision: p.round(r[name]))


def _factors(name: str, right: Tensors, got: Array, tolerance: Array) -> Iterator[Fact]:
    value = right[name]
    factor = fitted(value, got, tolerance)
    if factor is None or factor == 1:
        return
    lengths = {n for array in right.values() for n in (*array.shape, array.size)}
    for exact, words in written(factor, lengths, 1e-3):
        said = f"{name} is the right one {words}"
        if exact == -1:
            said = f"{name} has the wrong sign"
        elif exact == 2:
            said = f"{name} is counted twice"
        if exact:
            yield Fact(1, "factor", said, lambda r, c=exact: r[name] * c)
    if value.size > 2:
        said = f"{name} is the right one multiplied by {factored(factor)}"
        yield Fact(3, "factor", said, lambda r, c=factor: r[name] * c)


def fitted(value: Array, got: Array, tolerance: Array) -> float | None:
    """The factor that fits best, by least squares weighted with the tolerance."""
    w = weights(tolerance, value)
    with np.errstate(all="ignore"):
        norm = float(np.sum((value * w) ** 2))
        return float(np.sum(got * w * value * w)) / norm if 0 < norm < np.inf else None


def weights(tolerance: Array, value: Array) -> Array:
    """One over how far each element may be off; 0 where nothing is known."""
    size = np.abs(value).astype(np.float64)
    largest = np.max(size, initial=0.0, where=np.isfinite(size))
    least = max(1e-18 * float(largest), 1e-290)
    with np.errstate(all="ignore"):
        w = 1 / np.maximum(tolerance, least)
    return np.where(np.isfinite(tolerance) & np.isfinite(size), w, 0.0)


def _elementwise(name: str, value: Array, got: Array, tolerance: Array) -> Iterator[Fact]:
    """Flushed to zero, or clipped."""
    with np.errstate(invalid="ignore"):
        bad = ~(np.abs(got - value) <= tolerance)
    if not bad.any() or bad.all():
        if not bad.any() or np.ptp(np.abs(got)) > 0:
            return
    size, here = np.abs(value), np.abs(got[bad])
    kept = size[~bad & (got != 0)]
    if not here.any() and (not kept.size or size[bad].max() <= kept.min()):
        bound = size[bad].max()
        words = f"elements of {name} up to {number(float(bound))} are zero"
        yield Fact(3, "flushed", words, lambda r: np.where(np.abs(r[name]) <= bound, 0, r[name]))
    top = here.max(initial=0.0)
    if top > 0 and here.min(initial=np.inf) == top and (size[bad] > top).all():
        words = f"{name} is clipped to [-{number(float(top))}, {number(float(top))}]"
        yield Fact(2, "clipped", words, lambda r: np.clip(r[name], -top, top))


def _regions(name: str, value: Array, got: Array, tolerance: Array) -> Iterator[Fact]:
    """What is wrong in a part alone, if it is filled with something known."""
    with np.errstate(invalid="ignore"):
        bad = ~(np.abs(got - value) <= tolerance)
    region, where = region_of(bad)
    if not where:
        return
    filled = got[region]
    inside = value[region]
    found = [
        ("is zero", np.zeros_like(inside)),
        ("is counted twice", 2 * inside),
        ("has the wrong sign", -inside),
        ("is halved", inside / 2),
    ]
    for text, fill in found:
        if (np.abs(filled - fill) <= tolerance[region] + 1e-3 * np.abs(fill)).all():
            words = f"{where} of {name} {text}"
            share = {"is zero": 0.0, "is counted twice": 2.0, "is halved": 0.5}
            c = share.get(text, -1.0)
            yield Fact(1, "region", words, lambda r, c=c: np.where(region, c * r[name], r[name]))
            return
    factor = fitted(inside, filled, tolerance[region])
    if factor is not None:
        words = f"{where} of {name} is multiplied by {number(factor)}"
        yield Fact(2, "region", words, lambda r: np.where(region, factor * r[name], r[name]))


def region_of(bad: Mask) -> tuple[Mask, str]:
    """The smallest box of slices around what is wrong, if nearly all in it is.

    Returns:
        The box, and its name; "" where there is none or it is the whole tensor.
    """
    count = int(bad.sum())
    none = np.zeros_like(bad)
    if not count or count == bad.size:
        return none, ""
    if count == 1:
        at = ", ".join(str(int(i)) for i in np.argwhere(bad)[0])
        last = bad.reshape(-1)[-1]
        return bad, "the last element" if last else f"the element [{at}]"
    lines, named = [], []
    for axis in range(bad.ndim):
        rest = tuple(i for i in range(bad.ndim) if i != axis)
        wrong = bad.any(rest)
        lines.append(wrong)
        if not wrong.all():
            named.append(_named(wrong, axis, bad.ndim))
    box = np.ones_like(bad)
    for axis, wrong in enumerate(lines):
        box &= wrong.reshape([-1 if i == axis else 1 for i in range(bad.ndim)])
    if not named or count < 0.9 * box.sum():
        return none, ""
    return box, " and ".join(named)


def _named(wrong: Mask, axis: int, ndim: int) -> str:
    """Which places of an axis: one, a tail, the last of every block."""
    n, at = len(wrong), np.flatnonzero(wrong)
    along = f" along axis {axis}" if ndim > 1 else ""
    if len(at) == 1:
        i = int(at[0])
        block = next((b for b in BLOCKS if i and i == n - 1 and i % b == 0), 0)
        tail = f", the tail after blocks of {block}," if block else ""
        place = "the last slice" if i == n - 1 else f"slice {i}"
        return f"{place} of {n}{along}{tail}"
    if len(at) == n - at[0]:
        start = int(at[0])
        block = next((b for b in BLOCKS if start % b == 0 and n - start <= b), 0)
        tail = f", the tail after blocks of {block}," if block and n % block else ""
        return f"the last {len(at)} of {n}{along}{tail}"
    if at[-1] == len(at) - 1:
        return f"the first {len(at)} of {n}{along}"
    steps = np.diff(at)
    if len(steps) > 1 and (steps == steps[0]).all():
        return f"every {int(steps[0])}th of {n}{along}, from {int(at[0])},"
    return f"slices {', '.join(map(str, at[:4]))}{', ...' if len(at) > 4 else ''} of {n}{along}"


def narrowed(value: Array, got: Array, tolerance: Array, digits: int) -> str:
    """The narrower type whose roundings the errors are as large as; "" of none.

    Args:
        value: The right tensor.
        got: What came back.
        tolerance: How far each element may be off by roundings of the right type.
        digits: Of that.
    """
    with np.errstate(all="ignore"):
        ratios = np.abs(got - value) / tolerance
    ratios = ratios[np.isfinite(ratios)].astype(np.float64)
    if not ratios.size:
        return ""
    for name, precision in PRECISIONS.items():
        if precision.digits < digits:
            reach = ratios.max() * 2.0 ** (precision.digits - digits)
            if 2e-4 <= reach <= 1:
                return name
    return ""


def common(
    name: str, value: Array, got: Array, tolerance: Array, along: Mapping[str, Array]
) -> str:
    """What the wrong elements have in common, where nothing explains them.

    Args:
        name: Of the tensor.
        value: The right one.
        got: What came back.
        tolerance: How far each element may be off.
        along: Other tensors of the same shape by name: an input, a cotangent.
    """
    with np.errstate(invalid="ignore"):
        bad = ~(np.abs(got - value) <= tolerance)
    count, size = int(bad.sum()), bad.size
    if not count:
        return ""
    share = f"{count} of {size} elements of {name} are wrong"
    _, where = region_of(bad)
    if where:
        return f"{share}: {where.rstrip(',')}"
    best = _split(bad, along) if count < size else None
    if best:
        return f"{share}: {best}"
    error = np.abs(got - value).astype(np.float64)
    if size >= 16 and np.isfinite(error).all():
        for other, array in {**along, "the right gradient": value}.items():
            seen = np.abs(array).astype(np.float64)
            if np.ptp(seen) > 0 and np.ptp(error) > 0:
                rank = np.corrcoef(_ranks(seen), _ranks(error))[0, 1]
                if rank > 0.9:
                    return f"{share}; the error follows the size of {other}"
    return share


def _ranks(v: Array) -> Array:
    return np.argsort(np.argsort(v, axis=None))


def _split(bad: Mask, along: Mapping[str, Array]) -> str:
    """The one threshold that tells wrong from right elements apart."""
    flat = bad.ravel()
    for other, array in along.items():
        for text, seen in ((other, array), (f"|{other}|", np.abs(array))):
            v = np.asarray(seen, np.float64).ravel()
            low, high = v[~flat], v[flat]
            if low.size < 2 or high.size < 2:
                continue
            for sign, worded in ((1, "at least"), (-1, "at most")):
                edge = (sign * high).min()
                if (sign * low).max() < edge:
                    bound = sign * edge
                    if bound * sign > 0 >= (sign * low).max() and text == other:
                        return f"those where {other} is {'positive' if sign > 0 else 'negative'}"
                    return f"those where {text} is {worded} {number(float(bound))}"
    return ""
