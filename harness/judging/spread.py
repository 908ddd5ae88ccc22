"""How far rounding moves a result, measured: the graph evaluated with perturbations.

In perturbed evaluations (draws.py) the results' deviations are the *spread*. Half the
difference of a mirrored pair is the first-order picture; half its sum, less the
unperturbed result, is what that leaves out (curvature, a comparison that flips), and so
is by what a difference shrinks less than its perturbations do (something saturates).
Where either is not small, an rms of a few draws means nothing: the spread is infinite.

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
    """The radius of each tensor, infinite where the spread may not accuse.

    It costs 2 * (PAIRS + 1) evaluations, and 2 * PILOTS of what choices depend on, and
    is the same every time. With errors `beside` these it is the radius of what these
    are more. `again` rounds a product of matrices for each use.
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
    """Elements that overflow may reach, though no draw shows it: sums on the way."""
    if not draws.hot:
        return {}
    sizes = draws.errors.sizes
    own = {n: zeros(sizes[n]) if e is None else e for n, e in draws.own.items()}
    found = risks(draws.order, replace(draws.errors, errors=own))
    return {node: risk.infinite | risk.undefined for node, risk in found.items()}


@dataclass
class _Moments:
    """Sums over the pairs: squares of half the differences, and of what is common.

    In units of an element's first deviation, or of the tensor's largest where that is
    0, so that no square underflows; np.hypot takes six times as long.
    """

    node: Node
    odd: Any = None
    even: Any = None
    first: Any = None
    unit: Any = None

    def add(self, pair: Pair) -> None:
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
