"""Running error analysis: how far rounding alone may move each value of a graph.

Every node gets a magnitude E beside its value v, counted in units of the unit roundoff
u of the precision under test: an honest implementation in that precision lands within
about u * E of v. E obeys one rule per primitive (`RULES`), the gradient is a node like
any other, and so its tolerance is derived rather than chosen.

The judge allows a deviation of limit * u * E. That, and not one radius, is the
uncertainty of a value where a rule is not linear: in second-order terms, and where it
decides whether a denominator may vanish or a choice may turn around. A weight that may
turn is off by 1 at most, so its E is 1 / (limit * u). Rules add the smallest normal
number where a product or quotient may underflow. Overflow is treated separately
(excuses/overflow.py): E is computed as if the range had no end.

A function that is monotone, or convex, between a - h and a + h is farthest from f(a)
at one of the two ends, with h the uncertainty of a. Where that would not hold: `tan`
has poles, and beyond one the bound is infinite; a power may have its minimum, or a
pole, at 0 between the ends (`_pow`).

Source: Wilkinson's running error analysis; Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., section 3.3; the bounds of single functions are mean-value bounds.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.precisions import PRECISIONS, Arithmetic, Array
from gradwatch.harness.judging.rounding import thresholds
from gradwatch.impls.graph import SELECTIONS, Node, as_array
from gradwatch.impls.graph.elements import operation as operation
from gradwatch.impls.graph.elements import terms_of_scatter
from gradwatch.impls.graph.rewriting import absorbs

Error = NDArray[np.float64]
Table = dict[str, Callable[["At"], Error]]

#: The extremes of all elements. An array's methods take twice as long if it is small.
smallest = functools.partial(np.minimum.reduce, axis=None)
largest = functools.partial(np.maximum.reduce, axis=None)


def computed(node: Node, *arrays: Array) -> Array:
    """The result of a node's primitive for other arrays."""
    assert node.primitive is not None
    return as_array(node.primitive.compute(*arrays, **node.attributes))


@dataclass(frozen=True)
class Errors:
    """|v| and E of every node, E in units of the unit roundoff of `arithmetic`.

    The error of nodes in `exact` cancels in the result; `peaks` holds the largest E of
    a node, where it is finite. Sums that are `absorbing` lose an operand that is felt.
    """

    arithmetic: Arithmetic
    limit: float
    rules: Table
    sizes: dict[Node, Error]
    errors: dict[Node, Error]
    exact: frozenset[Node] = frozenset()
    peaks: dict[Node, float] = field(default_factory=dict, init=False)
    absorbing: list[Node] = field(default_factory=list, init=False)

    @functools.cached_property
    def reach(self) -> float:
        """The factor from E to the deviation that the judge allows."""
        return self.limit * self.arithmetic.step.roundoff


@dataclass(frozen=True)
class Rule:
    """The numerical properties of a primitive, from which all analyses follow.

    Attributes:
        error: E of its result.
        rounds: Whether each element of the result has a rounding of its own.
        powers: Exponents of its inputs, if its magnitude is a product of their powers.
        terms: How many terms each element of a node adds up.
        exact_at_one: Whether it has no rounding where the wide type has 1.
        adds: Whether the result is a sum of its inputs, not of elements.
    """

    error: Callable[[At], Error]
    rounds: bool = False
    powers: tuple[int, ...] = ()
    terms: Callable[[Node], int] | None = None
    exact_at_one: bool = False
    adds: bool = False

    @property
    def adds_up(self) -> bool:
        """Whether the result is a sum: of inputs, of elements or of their products."""
        return self.adds or self.terms is not None


