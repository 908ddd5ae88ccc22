"""Evaluations of a graph in which each primitive is off by its own rounding.

They come in pairs, with all perturbations and with all of them negated. A perturbation
is as large as the judge allows: `limit` times one rounding, times a random number of up
to one unit in the last place, which is two roundoffs: that is what libraries promise of
exp or log (SLEEF's u10, the tables of the CUDA programming guide). Or it is of honest
size: one rounding. Choices stay those of the reference, but where they are contested
(harness/judging/excuses/contested.py).
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradwatch.harness.judging.excuses import contested
from gradwatch.harness.judging.excuses.contested import Array, Mask
from gradwatch.harness.judging.rounding.analysis import ERROR, local_errors
from gradwatch.harness.judging.rounding.errors import (
    Error,
    Errors,
    computed,
    copied,
    largest,
    operation,
)
from gradwatch.harness.judging.rounding.thresholds import SMALL, UNIT
from gradwatch.impls.graph import Node

Pair = tuple[Array, Array]
Generator = np.random.Generator

#: Digits of which a random number for each significand takes no room.
FEW = 11
#: Beside moves: what is linear in one input.
_LINEAR = ("multiply", "divide", "negative", "where", "scatter_add")
#: A range so near to its end that overflow must be looked at element by element. What
#: is below must grow to 16 times itself, and no first-order picture holds so far.
NEAR = SMALL**2


#: Of what is known to be lost, which accuses nobody, the share that is drawn: twice the
#: loss of a sum may be the sum itself, and what is divided by it has no picture there.
DRAWN = SMALL


def halves(node: Node, pair: Pair) -> tuple[Error, Error] | None:
    """Half of what a pair's two values differ by, and what they have in common.

    The second is less the node's own value; None where nothing has moved it.
    """
    if pair[0] is pair[1] or node.value.dtype.kind != "f":
        return None
    with np.errstate(invalid="ignore"):  # what overflows in a draw is infinite
        up, down = ((side - node.value).astype(np.float64, copy=False) for side in pair)
        return np.asarray((up - down) / 2), np.asarray((up + down) / 2)


class Draws:
    """Perturbed evaluations of the nodes of a graph.

    With errors `beside` these, of what they are more alone; `once` with one rounding at
    each step; with `again`, products of matrices are computed again for each use, and
    what is zero goes to no choice.

    Attributes:
        own: What each node's own rounding adds, in E.
        open: Contested elements of each choice; none before `pairs`.
        shares: What the moves of their weights are multiplied by, by default 1.
        hot: Whether some node comes near the largest number: there what is carried
            along may overflow.
    """

    def __init__(
        self,
        errors: Errors,
        order: Sequence[Node],
        *,
        beside: Errors | None = None,
        once: bool = False,
        again: bool = False,
    ) -> None:
        self.errors, self.order, self.seen = errors, order, beside is not None
        self.once, self.scale = once, DRAWN if self.seen else 1.0
        if once:
            self.scale = 1 / (UNIT * errors.limit)
        self.own = local_errors(errors, order)
        known = local_errors(beside, order) if beside is not None else {}
        self.open: Mapping[Node, Mask] = {}
        self.shares: Mapping[Node, Array] = {}
        unit = 2 * UNIT * errors.reach * self.scale
        self._widths = {
            node: unit * (own - less if less is not None else own)
            for node, own in self.own.items()
            for less in [known.get(node)]
            if own is not None and node.value.dtype.kind == "f"
            if less is None or (own != less).any()
        }
        self._choices = frozenset(filter(contested.is_choice, order))
        self.hot = any(map(self._near_the_end, order))
        last_use = {s: node for node in order for s in node.inputs}
        self._again = self._products_used_again() if again else frozenset()
        self._nothing = self._left_out() if again else {}
        self._last: dict[Node, list[Node]] = {node: [] for node in order}
        for source, node in last_use.items():
            self._last[node].append(source)

    def _products_used_again(self) -> frozenset[Node]:
        """Matrix products, and what is linear in one, that are used several times.

        Who computes one again, in another order, rounds it in another way: attention in
        blocks subtracts sum(dy y) where the formula subtracts sum(p dp), dp = dy v (Dao
        and others, FlashAttention, 2022, appendix B.2). So the product is left exact,
        and each use of it is not.
        """
        users = self._uses()
        several = set()
        for node in self.order:
            path = _path_to_product(node, users) if users[node] > 1 else None
            if path and path[0] in self._widths:
                width = self._widths.pop(path[0])
                for source, user in itertools.pairwise(path):
                    width = _scaled(user, source, width)
                self._widths[node] = width + self._widths.get(node, 0.0)
                several.add(node)
        return frozenset(several)

    def _left_out(self) -> dict[Node, Mask]:
        """Where what a choice gets is zero but for the rounding of the wide type.

        So is what a softmax gives back to the shift of its scores, their maximum: one
        formula adds it up, and another leaves it out.
        """
        found = {}
        for node in self.order:
            if operation(node) == "multiply" and contested.is_choice(node.inputs[1]):
                wide = self.errors.errors[node] * np.finfo(node.dtype).eps
                nothing = (node.value != 0) & (np.abs(node.value) <= wide)
                if nothing.any():
                    found[node] = nothing
        return found

    def _uses(self) -> Counter[Node]:
        """How often each node is used, but for shifts: nothing is seen of their error.

        Rounded apart, a score and its row's maximum scale all terms of a sum, by so
        much that no draw is near the first-order picture.
        """
        uses = Counter[Node]()
        for node in reversed(self.order):
            seen = node not in self.errors.exact and uses.get(node) != 0
            for source in node.inputs:
                uses[source] += seen
        return uses

    def _near_the_end(self, node: Node) -> bool:
        size, own = self.errors.sizes[node], self.own[node]
        top = NEAR * self.errors.arithmetic.step.largest
        if not size.size:
            return False
        return not largest(size) < top or (own is not None and not largest(own) < top)

    def _contest(self, least: float) -> None:
        """Find which choices rounding may turn: from here on their weights move.

        Three pairs of draws of what choices depend on show how far the judge allows
        each gap to move. Of roundings of honest size a weight moves by the root of its
        largest chance to be turned, and by the `least` share.
        """
        choices = [node for node in self.order if node in self._choices]
        if not choices:
            return
        draws = Draws(self.errors, contested.behind(choices), once=self.once)
        sources = {source for node in choices for source in node.inputs}
        count = 2 * contested.PILOTS
        moved: dict[Node, Any] = dict.fromkeys(choices, 0.0)
        for i in range(contested.PILOTS):
            values = draws.pair(np.random.default_rng(i), sources)
            for node in choices:
                own = contested.gap(node, *(s.value for s in node.inputs))
                for side in zip(*(values[s] for s in node.inputs), strict=True):
                    change = (contested.gap(node, *side) - own).astype(np.float64)
                    moved[node] = np.hypot(moved[node], change / count**0.5)
        self.open = {
            n: contested.contested(n, m / draws.scale) for n, m in moved.items()
        }
        if self.once:
            chances = ((n, contested.chances(n, m)) for n, m in moved.items())
            self.shares = {n: np.maximum(share, least) for n, share in chances}

    def pairs(
        self, count: int, keep: Collection[Node], least: float = 0.0
    ) -> Iterator[dict[Node, Pair]]:
        """So many pairs of evaluations; choices are contested.

        In one of four all contested weights move to the same side; of honest size every
        other one rounds values with the same digits alike.
        """
        self._contest(least)
        for i in range(count):
            together, alike = i % contested.ALIKE == 0, self.once and i % 2 == 1
            rng = np.random.default_rng(i)
            yield self.pair(rng, keep, together=together, alike=alike)

    @np.errstate(all="ignore")
    def pair(
        self,
        rng: Generator,
        keep: Collection[Node],
        share: float = 1.0,
        *,
        together: bool = False,
        alike: bool = False,
    ) -> dict[Node, Pair]:
        """Values of the nodes to keep, with all perturbations and all negated.

        Args:
            rng: Where the perturbations come from.
            keep: Nodes of the graph.
            share: What all of them are multiplied by.
            together: Move all contested weights of a tensor to the same side, and all
                that it is known to lose.
            alike: Values with the same digits are rounded alike, as in any arithmetic.
        """
        values: dict[Node, Pair] = {}
        turned: dict[tuple[Node, ...], Array] = {}
        again = self._again.difference(keep)
        noise = functools.partial(self._noise, rng=rng, together=together, alike=alike)
        moved = functools.partial(self._moved, share=share, noise=noise)
        for node in self.order:
            if node in self._choices:
                values[node] = self._weights(node, rng, share, together, turned)
            else:
                given = [values[s] for s in node.inputs]
                for i, source in enumerate(node.inputs if again else ()):
                    if source in again:
                        given[i] = moved(source, given[i])
                values[node] = self._computed(node, given)
            if self.hot:
                plus, minus = values[node]
                values[node] = self._overflown(plus), self._overflown(minus)
            if node not in self._choices and node not in again:
                values[node] = moved(node, values[node])
            if node in self._nothing:
                still = self._nothing[node], node.value
                plus, minus = values[node]
                values[node] = np.where(*still, plus), np.where(*still, minus)
            for source in self._last[node]:
                if source not in keep:
                    del values[source]
        return values

    def _computed(self, node: Node, given: Sequence[Pair]) -> Pair:
        for up, down in given:
            if up is not down:
                break
        else:
            return node.value, node.value  # nothing behind it is rounded
        plus, minus = zip(*given, strict=True)
        return computed(node, *plus), computed(node, *minus)

    def _moved(
        self, node: Node, pair: Pair, share: float, noise: Callable[[Node], Array]
    ) -> Pair:
        """A node's values, off by its own rounding."""
        width = self._widths.get(node)
        if width is None:
            return pair
        plus, minus = pair
        moved = np.asarray((share * width) * noise(node))
        lower = minus - moved
        fits = moved.shape == plus.shape and moved.dtype == plus.dtype
        upper = np.add(plus, moved, out=moved) if fits else plus + moved
        return (
            (self._within(upper), self._within(lower)) if self.hot else (upper, lower)
        )

    def _noise(self, node: Node, rng: Generator, together: bool, alike: bool) -> Array:
        """Random numbers from -1/2 to 1/2, or the outer half of these."""
        if alike:
            noise = self._by_digits(node.value, rng)
        else:
            noise = rng.random(node.shape, dtype=np.float32)
            noise -= 0.5
        if self.seen:  # what is known to be lost is no matter of luck
            noise += np.copysign(np.float32(0.5), noise)
            noise /= 2
            if together:  # nor of one sign here and another there: partial sums
                noise = np.copysign(noise, noise.sum())
        return noise

    def _by_digits(self, value: Array, rng: Generator) -> Array:
        """Random numbers that are the same for the same digits; odd, as rounding is."""
        digits = self.errors.arithmetic.step.digits
        significand = np.where(np.isfinite(value), np.frexp(value)[0], 0.0)
        held = np.rint(np.ldexp(np.abs(significand), digits))
        different, place = 2**digits + 1, held.astype(np.intp)
        if digits > FEW:
            found, place = np.unique(held, return_inverse=True)
            different, place = found.size, place.reshape(held.shape)
        of_each = rng.random(different, dtype=np.float32) - np.float32(0.5)
        noise: Array = np.where(significand < 0, -of_each[place], of_each[place])
        return noise

    def _weights(
        self,
        node: Node,
        rng: Generator,
        share: float,
        together: bool,
        turned: dict[tuple[Node, ...], Array],
    ) -> Pair:
        """Those of the reference, but where a choice is contested.

        What one side of a maximum loses the other one gains.
        """
        mask = self.open.get(node)
        if mask is None or not mask.any():
            return node.value, node.value
        change = turned.get(node.inputs[::-1])
        if change is None:
            moved = contested.turned(node, mask, rng, together=together)
            turns = 1 / contested.TURNS if self.once else self.scale
            change = share * turns * moved * self.shares.get(node, 1.0)
            turned[node.inputs] = -change
        return node.value + change, node.value - change

    def _within(self, value: Array) -> Array:
        """No rounding of a finite number leads beyond the largest one."""
        top = self.errors.arithmetic.step.largest
        clipped: Array = np.where(np.isinf(value), value, np.clip(value, -top, top))
        return clipped

    def _overflown(self, value: Array) -> Array:
        """What the narrow type makes of a value."""
        beyond = np.abs(value) >= self.errors.arithmetic.step.beyond
        return np.where(beyond, np.copysign(np.inf, value), value)


def _path_to_product(node: Node, users: Mapping[Node, int]) -> list[Node] | None:
    """Nodes from a matrix product to this one, each linear in the one before it."""
    name = operation(node)
    if name == "matmul":
        return [node]
    sources = node.inputs[:1] if name == "divide" else node.inputs
    if name not in _LINEAR and (not name or ERROR[name] is not copied):
        return None
    for source in sources:
        path = _path_to_product(source, users) if users[source] == 1 else None
        if path:
            return [*path, node]
    return None


def _scaled(node: Node, source: Node, width: Error) -> Error:
    """What a node makes of a deviation of one input, to which it is linear."""
    choice = operation(node) == "where"
    given = [
        width
        if other is source
        else np.zeros_like(width, shape=other.shape)
        if choice and other.value.dtype.kind == "f"
        else other.value
        for other in node.inputs
    ]
    return np.abs(computed(node, *given))
