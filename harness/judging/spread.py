"""How far rounding moves a result, measured: the graph evaluated with perturbations.

The running error of harness/judging/rounding adds magnitudes, and knows nothing of
signs that cancel: in a deep graph it grows with every matrix product, until it says
nothing. Here the graph is evaluated in the wide type, each primitive's result off by
its own rounding times a random number (harness/judging/draws.py); the results'
deviations are the *spread*.

Each evaluation is paired with its mirror image (all perturbations negated), and the
perturbations are as large as the judge allows, `limit` times one rounding. Half the
difference of a pair is the first-order picture. What this picture leaves out is half
the sum, less the unperturbed result: curvature, a comparison that flips, a denominator
that is rounding error itself; and by what one pair's difference shrinks less than its
perturbations do: something saturates, such as a rounding error over its own size. Where
either is not small against the first, an rms of a few draws means nothing, and the
spread is infinite: it accuses nobody.

Sources: Vignes, A stochastic arithmetic for reliable scientific computation, 1993;
Parker, Monte Carlo arithmetic, 1997; Higham and Mary, A new approach to probabilistic
rounding error analysis, 2019. Mirrored pairs are the antithetic variates of Hammersley
and Morton, 1956.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradwatch.harness.judging.draws import Draws, Pair, halves
from gradwatch.harness.judging.excuses.overflow import risks
from gradwatch.harness.judging.rounding.errors import Error, Errors, zeros
from gradwatch.harness.judging.rounding.thresholds import SMALL
from gradwatch.impls.graph import Node

#: Pairs of evaluations. Of eight, the rms is within a factor of 2 of the true one in
#: 99 of 100 cases (chi-squared), which is little beside the limit of 16 and more.
PAIRS = 8
#: The first-order picture holds where what it leaves out is at most this share of it.
CURVED = SMALL
#: The first pair once more, with perturbations of this size. Smaller ones would be lost
#: in the roundings of the wide type, where that is no wider than float64.
AGAIN = SMALL


def spread(
    nodes: Mapping[str, Node],
    order: Sequence[Node],
    errors: Errors,
    *,
    beside: Errors | None = None,
    again: bool = False,
) -> dict[str, Error]:
    """The radius of each tensor that perturbed evaluations find.

    Infinite where the spread may not accuse: where the first-order picture fails, or
    overflow cannot be ruled out. It costs 2 * (PAIRS + 1) evaluations, and 2 * PILOTS
    of what choices depend on, and is the same every time. With errors `beside` these it
    is the radius of what these are more, as of what `imprecision` has seen to be lost:
    no draw of it is near zero. `again` rounds a product of matrices for each use.
    """
    draws = Draws(errors, order, beside=beside, again=again)
    moments = {node: _Moments(node) for node in nodes.values()}
    with np.errstate(all="ignore"):
        for values in draws.pairs(PAIRS, moments):
            for node, moment in moments.items():
                moment.add(values[node])
        smaller = draws.pair(np.random.default_rng(0), moments, AGAIN, together=True)
        unknown = overflowing(draws)
        floor = errors.arithmetic.step.floor
        return {
            name: np.where(
                unknown.get(node, False),
                np.inf,
                # Beside larger perturbations underflow is lost in the wide type.
                np.maximum(
                    moments[node].radius(smaller[node], draws.scale * errors.limit),
                    np.where(node.value != 0, floor, 0.0),
                ),
            )
            for name, node in nodes.items()
        }


def overflowing(draws: Draws) -> dict[Node, Any]:
    """Elements that overflow may reach, though no draw has shown it.

    Sums of values do on the way, and what is multiplied by zero; what rounding carries
    beyond the range is infinite in the draws.
    """
    if not draws.hot:
        return {}
    sizes = draws.errors.sizes
    own = {n: zeros(sizes[n]) if e is None else e for n, e in draws.own.items()}
    found = risks(draws.order, replace(draws.errors, errors=own))
    return {node: risk.infinite | risk.undefined for node, risk in found.items()}


@dataclass
class _Moments:
    """Sums over the pairs of a tensor's deviations, squared, and the first of them.

    Each element is measured in units of its first odd deviation, or of the tensor's
    largest where that is 0, so that no square underflows. np.hypot would need no unit,
    but takes six times as long.

    `odd` are squares of half the differences of the pairs, the first-order picture;
    `even` those of what the mirror images have in common.
    """

    node: Node
    odd: Any = None
    even: Any = None
    first: Any = None
    unit: Any = None

    def add(self, pair: Pair) -> None:
        """One pair more."""
        moved = halves(self.node, pair)
        if moved is None:
            return
        if self.unit is None:
            self.first, size = moved[0], np.abs(moved[0])
            largest = np.max(size, initial=0.0, where=np.isfinite(size))
            self.unit = np.where(size > 0, size, largest or 1.0)
        odd, even = (np.square(part / self.unit) for part in moved)
        self.odd = odd if self.odd is None else self.odd + odd
        self.even = even if self.even is None else self.even + even

    def radius(self, again: Pair, limit: float) -> Error:
        """Root mean square of the deviations; infinite where the picture fails.

        `again` is the first pair once more, with perturbations of size `AGAIN`; the
        others were `limit` radii large.
        """
        shape, moved = self.node.shape, halves(self.node, again)
        if self.unit is None or moved is None:
            return np.where(np.isfinite(self.node.value), 0.0, np.inf)
        scale = self.unit / PAIRS**0.5
        odd, even = scale * np.sqrt(self.odd), scale * np.sqrt(self.even)
        bent = np.abs(moved[0] / AGAIN - self.first)
        straight = (even <= CURVED * odd) & (bent <= CURVED * odd)
        straight &= np.isfinite(self.node.value)
        radius = np.where(straight, odd / limit, np.inf)
        return np.asarray(np.broadcast_to(radius, shape), dtype=np.float64)