class At:
    """The arguments of a rule: magnitudes a, b of the inputs, their E, the node's |v|.

    `u` times E is the deviation that the judge allows, so `u` is `limit` * `roundoff`;
    `tiny` is the floor of underflow in units of E, and `sums` and `products` are the
    roundoffs inside a sum or matrix product likewise. `inexact` has None in place of an
    E that is 0 everywhere. For a node's `own` rounding alone `e` is 0; `known` always
    has the inputs' E. All are in units of the node's own precision, which may be some
    times `finer` than that of the graph.
    """

    def __init__(
        self, node: Node, errors: Errors, carried: list[Error], *, own: bool = False
    ) -> None:
        sizes, inputs = errors.sizes, node.inputs
        self.node, self.v = node, sizes[node]
        self.a, self.b = sizes[inputs[0]], sizes[inputs[-1]]
        self.e, self.known = carried, [errors.errors[source] for source in inputs]
        self.arithmetic = arithmetic_of(node, errors.arithmetic)
        self.roundoff = unit = self.arithmetic.step.roundoff
        self.finer = errors.arithmetic.step.roundoff / unit
        if self.finer > 1:
            self.e, self.known = (
                [e * self.finer for e in of] for of in (self.e, self.known)
            )
        self.inexact = [
            None if own or errors.peaks.get(source) == 0 else error
            for source, error in zip(inputs, self.e, strict=True)
        ]
        self.u = errors.reach / self.finer
        self.tiny = self.arithmetic.step.smallest / unit
        self.sums = self.arithmetic.sums / unit
        self.products = self.arithmetic.products / unit

    def result(self, rules: Table) -> Error:
        """E by the rules, in the unit of the graph."""
        error = as_array(rules[operation(self.node)](self), dtype=np.float64)
        return error / self.finer if self.finer > 1 else error

    @property
    def underflow(self) -> Error | float:
        """The E of a flush to zero; 0 where the result is exactly zero."""
        if self.v.size and smallest(self.v) > 0:
            return self.tiny
        return np.where((self.a != 0) & (self.b != 0), self.tiny, 0.0)


def arithmetic_of(node: Node, of_all: Arithmetic) -> Arithmetic:
    """The arithmetic of a node: that of all, or its own precision's if finer."""
    own = PRECISIONS.get(node.precision, of_all.step)
    if own.roundoff >= of_all.step.roundoff:
        return of_all
    return Arithmetic(own.name, own, own.roundoff, own.roundoff, own)


def lost(of_all: Arithmetic, node: Node) -> tuple[float, float]:
    """The share of a sum below which an operand is lost, and the least that is felt."""
    step = arithmetic_of(node, of_all).step
    return thresholds.SMALL * step.roundoff, thresholds.SAYS_NOTHING


def limit_for(reduction: int) -> float:
    """The tolerance, in rounding radii, for sums of up to `reduction` terms.

    The part that grows is for sums that add their terms one by one: their error grows
    faster than that of a blocked sum.
    """
    return thresholds.ALWAYS + thresholds.EACH_ROOT * math.sqrt(reduction)


def copied(at: At) -> Error:
    """The E of moved or copied elements: that which they have in the input."""
    return computed(at.node, *at.e)


def running_errors(
    order: Sequence[Node],
    arithmetic: Arithmetic,
    limit: float,
    table: Table | None = None,
) -> Errors:
    """E of every node, in units of the unit roundoff; inputs come before their users.

    Leaves are exact where the format holds their value; a constant that it must round
    (4.3, an eps of 1e-5) counts one rounding. Rules in `table` replace the usual ones.
    """
    rules = {name: rule.error for name, rule in RULES.items()} | (table or {})
    errors = Errors(arithmetic, limit, rules, {}, {}, shifts(order))
    with np.errstate(all="ignore"):
        for node in order:
            if moves(node):
                size = computed(node, *(errors.sizes[s] for s in node.inputs))
            else:
                size = as_array(node.value, np.float64)
                size = np.abs(size) if np.signbit(size).any() else size
            errors.sizes[node] = size
            errors.errors[node] = _error(node, errors)
            if absorbs(node, *lost(arithmetic, node)):
                errors.absorbing.append(node)
    return errors


def shifts(order: Sequence[Node]) -> frozenset[Node]:
    """Constants whose error cancels in the result: exact, whatever they are.

    A maximum that is subtracted before an exponential scales all terms of a sum alike,
    and is divided out or added back; hypot divides by its larger operand and multiplies
    by it. Every other constant has the error of what it was computed from.
    """
    constants = [n for n in order if operation(n) == "stop_gradient"]
    if not constants:
        return frozenset()
    users = defaultdict[Node, list[Node]](list)
    for node in order:
        for source in node.inputs:
            users[source].append(node)
    return frozenset(node for node in constants if _is_shift(node, users))


def _is_shift(node: Node, users: Mapping[Node, Sequence[Node]]) -> bool:
    source = unmoved(node.inputs[0])
    if operation(source) not in ("max", "maximum"):
        return False
    homogeneous = operation(source) == "maximum"
    return all(
        operation(user) in ("add", "compare", "logical")
        or (homogeneous and operation(user) in ("multiply", "divide"))
        or (
            operation(user) == "subtract"
            and any(operation(after) == "exp" for after in _uses(user, users))
        )
        for user in _uses(node, users)
    )


