"""Evaluations of a graph in which each primitive is off by its own rounding.

They come in pairs, with all perturbations and with all of them negated. A perturbation
is as large as the judge allows: `limit` times one rounding, times a random number of up
to one unit in the last place. Or it is of honest size: one rounding.

The gradient of a maximum, a ReLU, a pool or abs is a cotangent times a weight (0, 1 or
-1) that says which value is the largest. Where another value is so near to it that
rounding may exchange them, the choice is *contested*: an honest implementation may have
made it the other way. The draws keep all choices as the reference makes them, and move
each contested weight, to either side, by the change that the other choice makes: the
gradient is linear in the weights. In a quarter of the draws all weights of a tensor
move to the same side: an error of a mean turns all of them in one direction.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gradwatch.harness.judging.excuses.overflow import magnitudes
from gradwatch.harness.judging.precisions import Array, Mask
from gradwatch.harness.judging.rounding.analysis import (
    Error,
    Errors,
    arithmetic_of,
    computed,
    largest,
    local_errors,
    moves,
    operation,
)
from gradwatch.harness.judging.rounding.thresholds import FEW_DRAWS, SMALL, UNIT
from gradwatch.impls.graph import SELECTIONS, Node, as_array, topological_order
from gradwatch.impls.graph.parts import SUMS

Pair = tuple[Array, Array]
_Turned = dict[tuple[Node, ...], Array]
Generator = np.random.Generator

#: Shifts and factors that mix the 64 bits of a number, one to one (Steele and others,
#: Fast splittable pseudorandom number generators, 2014: mix64variant13).
MIXING = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1))
#: Primitives that are linear in one input, beside those that move elements.
_LINEAR = ("multiply", "divide", "negative", "where", "scatter_add")
#: Share of the largest number from which overflow is tested element by element. A value
#: below must grow to 16 times itself, and no deviation is linear so far.
NEAR = SMALL**2
#: Share of a known loss, which makes no tensor wrong, that is drawn: twice the loss of
#: a sum may be the sum itself, and a quotient by it is far from linear there.
DRAWN = SMALL
#: Pairs of draws that measure how far rounding moves the values to be chosen among. Of
#: three, the largest is below a quarter of the true rms in 1 of 130 cases (normal).
PILOTS = 3
#: Share of the allowed move of a gap within which a choice is contested. Right bfloat16
#: networks move it by 1.2 radii at most, of 19 to 24 that are allowed.
REACH = SMALL
#: Root mean squares of a move of honest size within which a choice is contested: beyond
#: these, rounding turns it in less than 1 of 10^9 cases (Hoeffding's inequality).
SELDOM = (2 * np.log(1e9)) ** 0.5
#: A weight moves by so many times the change that the other choice makes. One turned
#: choice is right by that margin; where several cancel in a draw, each still has room.
TURNS = FEW_DRAWS
#: One of so many pairs of draws moves all weights of a tensor to the same side.
ALIKE = 4
#: Terms in all, and sums, from which the running errors of these stand for draws: they
#: are larger, but of so many independent sums hardly count where they are added up.
LONG, SUMMED = 1 << 24, 1 << 8


def halves(node: Node, pair: Pair) -> tuple[Error, Error] | None:
    """Half the difference of a pair, and half its sum less the node's own value.

    None where no perturbation has moved the node.
    """
    if pair[0] is pair[1] or node.value.dtype.kind != "f":
        return None
    with np.errstate(invalid="ignore"):  # what overflows in a draw is infinite
        up, down = ((side - node.value).astype(np.float64, copy=False) for side in pair)
        return as_array((up - down) / 2), as_array((up + down) / 2)


def drawn(needed: set[Node], order: Sequence[Node]) -> Sequence[Node]:
    """The nodes whose roundings are drawn: none that only `LONG` sums need."""
    for node in reversed(order):
        long = operation(node) in SUMS and node.inputs[0].size > LONG
        if node in needed and not (long and node.size >= SUMMED):
            needed.update(node.inputs)
    return [node for node in order if node in needed]


class Draws:
    """Perturbed evaluations of the nodes of a graph.

    With errors `beside` these, only the excess over them is drawn; `once` draws one
    rounding at each step; with `again`, products of matrices are computed again for
    each use. In every other pair choices get no cotangent that is zero but for
    rounding. `own` is the E of each node's own rounding; `open` are contested elements
    of each choice, `shares` the factors of their weights' moves; `hot` nodes come near
    the largest number. A node with inputs elsewhere is off by all of its running error.
    """

    def __init__(
        self,
        errors: Errors,
        order: Sequence[Node],
        needed: Iterable[Node] = (),
        *,
        beside: Errors | None = None,
        once: bool = False,
        again: bool = False,
    ) -> None:
        order = drawn({*needed} or {*order}, order)
        self.errors, self.order, self.once = errors, order, once
        self.seen, self.grows = beside is not None, once or again
        self.scale = DRAWN if self.seen else 1 / (UNIT * errors.limit) if once else 1.0
        inside = {*order}
        ends = [n for n in order if not inside.issuperset(n.inputs)]
        self.own, known = (
            local_errors(of, order) | {n: of.errors[n] for n in ends} if of else {}
            for of in (errors, beside)
        )
        self.open, self.shares = dict[Node, Mask](), dict[Node, Array]()
        self.unit = 2 * UNIT * errors.limit * self.scale
        unit = self.unit * errors.arithmetic.step.roundoff
        self._widths = {
            node: unit * (own - less if less is not None else own)
            for node, own in self.own.items()
            for less in [known.get(node)]
            if own is not None and node.value.dtype.kind == "f"
            if less is None or (own != less).any()
        }
        self._choices = frozenset(n for n in order if operation(n) in SELECTIONS)
        self._digits: dict[Node, Array] = {}
        top = NEAR * errors.arithmetic.step.largest
        some, near = (n for n in order if n.size), _unsure(order, errors)
        sizes = ((n, a) for n in some for a in (near[n], self.own[n]))
        self.hot = {n for n, a in sizes if a is not None and not largest(a) < top}
        last_use = {s: node for node in order for s in node.inputs}
        self._paths = self._products_used_again() if again else {}
        self._nothing = self._left_out()
        self._last: dict[Node, list[Node]] = {node: [] for node in order}
        for source, node in last_use.items():
            self._last[node].append(source)

    def _products_used_again(self) -> dict[Node, list[Node]]:
        """Matrix products, and nodes linear in one, that are used several times.

        A product computed again, in another order, is rounded in another way (Dao and
        others, FlashAttention, 2022, appendix B.2): each use has its own error.
        """
        # Shifts, whose error cancels, are excepted: rounded apart, a score and its
        # row's maximum scale all terms of a sum so much that no draw is near linear.
        users = Counter[Node]()
        for node in reversed(self.order):
            seen = node not in self.errors.exact and users.get(node) != 0
            for source in node.inputs:
                users[source] += seen
        several: dict[Node, list[Node]] = {}
        for node in self.order:
            path = _path_to_product(node, users) if users[node] > 1 else None
            if path and path[0] in self._widths:
                width = self._widths.pop(path[0])
                for source, user in itertools.pairwise(path):
                    width = _scaled(user, source, width) + self._widths.pop(user, 0.0)
                self._widths[node] = width
                several[node] = path
        return several

    @np.errstate(all="ignore")
    def _left_out(self) -> dict[Node, Mask]:
        """Masks of choices' products that are zero but for rounding, as a sum is.

        So is the gradient of a softmax by the shift of its scores: some leave it out.
        """
        choices = (n for n in self.order if not self._choices.isdisjoint(n.inputs))
        made = [n for n in choices if operation(n) == "multiply"]
        terms = magnitudes(topological_order(made)) if made else {}
        wide = {n: self.errors.errors[n] * np.finfo(n.dtype).eps for n in made}
        return {n: (terms[n] > 0) & (np.abs(n.value) <= wide[n]) for n in made}

    def _contest(self, least: float) -> None:
        """Find the choices that rounding may turn: from here on their weights move.

        Pilot draws of the operands of choices show how far each gap may move. In draws
        of honest size a weight moves by the root of the largest probability that it is
        turned, and at least by the `least` share.
        """
        choices = [node for node in self.order if node in self._choices]
        if not choices:
            return
        sources = dict.fromkeys(s for node in choices for s in node.inputs)
        draws = Draws(self.errors, topological_order(sources), once=self.once)
        gaps = {n: _gap(n, *(s.value for s in n.inputs)) for n in choices}
        moved: dict[Node, Any] = dict.fromkeys(choices, 0.0)
        # Of a normed value, which has an end, large moves tell less than small ones.
        reach, small = (SELDOM, 1.0) if self.once else (REACH, 1 / self.errors.limit)
        for share, number in itertools.product((reach, small), range(PILOTS)):
            values = draws.pair(number, sources.keys(), share)
            for node in choices:
                for side in zip(*(values[s] for s in node.inputs), strict=True):
                    change = np.abs(_gap(node, *side) - gaps[node]).astype(np.float64)
                    moved[node] = np.maximum(moved[node], reach / share * change)
        for node, move in moved.items():
            apart = np.abs(gaps[node])
            # A move is nan outside of a function's domain: nothing is certain there.
            self.open[node] = np.isfinite(apart) & (move != 0) & ~(apart > move)
            if self.once:
                chance = chances(node, apart, move / reach)
                self.shares[node] = np.maximum(chance, least)

    def add_to(self, sums: Mapping[Node, Any], count: int, least: float = 0.0) -> None:
        """Add the deviations of each node in `count` pairs to its sums."""
        for values in self.pairs(count, sums.keys(), least):
            for node, of_it in sums.items():
                if (moved := halves(node, values[node])) is not None:
                    of_it.add(*moved)

    def pairs(
        self, count: int, keep: Collection[Node], least: float = 0.0
    ) -> Iterator[dict[Node, Pair]]:
        """Pairs of evaluations, `count` of them; in some, equal digits round alike."""
        self._contest(least)
        self._count = count
        for number in range(count):
            yield self.pair(number, keep)

    @np.errstate(all="ignore")
    def pair(
        self, number: int, keep: Collection[Node], share: float = 1.0
    ) -> dict[Node, Pair]:
        """Values of the nodes to keep, with all perturbations and all negated.

        They are multiplied by `share`. Some pairs move all contested weights of a
        tensor, and all that it is known to lose, to the same side. Every other one of
        honest size rounds values with the same digits alike.
        """
        rng, together = np.random.default_rng(number), number % ALIKE == 0
        alike = self.once and number % 2 == 1
        values: dict[Node, Pair] = {}
        turned: _Turned = {}
        again = self._paths.keys() - keep
        noise = functools.partial(self._noise, rng=rng, together=together, alike=alike)
        moved = functools.partial(self._moved, share=share, noise=noise)
        for node in self.order:
            if node in self._choices:
                values[node] = self._weights(node, number, rng, share, turned)
            else:
                held = ((s, values[s]) for s in node.inputs if s in values)
                given = [moved(s, pair) if s in again else pair for s, pair in held]
                made: Pair = node.value, node.value
                if not all(up is down for up, down in given):  # an input has a rounding
                    plus, minus = (computed(node, *s) for s in zip(*given, strict=True))
                    made = plus, minus
                made = self._ended(made, cut=False) if node in self.hot else made
                values[node] = made if node in again else moved(node, made)
            if node in self._nothing and number % 2:
                still = self._nothing[node], node.value
                plus, minus = values[node]
                values[node] = np.where(*still, plus), np.where(*still, minus)
            for source in self._last[node]:
                if source not in keep:
                    values.pop(source, None)
        return values

    def _ended(self, pair: Pair, *, cut: bool) -> Pair:
        """A pair of values; what leaves the range is infinite, or `cut` to its end."""
        step = self.errors.arithmetic.step
        least, end = (step.largest,) * 2 if cut else (step.beyond, np.inf)
        plus, minus = (
            np.where(beyond, np.copysign(end, a), a) if beyond.any() else a
            for a in pair
            for beyond in [np.isfinite(a) & (np.abs(a) >= least)]
        )
        return plus, minus

    def _moved(
        self, node: Node, pair: Pair, share: float, noise: Callable[[Node], Array]
    ) -> Pair:
        """A node's values, perturbed by its own rounding."""
        width = self._widths.get(node)
        if width is None:
            return pair
        plus, minus = pair
        random = noise(node) if share == 1 else share * noise(node)
        widths = [width]
        if self.grows:  # so is what deviates, such as a sum that is zero but for that
            unit = self.unit * arithmetic_of(node, self.errors.arithmetic).step.roundoff
            # Where a square comes near 0, so does its rounding, and it stays positive.
            off = (np.abs(side) - self.errors.sizes[node] for side in pair)
            widths = [width + np.where(np.isfinite(o), unit * o, 0.0) for o in off]
        moved = [as_array(each * random) for each in widths]
        lower, up = minus - moved[-1], moved[0]
        fits = up.shape == plus.shape and up.dtype == plus.dtype
        sides = (np.add(plus, up, out=up) if fits else plus + up), lower
        return self._ended(sides, cut=True) if node in self.hot else sides

    def _noise(self, node: Node, rng: Generator, together: bool, alike: bool) -> Array:
        """Random numbers from -1/2 to 1/2, or the outer half of these."""
        noise: Array
        if alike:  # the same for the same digits; odd, as rounding is
            if node not in self._digits:
                self._digits[node] = self._digits_of(node)
            factor = 2 * int(rng.integers(-(1 << 62), 1 << 62)) + 1  # odd: one to one
            noise = (self._digits[node] * factor >> 40).astype(np.float32)
            noise += 0.5
            noise /= 1 << 24
        else:
            noise = rng.random(node.shape, dtype=np.float32)
            noise -= 0.5
        if self.seen:  # a known loss is not random: its size is never near zero
            noise += np.copysign(np.float32(0.5), noise)
            noise /= 2
            if together:  # and it may have one sign everywhere: partial sums
                noise = np.copysign(noise, noise.sum())
        return noise

    def _digits_of(self, node: Node) -> Array:
        """The mixed bits of each element's significand, negated for a negative one.

        Of these there are as many as the narrowest step on the way of a product keeps.
        """
        given = (n.attributes.get("info") for n in self._paths.get(node, [node]))
        casts = [1 - int(np.log2(info.eps)) for info in given if info]
        digits = min([arithmetic_of(node, self.errors.arithmetic).step.digits, *casts])
        value = np.asarray(node.value)  # random numbers are NumPy's
        part = np.where(np.isfinite(value), np.frexp(value)[0], 0.0)
        mixed = np.rint(np.ldexp(np.abs(part), digits)).astype(np.uint64)
        mixed += np.uint64(1)  # of 0 nothing would be mixed
        for shift, factor in MIXING:
            mixed = (mixed ^ mixed >> np.uint64(shift)) * np.uint64(factor)
        return np.where(part < 0, -1, 1) * mixed.astype(np.int64)

    def _weights(
        self, node: Node, number: int, rng: Generator, share: float, turned: _Turned
    ) -> Pair:
        """The reference's weights, moved where a choice is contested, in turns."""
        mask = self.open.get(node)
        if mask is None or not mask.any():
            return node.value, node.value
        change = turned.get(node.inputs[::-1])
        if change is None:
            if operation(node) == "pick":
                axis = node.attributes["axis"]
                drawn = np.where(mask, rng.random(mask.shape), -1.0)
                other = (drawn == drawn.max(axis=axis, keepdims=True)) & mask
                if not self.once:
                    n = np.clip(mask.sum(axis=axis, keepdims=True), 1, self._count)
                    other = mask & (np.cumsum(mask, axis=axis) % n == number % n)
                rows = other.any(axis=axis, keepdims=True)
                moved = np.where(rows, other - node.value, 0.0)
            else:
                rows, moved = mask, (2.0 if operation(node) == "sign" else 1.0) * mask
            signs = rng.choice((-1.0, 1.0), rows.shape) if number % ALIKE else 1.0
            turns = 1.0 if self.once else TURNS * self.scale
            change = share * turns * moved * signs * self.shares.get(node, 1.0)
            turned[node.inputs] = -change
        return node.value + change, node.value - change


