"""Compares a tensor with the right answer, element by element: here verdicts are made.

Each element's error is divided by its rounding radius. A ratio up to the limit is
rounding, a larger one is a wrong gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.reference import Truth
from gradwatch.harness.judging.rounding.errors import everywhere, largest
from gradwatch.harness.judging.rounding.thresholds import MOST, SAYS_NOTHING
from gradwatch.harness.judging.whole import Whole

Array = NDArray[Any]


def judge_indices(truth: Truth, got: Array, limit: float, dtype: str) -> Judgement:
    """Any index of a maximum is right, by whatever convention it was chosen."""
    assert truth.admissible is not None
    axis, right = truth.admissible
    indices = np.expand_dims(got, axis)
    inside = (indices >= 0) & (indices < right.shape[axis]) & (indices == indices // 1)
    places = np.where(inside, indices, 0).astype(np.intp)
    good = (inside & np.take_along_axis(right, places, axis)).squeeze(axis)
    chosen = replace(truth, value=np.where(good, got, truth.value))
    judgement = judge_numbers(chosen, got, limit, dtype)
    if judgement.verdict == "agree" and not np.array_equal(got, truth.value):
        judgement = replace(judgement, verdict="convention")
    return judgement


def judge_numbers(
    truth: Truth,
    got: Array,
    limit: float,
    dtype: str,
    by_spread: NDArray[np.bool_] | None = None,
) -> Judgement:
    """The verdict; of the elements `by_spread` the radius is the spread's."""
    ratios, lost = _ratios(truth, got)
    if not ratios.size:
        message = f"{truth.tensor}: no elements; its shape and dtype are right"
        return Judgement(truth.tensor, "agree", 0.0, limit, message=message)
    share = share_of_silent(truth, limit, got)
    worst = np.unravel_index(int(ratios.argmax()), ratios.shape)
    ratio = float(ratios[worst])
    judgement = Judgement(
        truth.tensor,
        _verdict(ratio, lost, share, limit),
        ratio=ratio,
        limit=limit,
        vacuous=share,
        worst_index=tuple(int(i) for i in worst),
        got=float(got[worst]),
        expected=float(truth.value[worst]),
        radius=float(truth.radius[worst]),
        radius_kind="spread" if by_spread is not None and by_spread[worst] else "bound",
    )
    return judgement.changed(message=sentence(judgement, dtype))


def judge_whole(judgement: Judgement, whole: Whole, got: Array) -> Judgement:
    """The verdict on a tensor whose elements say nothing, by its norm and projection.

    It agrees where it would have been seen to be half too large. What overflows is left
    to the elements.
    """
    ratio, kind, part, at = whole.worst(got)
    if ratio <= whole.limit and (seen := whole.least_seen) > MOST:
        only = f"; only an error of {seen:.0%} as a whole is seen" if seen < 1 else ""
        return replace(judgement, message=judgement.message + only)
    verdict = "agree" if ratio <= whole.limit else "disagree"
    moved = float((part.norm if kind == "norm" else part.projection).flat[at])
    where = "" if part.axis is None else f", slice {at} along axis {part.axis}"
    wrong = "is off" if kind == "norm" else "is too large or too small"
    off = ratio * moved if ratio else 0.0  # nothing is known of what may move for ever

    def share(amount: float) -> str:
        """Of the norm of the right tensor or slice, which may be zero."""
        size = float(part.size.flat[at])
        return f"{amount / size:.2%}" if size else f"{amount:.3g}"

    return replace(
        judgement,
        verdict=verdict if ratio < np.inf else "nonfinite",
        ratio=ratio,
        limit=whole.limit,
        worst_index=(),
        got=off,
        expected=0.0,
        radius=moved,
        radius_kind=kind,
        message=(
            f"{judgement.tensor}{where} {wrong} by {share(off)} as a whole, "
            f"{ratio:.3g} times what one rounding at each step does "
            f"({share(moved)}), and up to {whole.limit:.3g} times is allowed"
        ),
    )