def _uses(node: Node, users: Mapping[Node, Sequence[Node]]) -> Iterator[Node]:
    """Nodes that compute with a node, or with a copy of it."""
    for user in users[node]:
        if operation(user) == "where" or moves(user):
            yield from _uses(user, users)
        else:
            yield user


def limits(nodes: Iterable[Node]) -> tuple[int, float]:
    """The terms of the longest sum or product among nodes, and the limit for it."""
    longest = max(map(terms, nodes), default=1)
    return longest, limit_for(longest)


def terms(node: Node) -> int:
    """How many terms each element of a node adds up."""
    count = RULES[node.primitive.name].terms if node.primitive else None
    return count(node) if count and node.size else 1


def unmoved(node: Node) -> Node:
    """The node whose elements this one only moves or copies."""
    while moves(node):
        node = node.inputs[0]
    return node


def moves(node: Node) -> bool:
    """Whether each element is one of an input, moved or copied."""
    return node.primitive is not None and RULES[node.primitive.name].error is copied


def _difference(at: At) -> Error:
    """As a sum, and a rounding of the mean if it is subtracted from its own values.

    An algorithm that centres twice is immune to the mean's error, another is not.
    """
    error = _sum(at)
    if is_mean(*at.node.inputs[::-1]):
        error += at.b
    return error


def is_mean(node: Node, source: Node) -> bool:
    """Whether a node is a sum over a source times a scalar, or of a single element."""
    source, scaled = unmoved(source), False
    while operation(node := unmoved(node)) in ("multiply", "divide"):
        if node is source or node.inputs[1].size != 1:
            return scaled and node is source
        node, scaled = node.inputs[0], True
    if operation(node) in ("sum", "sum_to"):
        return unmoved(node.inputs[0]) is source
    return scaled and node is source


def local_errors(errors: Errors, order: Iterable[Node]) -> dict[Node, Error | None]:
    """The E of each node's own rounding; None where it adds nothing."""
    found: dict[Node, Error | None] = {}
    with np.errstate(all="ignore"):
        for node in order:
            own = errors.errors[node]
            if node.primitive and not moves(node):
                sizes = (errors.sizes[source] for source in node.inputs)
                exact = [
                    np.broadcast_to(np.zeros_like(a, shape=()), a.shape) for a in sizes
                ]
                at = At(node, errors, exact, own=True)
                own = _settled(at.result(errors.rules), at.v)
            found[node] = own if not moves(node) and own.any() else None
    return found


def _error(node: Node, errors: Errors) -> Error:
    size = errors.sizes[node]
    if node.primitive is None:
        step = arithmetic_of(node, errors.arithmetic).step
        held = step.round(node.value)
        exact = held == node.value
        if exact.all():
            errors.peaks[node] = 0.0
            return np.broadcast_to(np.zeros_like(size, shape=()), size.shape)
        off = np.abs(held - node.value)
        lost = np.maximum(size * step.roundoff, off.astype(np.float64))
        lost /= errors.arithmetic.step.roundoff
        return np.where(exact | np.isnan(size), 0.0, lost)
    if node in errors.exact:
        return np.zeros_like(size)
    at = At(node, errors, [errors.errors[source] for source in node.inputs])
    error = at.result(errors.rules)
    if error.size:
        peak = float(largest(error))
        if peak < np.inf:  # false for nan
            errors.peaks[node] = peak
            return error
    return _settled(error, size)


def _settled(error: Error, size: Error) -> Error:
    """An E with 0 where the value is infinite, and infinity elsewhere for nan."""
    # False for nan.
    if error.size and largest(error) < np.inf and largest(size) < np.inf:
        return error
    return np.where(size == np.inf, 0.0, np.where(np.isnan(error), np.inf, error))


# One rule for each primitive --------------------------------------------------------


def _sum(at: At) -> Error:
    """E of a sum: 0 for whole numbers, and beside an exact zero."""
    (a, b), (sure_a, sure_b) = (at.a, at.b), (e == 0 for e in at.known)
    exact = (sure_a & (a == 0)) | (sure_b & (b == 0))
    if np.count_nonzero(whole := sure_a & sure_b):
        whole &= (np.rint(a) == a) & (np.rint(b) == b)
        exact |= whole & (at.v <= 1 / at.roundoff)
    error = np.where(exact, 0.0, at.v)
    for carried in at.inexact:
        if carried is not None:
            error += carried
    return error