def _unsure(order: Sequence[Node], errors: Errors) -> Mapping[Node, Error]:
    """The magnitudes of nodes, with 0 for exact infinities, as under a mask.

    They are known unless a value is infinite, or nan, though its inputs are finite.
    """
    sizes = errors.sizes
    ends = {n for n in order if n.size and not largest(sizes[n]) < np.inf}
    if any(n.inputs and ends.isdisjoint(n.inputs) for n in ends):
        return sizes
    exact = {n: (sizes[n] == np.inf) & (errors.errors[n] == 0) for n in ends}
    return sizes | {n: np.where(exact[n], 0.0, sizes[n]) for n in ends}


def _path_to_product(node: Node, users: Mapping[Node, int]) -> list[Node] | None:
    """Nodes from a matrix product to this one, each linear in the one before it."""
    name = operation(node)
    if name == "matmul":
        return [node]
    sources = node.inputs[:1] if name == "divide" else node.inputs
    if name not in _LINEAR and not moves(node) and name != "cast.narrowed":
        return None
    paths = (_path_to_product(s, users) for s in sources if users[s] == 1)
    return next(([*path, node] for path in paths if path), None)


def _scaled(node: Node, source: Node, width: Error) -> Error:
    """The deviation of a node for one of an input in which it is linear."""
    given = [
        width
        if other is source
        else np.zeros_like(width, shape=other.shape)
        if (moves(node) or operation(node) == "where") and other.value.dtype.kind == "f"
        else other.value
        for other in node.inputs
    ]
    return np.abs(computed(node, *given))


def _gap(node: Node, *inputs: Array) -> Array:
    """The number whose sign makes a choice; for a maximum, the distances to it."""
    if operation(node) != "pick":
        return inputs[0] - inputs[1] if len(inputs) == 2 else inputs[0]
    axis = node.attributes["axis"]
    if not inputs[0].size:
        return inputs[0]
    chosen = np.argmax(node.inputs[0].value, axis=axis, keepdims=True)
    return as_array(inputs[0] - np.take_along_axis(inputs[0], chosen, axis))


def chances(node: Node, apart: Array, moved: Array) -> Array:
    """Roots of the largest probabilities that rounding turns a choice around.

    By Hoeffding's inequality a sum of independent uniform roundings of root mean square
    `moved` is farther than `apart` in at most exp(-(apart / moved)^2 / 2) of all cases,
    and in at most half of them. For a maximum along an axis, the likeliest contender's.
    """
    away = np.divide(apart, moved, out=np.zeros_like(apart), where=moved > 0)
    share = as_array(np.minimum(np.exp(-np.square(away) / 4), 0.5**0.5))
    if operation(node) != "pick":
        return share
    others = np.where(node.value == 0, share, 0.0)
    return as_array(np.max(others, axis=node.attributes["axis"], keepdims=True))
