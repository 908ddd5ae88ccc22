"""How far rounding moves a result, measured: the graph evaluated with perturbations.

The running error of harness/judging/rounding.py adds magnitudes, and knows nothing of
signs that cancel: in a deep graph it grows with every matrix product, until it says
nothing. Here the graph is evaluated in the wide type, each primitive's result off by
its own rounding times a random number; the results' deviations are the *spread*. Up to
one unit in the last place, which is two roundoffs: that is what libraries promise of
exp or log (SLEEF's u10, the tables of the CUDA programming guide).

Each evaluation is paired with its mirror image (all perturbations negated), and the
perturbations are as large as the judge allows, `limit` times one rounding. Half the
difference of a pair is the first-order picture; half the sum, less the unperturbed
result, is what this picture leaves out: curvature, a branch that flips, a denominator
that is rounding error itself. Where the second is not small against the first, an rms
of a few draws means nothing, and the spread is infinite: it accuses nobody.

Sources: Vignes, A stochastic arithmetic for reliable scientific computation, 1993;
Parker, Monte Carlo arithmetic, 1997; Higham and Mary, A new approach to probabilistic
rounding error analysis, 2019. Mirrored pairs are the antithetic variates of Hammersley
and Morton, 1956.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.judging.centring import exposed
from harness.judging.overflow import Risk, risks
from harness.judging.rounding import Error, Errors, local_errors
from impls.graph import Node

Array = NDArray[Any]

#: Pairs of evaluations. Of eight, the rms is within a factor of 2 of the true one in
#: 99 of 100 cases (chi-squared), which is little beside the limit of 16 and more.
PAIRS = 8
#: The first-order picture holds where what it leaves out is at most this share of it.
CURVED = 0.25
#: Roundoffs that one operation may be off by: a unit in the last place.
UNIT = 2.0
#: A range so near to its end that overflow must be looked at element by element.
NEAR = 1 / 16


def spread(
    nodes: Mapping[str, Node],
    order: Sequence[Node],
    found: Errors,
    *,
    seen: bool = False,
) -> dict[str, Error]:
    """The radius of each tensor that perturbed evaluations find.

    Infinite where the spread may not accuse: where the first-order picture fails,
    overflow cannot be ruled out, or a centred value is mostly cancelled. It costs
    2 * PAIRS evaluations, and is the same every time. Where losses are `seen`, as in
    `imprecision`, no draw is near zero: what is known to be lost is no matter of luck.
    """
    draws = _Draws(found, order, nodes.values(), seen)
    rng = np.random.default_rng(0)
    with np.errstate(all="ignore"):
        for _ in range(PAIRS):
            draws.evaluate(rng)
        unknown = exposed(order)
        return {
            name: np.where(unknown.get(node, False), np.inf, draws.radius(node))
            for name, node in nodes.items()
        }


@dataclass
class _Moments:
    """Sums over the pairs: squares of twice a tensor's odd and even deviations.

    Each element is measured in units of its first odd deviation, so that no square
    underflows. np.hypot would need no unit, but takes six times as long.
    """

    odd: Any = 0.0
    even: Any = 0.0
    unit: Any = None

    def add(self, up: Array, down: Array) -> None:
        """The deviations of a pair; `up` is overwritten."""
        even = up + down
        up -= down
        if self.unit is None:
            first = np.abs(up)
            # Of a first 0 nothing is known: what follows may become infinite here.
            self.unit = np.where(first > 0, first, 1e-150)
        up /= self.unit
        up *= up
        even /= self.unit
        even *= even
        self.odd, self.even = self.odd + up, self.even + even

    def norms(self) -> tuple[Any, Any]:
        """Root mean squares of the odd and of the even deviations."""
        if self.unit is None:
            return 0.0, 0.0
        scale = self.unit / (2 * PAIRS**0.5)
        return scale * np.sqrt(self.odd), scale * np.sqrt(self.even)


class _Draws:
    """Pairs of perturbed evaluations, and what they leave of each tensor."""

    def __init__(
        self, found: Errors, order: Sequence[Node], wanted: Iterable[Node], seen: bool
    ) -> None:
        self.found, self.order, self.seen = found, order, seen
        self.own = local_errors(found)
        self.widths = {
            node: (2 * UNIT * found.reach) * own
            for node, own in self.own.items()
            if own is not None and node.value.dtype.kind == "f"
        }
        self.moments = {node: _Moments() for node in wanted}
        self.hot = any(map(self._near_the_end, order))
        self.largest: dict[Node, Error] = {}
        last_use = {s: node for node in order for s in node.inputs}
        self.last: dict[Node, list[Node]] = {node: [] for node in order}
        for source, node in last_use.items():
            self.last[node].append(source)

    def _near_the_end(self, node: Node) -> bool:
        """Whether a node's terms come near the largest number."""
        size, own = self.found.sizes[node], self.own[node]
        top = NEAR * self.found.arithmetic.step.largest
        if not size.size:
            return False
        return not size.max() < top or (own is not None and not own.max() < top)

    def evaluate(self, rng: np.random.Generator) -> None:
        """One pair: all perturbations, and all negated."""
        values: dict[Node, tuple[Array, Array]] = {}
        for node in self.order:
            values[node] = self._pair(node, values, rng)
            if node in self.moments:
                self._add(node, *values[node])
            if self.hot:
                self._keep_largest(node, *values[node])
            for source in self.last[node]:
                del values[source]

    def _pair(
        self, node: Node, values: Mapping[Node, tuple[Array, Array]], rng: Any
    ) -> tuple[Array, Array]:
        if node.primitive is None:
            plus = minus = node.value
        else:
            given = [values[source] for source in node.inputs]
            if self.own[node] is None and all(up is down for up, down in given):
                plus = minus = node.value  # nothing behind it is rounded
            else:
                plus = node.primitive.compute(*(v for v, _ in given), **node.attributes)
                minus = node.primitive.compute(
                    *(v for _, v in given), **node.attributes
                )
                plus, minus = np.asarray(plus), np.asarray(minus)
        if node not in self.widths:
            return plus, minus
        width = self.widths[node]
        noise = rng.random(width.shape, dtype=np.float32)
        noise -= 0.5
        if self.seen:
            noise = (noise + np.copysign(np.float32(0.5), noise)) / 2
        moved = np.asarray(width * noise)
        lower = minus - moved
        fits = moved.shape == plus.shape and moved.dtype == plus.dtype
        upper = np.add(plus, moved, out=moved) if fits else plus + moved
        return self._within(upper), self._within(lower)

    def _within(self, value: Array) -> Array:
        """No rounding of a finite number leads beyond the largest one."""
        if not self.hot:
            return value
        top = self.found.arithmetic.step.largest
        clipped: Array = np.where(np.isinf(value), value, np.clip(value, -top, top))
        return clipped

    def _add(self, node: Node, plus: Array, minus: Array) -> None:
        if node.value.dtype.kind != "f" or plus is minus:
            return
        up = (plus - node.value).astype(np.float64, copy=False)
        down = (minus - node.value).astype(np.float64, copy=False)
        self.moments[node].add(up, down)

    def _keep_largest(self, node: Node, plus: Array, minus: Array) -> None:
        if plus is minus:
            largest: Error = np.zeros(node.shape)
        elif node.value.dtype.kind != "f":  # a comparison, an index: the same or not
            largest = ((plus != node.value) | (minus != node.value)).astype(np.float64)
        else:
            gap = np.maximum(np.abs(plus - node.value), np.abs(minus - node.value))
            largest = np.where(np.isinf(node.value), 0.0, gap.astype(np.float64))
        kept = self.largest.get(node)
        self.largest[node] = largest if kept is None else np.maximum(kept, largest)

    def radius(self, node: Node) -> Error:
        """Root mean square of deviations; infinite where it may not accuse."""
        odd, even = self.moments[node].norms()
        straight = (even <= CURVED * odd) & np.isfinite(node.value)
        radius = np.where(straight, odd / self.found.limit, np.inf)
        if self.hot and node in self.risks:
            risk = self.risks[node]
            radius = np.where(risk.infinite | risk.undefined, np.inf, radius)
        return np.asarray(np.broadcast_to(radius, node.shape), dtype=np.float64)

    @functools.cached_property
    def risks(self) -> dict[Node, Risk]:
        """Where the draws leave it open whether something overflows."""
        errors = {
            node: gap / self.found.reach
            if own is None
            else np.maximum(gap / self.found.reach, own)
            for node, gap in self.largest.items()
            for own in (self.own[node],)
        }
        return risks(self.order, replace(self.found, errors=errors))