def _product(at: At) -> Error:
    (ea, eb), a, b = at.inexact, at.a, at.b
    error = one_rounding(at, at.underflow)
    # A mask selects: nothing is rounded. But a scalar 1 says that a step rounds, and of
    # several maxima each may have a share.
    chosen = {operation(unmoved(n)) for n in at.node.inputs}.intersection(SELECTIONS)
    for mask, e in zip((a, b), at.known, strict=True):
        if mask.ndim and not (chosen or e.any()) and ((mask == 0) | (mask == 1)).all():
            error = np.where(at.v < at.arithmetic.step.smallest, at.underflow, 0.0)
    if ea is not None:
        error += b * ea
    if eb is not None:
        error += (a if ea is None else a + at.u * ea) * eb
    if error.size and largest(error) < np.inf:  # false for nan
        return error
    (ea, eb) = at.e
    # An exact zero stays zero, whatever finite number it is multiplied by.
    carried = _times(b, ea) + _times(a, eb) + at.u * _times(ea, eb)
    return carried + one_rounding(at, at.underflow)


def _times(a: Error, b: Error) -> Error:
    return np.where((a == 0) | (b == 0), 0.0, a * b)


def _quotient(at: At) -> Error:
    ea, eb = at.inexact
    left = at.b if eb is None else at.b - at.u * eb
    error = one_rounding(at, at.underflow)
    if eb is not None:
        error += at.v * eb / left
    if ea is not None:
        error += ea / left
    if left.size and smallest(left) > 0:
        return error
    return np.where(left > 0, error, np.inf)


def _power(at: At, logarithm: float = 1.0) -> Error:
    reach = logarithm * at.u * at.e[0]
    # exp(0) is exactly 1 (IEEE 754-2019, 9.2.1), as in a softmax of one element.
    rounded = np.where((at.a == 0) & (at.e[0] == 0), 0.0, at.v + at.tiny)
    error: Error = at.v * np.expm1(reach) / at.u + rounded
    if error.size and at.v.min() > at.tiny * at.u and error.max() < np.inf:
        return error
    # Far below the smallest number the result is zero, whatever the argument's error.
    step = at.arithmetic.step
    least = math.log(2) * (step.least - step.digits) - 1
    gone = logarithm * at.node.inputs[0].value.astype(np.float64) + reach < least
    # All of the value is lost: with a margin for the spread, which draws a part of it.
    # In extended precision the value may be too small for float64.
    lost = np.where(at.node.value != 0, np.maximum(at.v, np.finfo(float).tiny), 0.0)
    return np.where(gone, thresholds.FEW_DRAWS * lost / at.u, error)


def _wave(slope: Callable[[Error], Error]) -> Callable[[At], Error]:
    def rule(at: At) -> Error:
        e = at.e[0]
        first = np.abs(slope(at.a)) * e + at.u * e * e / 2  # |f''| <= 1
        return np.fmin(first, 2 / at.u) + at.v

    return rule


def _reduction(at: At) -> Error:
    """E of a sum over axes: one rounding of each term's magnitude."""
    return computed(at.node, at.e[0]) + (_added(at) if terms(at.node) > 1 else 0.0)


def _scattered(at: At) -> Error:
    """E of a scatter: a copy where at most one value lands, else as a sum."""
    node, moved = at.node, computed(at.node, at.e[0])
    several = terms_of_scatter(node) > 1
    if not several.any():
        return moved
    return np.where(several, moved + _added(at), moved)


def _added(at: At) -> Error:
    """E of adding terms up; in a wider type, with one rounding of the result."""
    return at.sums * computed(at.node, at.a) + (at.v if at.sums != 1 else 0.0)


def _matmul(at: At) -> Error:
    (ea, eb), a, b = at.e, at.a, at.b
    rounded: Error = a @ b
    if at.sums != 1 or at.products != 1:
        inside = at.sums + 2 * at.products if at.products > 1 else at.sums
        rounded = inside * rounded + at.v
    rounded += at.tiny * a.shape[-1] * (at.v > 0)
    if at.arithmetic.stored.name == "bfloat16":
        # Processors flush subnormal inputs (VDPBF16PS, Intel's SDM, volume 2).
        smallest = at.arithmetic.stored.smallest
        small_a, small_b = (np.where(x < smallest, x, 0.0) for x in (a, b))
        if small_a.any() or small_b.any():
            rounded += (small_a @ b + a @ small_b) / at.roundoff
    if not (ea.any() or eb.any()):
        return rounded
    carried: Error = a @ eb + ea @ b + at.u * (ea @ eb)
    return carried + rounded


