"""How far rounding moves a result, measured by perturbed evaluations (draws.py).

**An element.** Half the difference of a mirrored pair is its linear part. Half the sum,
less the unperturbed result, is the rest (curvature, a comparison that flips); and where
a function saturates, a difference shrinks less than its perturbations do. Where the
rest is not small, or the difference does not shrink in proportion, an rms of a few
draws means nothing: the *spread* is infinite.

**A tensor as a whole.** Where the spread says nothing of nearly every element, the
graph is evaluated with one rounding at each step, and how far a tensor is off is
compared with how far these evaluations are: by its norm, and by its projection on the
right tensor; as a whole, and slice by slice along each axis. Where sums are accumulated
in a wider type, their order is no matter; elsewhere the limit grows with their length.
Under the model of rounding errors as independent random numbers, a projection is nearly
normal, and its ratio to the rms of as many evaluations Student's t. A norm exceeds a
multiple of its own rms no more often: of all normal vectors those of one dimension have
the heaviest tail.

Sources: Vignes, A stochastic arithmetic for reliable scientific computation, 1993;
Parker, Monte Carlo arithmetic, 1997; Higham and Mary, A new approach to probabilistic
rounding error analysis, 2019; Hammersley and Morton, 1956 (mirrored pairs); Student,
The probable error of a mean, 1908; Szekely and Bakirov, Extremal probabilities for
Gaussian quadratic forms, 2003 (norms).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradwatch.harness.judging.draws import Draws, Pair, halves
from gradwatch.harness.judging.excuses.overflow import Peaks, magnitudes, risks
from gradwatch.harness.judging.precisions import Array, Mask
from gradwatch.harness.judging.rounding.analysis import Error, Errors, limit_for
from gradwatch.harness.judging.rounding.thresholds import (
    AS_A_WHOLE,
    FEW_DRAWS,
    MOST,
    SMALL,
    UNIT,
)
from gradwatch.impls.graph import Node, as_array, topological_order

#: Pairs of evaluations. Of eight, the rms is within a factor of 2 of the true one in
#: 99 of 100 cases (chi-squared), which is little beside the limit of 16 and more.
PAIRS, WITHIN = 8, 2.0
#: A deviation counts as linear where the rest is at most this share of its linear part.
CURVED = SMALL
#: A pair once more, with perturbations of this size. Smaller ones would be lost in the
#: roundings of the wide type, where that is no wider than float64.
AGAIN = SMALL
#: Pairs drawn once more, until one shows no further element that is not linear: what a
#: pair moves little looks linear there (one of 15 in rows scaled to one length).
TESTED = 4
#: Pairs of evaluations of honest size, the degrees of freedom of Student's t; `MORE` of
#: them decide from this share of the limit on.
NORMS, MORE = AS_A_WHOLE
LIMIT, CLOSE = AS_A_WHOLE[NORMS], AS_A_WHOLE[MORE] / AS_A_WHOLE[NORMS]
#: The least share of a contested choice: one that is turned, however seldom that is,
#: takes half of what is allowed.
TURNED = 1 / (MOST * LIMIT)
#: Kinds of radii of a tensor as a whole.
WHOLE = ("norm", "projection")
#: The axis of slices of one element; each may be off by LIMIT where a sum by EXCUSED.
EACH = -1
#: An imprecise tensor's largest ratio to evaluations with sums in 16 bits.
EXCUSED = FEW_DRAWS


def spread(
    nodes: Mapping[str, Node],
    order: Sequence[Node],
    errors: Errors,
    *,
    beside: Errors | None = None,
    again: bool = False,
) -> dict[str, Error]:
    """The radius of each tensor, infinite where the spread may not accuse.

    It costs 2 * (PAIRS + 1) to 2 * (PAIRS + TESTED) evaluations, 4 * PILOTS of the
    operands of choices, and is the same every time. With errors `beside` these it is
    the radius of the excess over them. `again` rounds a product for each use.
    """
    moments = {node: _Moments(node) for node in nodes.values()}
    draws = Draws(errors, order, moments, beside=beside, again=again)
    with np.errstate(all="ignore"):
        draws.add_to(moments, PAIRS)
        for number in range(TESTED):
            smaller = draws.pair(number, moments, AGAIN)
            if not sum(m.test(number, smaller[node]) for node, m in moments.items()):
                break
        unknown = overflowing(draws)
        return {
            name: np.where(
                unknown.get(node, False),
                np.inf,
                # Beside larger perturbations underflow is lost in the wide type.
                np.maximum(
                    moments[node].radius(draws.scale * errors.limit),
                    np.where(node.value != 0, errors.arithmetic.step.floor, 0.0),
                ),
            )
            for name, node in nodes.items()
        }


def overflowing(draws: Draws) -> dict[Node, Any]:
    """Masks of elements that overflow may reach, though no draw shows it."""
    if not draws.hot:
        return {}
    sizes = draws.errors.sizes
    own = {n: np.zeros_like(sizes[n]) if e is None else e for n, e in draws.own.items()}
    found = risks(draws.order, replace(draws.errors, errors=draws.errors.errors | own))
    return {node: risk.infinite | risk.undefined for node, risk in found.items()}


@dataclass
class _Moments:
    """Sums over the pairs: squares of the linear parts (`odd`) and rests (`even`).

    In units of an element's first deviation, or of the tensor's largest where that is
    0, so that no square underflows; np.hypot takes six times as long. `first` are the
    linear parts of the pairs to be drawn again, `straight` the linear elements.
    """

    node: Node
    odd: Any = 0.0
    even: Any = 0.0
    first: list[Error] = field(default_factory=list)
    unit: Any = None
    straight: Any = True

    def add(self, *moved: Error) -> None:
        if self.unit is None:
            size = np.abs(moved[0])
            largest = np.max(size, initial=0.0, where=np.isfinite(size))
            self.unit = np.where(size > 0, size, largest or 1.0)
        if len(self.first) < TESTED:
            self.first.append(moved[0])
        odd, even = (np.square(part / self.unit) for part in moved)
        self.odd, self.even = self.odd + odd, self.even + even

    def test(self, number: int, again: Pair) -> int:
        """Count further elements that are not linear in this pair, `AGAIN` as large."""
        moved = halves(self.node, again)
        if self.unit is None or moved is None:
            self.straight = np.isfinite(self.node.value)
            return 0
        most = CURVED**2 * self.odd
        bent = np.square((moved[0] / AGAIN - self.first[number]) / self.unit)
        straight = (self.even <= most) & (PAIRS * bent <= most)
        straight &= np.isfinite(self.node.value)
        found = np.count_nonzero(self.straight & ~straight)
        self.straight &= straight
        return int(found)

    def radius(self, limit: float) -> Error:
        """The root mean square of the deviations; infinite where they are not linear.

        The perturbations were `limit` radii large.
        """
        odd = 0.0 if self.unit is None else self.unit * np.sqrt(self.odd / PAIRS)
        radius = np.where(self.straight, odd / limit, np.inf)
        return as_array(np.broadcast_to(radius, self.node.shape), dtype=np.float64)


@dataclass(frozen=True)
class Part:
    """A tensor (no axis), or its slices along an axis: one number for each.

    `size` are norms of the right tensor; `norm` root mean squares of the norms of the
    deviations, with a bias of the last rounding, infinite where these are not linear;
    `projection` likewise of projections on the right tensor.
    """

    axis: int | None
    size: Error
    norm: Error
    projection: Error


@dataclass(frozen=True)
class Whole:
    """The effect of one rounding at each step on the `known` elements of a tensor.

    `limit` is the largest ratio of an honest tensor. If a tensor is zero in exact
    arithmetic, `terms` is the norm of the sums of its terms' magnitudes; else 0.
    """

    value: Error
    known: Mask
    parts: tuple[Part, ...]
    limit: float = LIMIT
    terms: float = 0.0

    def worst(self, got: Array) -> tuple[float, str, Part, int]:
        """The largest ratio of a tensor's error to that of the evaluations.

        It comes with its kind, part and slice. It is 0 where the evaluations say
        nothing, and infinite where the tensor is not finite.
        """
        found = []
        with np.errstate(all="ignore"):
            error = np.where(self.known, got - self.value, 0.0).astype(np.float64)
            for part in self.parts:
                off = measured(error, self.value, part.axis)
                moved = part.norm, part.projection
                for kind, size, radius in zip(WHOLE, off, moved, strict=True):
                    ratios = np.where(radius > 0, size / radius, 0.0)
                    ratios = np.where(np.isfinite(size), ratios, np.inf)
                    at = int(np.argmax(ratios))
                    found.append((float(ratios.flat[at]), kind, part, at))
        return max(found, key=lambda one: one[0])

    @property
    def least_seen(self) -> float:
        """The least relative error that is seen of a tensor too large or too small."""
        total = self.parts[0]
        with np.errstate(all="ignore"):
            share = self.limit * total.projection / total.size
        return float(np.fmin(share, np.inf))  # of 0 / 0

    def is_sure(self, got: Array, pairs: int) -> bool:
        """Whether more pairs of evaluations would say the same of a tensor."""
        few = WITHIN if pairs < NORMS else 1.0  # their rms may be off so far
        ratio = few * self.worst(got)[0] / self.limit
        if ratio > CLOSE:
            return few == 1 < ratio
        return not MOST / few < self.least_seen <= MOST * few


@np.errstate(all="ignore")
def whole(
    nodes: Mapping[str, Node],
    order: Sequence[Node],
    errors: Errors,
    products: Peaks,
    *,
    again: bool = False,
    pairs: int = NORMS,
) -> dict[str, Whole]:
    """The effect of one rounding at each step on the tensors, as far as it is known.

    Left out are tensors that overflow may reach, and those of which most elements may
    underflow: that is no rounding of a value's own size. It costs 2 * pairs
    evaluations, and is the same every time. `products` are partial products of each
    node; with `again` a product is rounded for each use, and elements are compared.
    """
    draws = Draws(errors, order, once=True, again=again)
    floats = [node for node in nodes.values() if node.value.dtype.kind == "f"]
    kept = {node: _Norms(node, products, pairs, again) for node in floats}
    draws.add_to(kept, pairs, TURNED)
    risky = overflowing(draws)
    alone = 1.0 if errors.arithmetic.has_wide_sums else errors.limit / limit_for(0)
    given = errors.arithmetic.step.roundoff, AS_A_WHOLE.get(pairs, LIMIT) * alone
    return {
        name: kept[node].whole(*given)
        for name, node in nodes.items()
        if node in kept and kept[node].enough and not np.any(risky.get(node, False))
    }


class _Norms:
    """Sums of the squared norms and projections of a tensor's deviations."""

    def __init__(self, node: Node, products: Peaks, pairs: int, each: bool) -> None:
        self.node, self.pairs = node, pairs
        self.known = np.isfinite(node.value) & ~products.underflow(node)
        self.value = np.where(self.known, node.value, 0.0).astype(np.float64)
        axes = None, *(i for i, n in enumerate(node.shape) if n > 1), *[EACH] * each
        self.sums: dict[int | None, Any] = dict.fromkeys(axes, 0.0)

    @property
    def enough(self) -> bool:
        """Whether most elements are known, and every deviation is finite.

        That of an eigenvector is infinite if another eigenvalue is as large.
        """
        finite = all(np.all(np.isfinite(sums)) for sums in self.sums.values())
        return finite and bool(np.count_nonzero(self.known) > self.node.size / 2)

    def add(self, *moved: Error) -> None:
        parts = [np.where(self.known, part, 0.0) for part in moved]
        for axis, sums in self.sums.items():
            squares = [np.square(measured(part, self.value, axis)) for part in parts]
            self.sums[axis] = sums + np.stack(squares)

    def whole(self, roundoff: float, limit: float) -> Whole:
        """The root mean squares, with a unit in the last place, which may be a bias."""
        parts, wide = [], float(np.finfo(self.node.value.dtype).eps) / 2
        own = limit * wide / roundoff
        for axis, sums in self.sums.items():
            size, _ = measured(self.value, self.value, axis)
            odd, even = np.sqrt(sums / self.pairs + np.zeros((2, 2, *size.shape)))
            bias = UNIT * roundoff / limit * size
            rms = np.where(even <= CURVED * odd, odd, np.hypot(odd, even)) + bias
            rms *= LIMIT / EXCUSED if axis == EACH else 1.0
            norm, projection = np.where(even <= odd, rms, np.inf)
            # A value has no known direction if half of it may be the reference's
            # rounding, and none that tells if noise buries it and would hide a zero.
            unknown = size <= UNIT / MOST * own * norm
            unknown |= (limit * size < norm) & (size < limit * projection)
            parts.append(Part(axis, size, norm, np.where(unknown, np.inf, projection)))
        total, beside = parts[0], 0.0
        # A slice within the reference's own rounding is zero in exact arithmetic.
        if total.size <= own * total.norm:
            terms = magnitudes(topological_order([self.node]), lost=True)[self.node]
            there = np.where(self.known, terms, 0.0).astype(np.float64)
            beside = float(np.linalg.norm(there))
        return Whole(self.value, self.known, tuple(parts), limit, beside)


def measured(error: Error, value: Error, axis: int | None) -> tuple[Error, Error]:
    """Norms of an error or its slices, and projections on those of the right tensor."""
    others = tuple(i for i in range(error.ndim) if axis not in (i, EACH))
    size = np.sqrt(np.sum(value * value, axis=others))
    norm = np.sqrt(np.sum(error * error, axis=others))
    along = np.abs(np.sum(error * value, axis=others))
    return norm, np.divide(along, size, out=np.zeros_like(norm), where=size > 0)