def _ratios(truth: Truth, got: Array) -> tuple[NDArray[np.float64], bool]:
    """Error over radius, and whether something is infinite where it may not be, or not.

    Where an infinity is due, nothing else is right; where nothing is known, all is.
    """
    with np.errstate(all="ignore"):
        error = np.abs((got - truth.value).astype(np.float64))
        ratios: NDArray[np.float64] = error / truth.radius
        if ratios.size and largest(ratios) < np.inf:  # false for nan
            return ratios, False
        due = truth.infinite
        judged = np.isfinite(truth.value) & np.isfinite(truth.radius) & ~due
        right = np.copysign(np.inf, truth.value)
        lost = (judged & ~np.isfinite(got)) | (due & (got != right))
        ratios = np.where(error == 0, 0.0, ratios)
    return np.where(lost, np.inf, np.where(judged, ratios, 0.0)), bool(lost.any())


def informative(
    truth: Truth, limit: float, share: float = SAYS_NOTHING
) -> NDArray[np.bool_]:
    """Where what is allowed is little: beside the value, or beside all numbers given.

    The second says something of numbers that underflow if others do not, or where zero
    is due; a tensor of nothing else may have any sign. So does an infinity that is due.
    """
    with np.errstate(all="ignore"):
        size = np.abs(truth.value.astype(np.float64))
        enough: NDArray[np.bool_] = limit * truth.radius <= share * size
        if everywhere(enough) and size.size and largest(size) < np.inf:
            return enough
        small, there = truth.radius <= truth.zero, size > truth.nothing
        if not (enough & there).any():
            small = small & ~there
        enough = (enough | small) & (size < np.inf)
        return enough | truth.infinite


def share_of_silent(truth: Truth, limit: float, got: Array | None = None) -> float:
    """The share of the elements of which the comparison says nothing.

    All of them, where some are not zero and nothing is said of these: the other sign
    would pass as well.
    """
    says = informative(truth, limit)
    if everywhere(says):
        return 0.0
    there = np.abs(truth.value) > truth.nothing
    if there.any() and not (says & there).any():
        return 1.0
    if got is not None:  # a nan that is due has come; else nothing is judged there
        says |= np.isnan(truth.value) & np.isnan(got)
    return float(1 - np.count_nonzero(says) / says.size)


def _verdict(ratio: float, lost: bool, share: float, limit: float) -> str:
    if lost:
        return "nonfinite"
    if ratio > limit:
        return "disagree"
    return "vacuous" if share >= MOST else "agree"


def sentence(j: Judgement, dtype: str) -> str:
    """The whole story in one sentence."""
    where = f"{j.tensor}[{', '.join(map(str, j.worst_index))}]"
    digits = 17 if dtype == "float64" else 9  # what tells two neighbours apart
    numbers = f"got {j.got:.{digits}g}, expected {j.expected:.{digits}g}"
    if j.verdict == "nonfinite":
        trap = j.expected == 0 and np.isnan(j.got)
        why = (
            "; nan where the gradient is zero: 0 times an infinite slope"
            if trap
            else ""
        )
        return f"{where}: {numbers}{why}"
    if j.verdict == "vacuous":
        return (
            f"{j.tensor}: rounding in {dtype} may change {j.vacuous:.0%} of the "
            "elements by more than a tenth, so that agreement shows nothing"
        )
    if j.radius == 0 and j.ratio > 0:
        return f"{where}: {numbers}, and no rounding is involved"
    if j.radius_kind == "least":
        return (
            f"{where}: {numbers}; agrees, seen without its rounding radius: the error "
            f"is {j.ratio:.3g} times {j.radius:.3g}, the least that the radius can be, "
            f"and {j.limit:.3g} times the whole radius is allowed"
        )
    return (
        f"{where}: {numbers}; the error is {j.ratio:.3g} times the rounding radius "
        f"{j.radius:.3g} (what {dtype} arithmetic alone may be off by; it is the "
        f"{j.radius_kind}), and up to {j.limit:.3g} times is allowed"
    )