def _cumulative_sum(at: At) -> Error:
    """E of partial sums: a rounding of each term's magnitude; the first is a copy."""
    axis = at.node.attributes["axis"]
    error = np.cumsum(at.e[0] + at.sums * at.a, axis=axis)
    if at.sums != 1:
        error += at.v
    alone = (slice(None),) * axis + (slice(0, 1),)
    error[alone] = at.e[0][alone]
    return error


def _uncertainty(at: At, which: int) -> Any:
    """The largest deviation of an input, in the wide type: at least its last place."""
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
    return np.where(h > 0, np.where(np.isnan(reach), np.inf, reach), 0.0)


def one_rounding(at: At, underflow: Error | float | None = None) -> Error:
    """E of one rounding of the result, which may underflow."""
    lost = np.where(at.v != 0, at.tiny, 0.0) if underflow is None else underflow
    rounded: Error = at.v + lost
    if not exact_at_one(at.node):
        return rounded
    wide = np.finfo(at.node.dtype).eps / at.u  # the wide type's own
    one = (at.node.value == 1) | (at.node.value == -1)
    return np.where(one, wide, rounded) if one.any() else rounded


def exact_at_one(node: Node) -> bool:
    """Whether a result has no rounding where the wide type has 1."""
    a, b = node.inputs[0], node.inputs[-1]
    return RULES[operation(node)].exact_at_one or (a is b and len(node.inputs) > 1)


def _monotone(at: At) -> Error:
    return _ends(at, functools.partial(computed, at.node)) + one_rounding(at)


def _tan(at: At) -> Error:
    """E of tan, which rises between two poles: where it falls, a pole lies between."""
    a, h = at.node.inputs[0].value, _uncertainty(at, 0)
    falls = (np.tan(a + h) < np.tan(a - h)) | (h > np.pi / 2)
    return np.where(falls, np.inf, _monotone(at))


def _pow(at: At) -> Error:
    a, b = (source.value for source in at.node.inputs)
    da, db = _uncertainty(at, 0), _uncertainty(at, 1)
    signs = itertools.product((-1, 1), repeat=2)
    corners = [computed(at.node, a + s * da, b + t * db) for s, t in signs]
    moved = np.max([np.abs(c - at.node.value) for c in corners], axis=0)
    moved = np.where(np.isnan(moved), np.inf, moved).astype(np.float64)
    through_zero = (da > 0) & (np.abs(a) <= da)
    moved = moved + np.where(through_zero, at.v, 0.0)  # down to 0 in between
    moved = np.where(through_zero & (b - db < 0), np.inf, moved)
    return np.where(~((da > 0) | (db > 0)), 0.0, moved / at.u) + one_rounding(at)


def _atan2(at: At) -> Error:
    """E of an angle: it moves by asin(shift / distance) at most, < pi/2 * the ratio."""
    shift = np.hypot(_uncertainty(at, 0), _uncertainty(at, 1)).astype(np.float64)
    ratio = np.where(shift == 0, 0.0, shift / np.hypot(at.a, at.b))
    turned = np.where(ratio < 1, np.arcsin(np.minimum(ratio, 1.0)), 2 * np.pi)
    # Across the cut along the negative axis the angle jumps by a whole turn.
    a, b = (source.value for source in at.node.inputs)
    jumps = (ratio > 0) & (b < 0) & (np.abs(a) <= _uncertainty(at, 0))
    return np.where(jumps, 2 * np.pi, turned) / at.u + one_rounding(at)


def _converted(at: At) -> Error:
    """E of a cast: exact between floats and from integers; to integers it is a step."""
    node = at.node
    source, target = node.inputs[0].dtype.kind, node.dtype.kind
    if source != "f" or target == "f":
        return at.e[0]
    return _ends(at, lambda x: x.astype(node.dtype).astype(np.float64))


def _selection(at: At) -> Error:
    """E of a weight of 0 or 1: exact unless rounding could turn the choice around."""
    a, b = (source.value for source in at.node.inputs)
    blur = at.u * (at.e[0] + at.e[1])
    return np.where((blur > 0) & (np.abs(a - b) <= blur), 1 / at.u, 0.0)


def _contested(at: At) -> Any:
    """A mask of elements that may become, or cease to be, the largest by rounding."""
    x, axis = at.node.inputs[0].value, at.node.attributes["axis"]
    if not at.e[0].any() or not x.size:
        return np.zeros(x.shape, bool)
    blur = at.u * at.e[0]
    reach = np.max(x - blur, axis=axis, keepdims=True) - blur
    near = x >= reach
    several = np.sum(near, axis=axis, keepdims=True) > 1
    return near & several & np.any(near & (blur > 0), axis=axis, keepdims=True)


def _largest(at: At) -> Error:
    axis, keepdims = (at.node.attributes[name] for name in ("axis", "keepdims"))
    return as_array(np.max(at.e[0], axis=axis, keepdims=keepdims, initial=0.0))


def _compare(at: At) -> Error:
    a, b = (source.value for source in at.node.inputs)
    itself = at.node.inputs[0] is at.node.inputs[1]  # isnan is written as x != x
    if itself or not (at.e[0].any() or at.e[1].any()):
        return np.zeros_like(at.v)
    blur = at.u * (at.e[0] + at.e[1])
    certain = np.abs(a.astype(float) - b.astype(float)) > blur  # false for nan
    return np.where((blur > 0) & ~certain, 1 / at.u, 0.0)


def _logical(at: At) -> Error:
    """E of a boolean: 0 where a certain False decides an `and`, a True an `or`."""
    values = [source.value for source in at.node.inputs]
    blur = np.maximum(at.e[0], at.e[1])
    settles = {"and": False, "or": True}.get(at.node.attributes["how"])
    if settles is None:
        return as_array(blur)
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


RULES: dict[str, Rule] = {
    "add": Rule(_sum, rounds=True, adds=True),
    "subtract": Rule(_difference, rounds=True, adds=True),
    "multiply": Rule(_product, rounds=True, powers=(1, 1)),
    "divide": Rule(_quotient, rounds=True, powers=(1, -1)),
    "negative": Rule(lambda at: at.e[0], powers=(1,)),
    "abs": Rule(lambda at: at.e[0], powers=(1,)),
    "square": Rule(_monotone, rounds=True, powers=(2,), exact_at_one=True),
    "exp": Rule(_power, rounds=True, exact_at_one=True),
    "exp2": Rule(lambda at: _power(at, math.log(2)), rounds=True, exact_at_one=True),
    "sin": Rule(_wave(np.cos), rounds=True),
    "cos": Rule(_wave(np.sin), rounds=True),
    **dict.fromkeys(
        ("sum", "sum_to"),
        Rule(_reduction, terms=lambda node: node.inputs[0].size // node.size),
    ),
    "matmul": Rule(_matmul, terms=lambda node: node.inputs[0].shape[-1]),
    "scatter_add": Rule(
        _scattered, terms=lambda node: int(terms_of_scatter(node).max(initial=1))
    ),
    "cumulative_sum": Rule(
        _cumulative_sum, terms=lambda node: int(node.shape[node.attributes["axis"]])
    ),
    **dict.fromkeys(
        (
            *("log", "expm1", "log1p", "sqrt", "erf", "erfc"),
            *("asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
        ),
        Rule(_monotone, rounds=True),
    ),
    **dict.fromkeys(
        ("tanh", "sigmoid"), Rule(_monotone, rounds=True, exact_at_one=True)
    ),
    "tan": Rule(_tan, rounds=True),
    "pow": Rule(_pow, rounds=True),
    "atan2": Rule(_atan2, rounds=True),
    # Whole numbers are exact unless a jump lies within reach.
    "step": Rule(lambda at: _ends(at, functools.partial(computed, at.node))),
    "astype": Rule(_converted),
    "maximum": Rule(lambda at: np.maximum(at.e[0], at.e[1])),
    "max": Rule(_largest),
    "share": Rule(_selection),
    "pick": Rule(lambda at: np.where(_contested(at), 1 / at.u, 0.0)),
    "sign": Rule(
        lambda at: np.where((at.e[0] > 0) & (at.a <= at.u * at.e[0]), 2 / at.u, 0.0)
    ),
    "argmax": Rule(
        lambda at: np.where(
            _contested(at).any(axis=at.node.attributes["axis"]), np.inf, 0.0
        )
    ),
    "compare": Rule(_compare),
    "logical": Rule(_logical),
    "where": Rule(_where),
    **dict.fromkeys(
        ("stop_gradient", "reshape", "permute_dims", "broadcast_to", "gather"),
        Rule(copied),
    ),
}
