"""What may be infinite or not a number on the way, known apart from the rounding error.

The reference runs in a type with a wider range, so that a value may be finite there
which an honest implementation finds infinite, and what follows from that is no matter
of rounding: inf - inf and 0 * inf are nan, 1 / inf is 0, exp(-inf) is exactly 0. Two
masks a node keep track: where its value *may be infinite* although the reference's is
not, and where it *may be nan*. Most graphs have neither, and pay one comparison a node.

A sum may overflow on the way to a result that does not: it is its terms' magnitudes
that decide. An infinity that comes from the inputs (the -inf of a mask) is exact.

With the peaks of regrouping.py beside this, the masks say what may be infinite or nan
in *some* order of operations, not only in the formula's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.excuses.contested import is_choice
from gradwatch.harness.judging.excuses.regrouping import Peaks, cancels, magnitudes
from gradwatch.harness.judging.rounding.analysis import ERROR
from gradwatch.harness.judging.rounding.errors import Errors, copied, largest, terms
from gradwatch.impls.graph import Node

Mask = NDArray[np.bool_]

#: Their E counts one rounding of the result, so that it is at least the result's size.
_ROUNDED = frozenset(("add", "subtract", "multiply", "divide", "square", "sqrt"))
#: What is zero where all its terms are.
_LINEAR = frozenset(("sum", "sum_to", "cumulative_sum", "scatter_add", "negative"))


@dataclass(frozen=True)
class Risk:
    """Where a node's value may be infinite, and where it may be nan."""

    infinite: Mask
    undefined: Mask

    def any(self) -> bool:
        """Whether there is any risk at all."""
        return bool(self.infinite.any() or self.undefined.any())


def risks(
    order: Sequence[Node], errors: Errors, peaks: Peaks | None = None
) -> dict[Node, Risk]:
    """The nodes that may overflow, or follow from such; the others are left out.

    Args:
        order: The nodes, each after its inputs.
        errors: Their running errors, in the arithmetic in question.
        peaks: Exponents of what may be reached in another order of operations.
    """
    risky: dict[Node, Risk] = {}
    unreached = functools.cache(lambda: _all_left_out(order, errors))
    sizes: Mapping[Node, NDArray[Any]] = {}
    with np.errstate(all="ignore"):
        for node in order:
            if node.primitive is None or _tame(node, errors, risky, peaks):
                continue
            view = _View(node, errors, risky, peaks, unreached)
            risk = _risk(view)
            if peaks is not None and peaks.overflow(node).any():
                sizes = sizes or magnitudes(order)
                clash = _cancelled(view, sizes) | _zero_times_infinity(view)
                risk = Risk(risk.infinite, risk.undefined | clash)
            if risk.any():
                risky[node] = risk
    return risky


def _all_left_out(order: Sequence[Node], errors: Errors) -> dict[Node, Mask]:
    """Elements that are zero since nothing leads to them: no term, no choice of them.

    Of infinite inputs, what was not chosen is all that is certain.
    """
    found: dict[Node, Mask] = {}
    leaves = (node.value for node in order if node.primitive is None)
    finite = all(bool(np.isfinite(value).all()) for value in leaves)
    for node in order:
        if node.primitive is None:
            continue
        name = node.primitive.name
        masks = [found.get(s, np.zeros(s.shape, bool)) for s in node.inputs]
        if is_choice(node):
            mask = (node.value == 0) & (errors.errors[node] == 0)
            mask &= np.isfinite(node.inputs[0].value)
        elif not finite:
            continue
        elif name in ("multiply", "divide"):
            mask = masks[0] | masks[1] if name == "multiply" else masks[0] | False
        elif name in ("add", "subtract"):
            mask = masks[0] & masks[1]
        elif name in _LINEAR or ERROR[name] is copied:
            there = (1.0 - mask for mask in masks)
            mask = _compute(node, *there) == 0
        else:
            continue
        if mask.any():
            found[node] = np.broadcast_to(mask, node.shape)
    return found


def stored_infinite(
    value: NDArray[Any], radius: Any, limit: float, beyond: Any
) -> tuple[Mask, Mask]:
    """Where a value is infinite in the tensor that comes out: certainly, and maybe.

    It is rounded to infinity from `beyond` on, and known up to limit * radius.
    """
    with np.errstate(all="ignore"):
        room, half = limit * np.asarray(radius), beyond / 2
        near = np.abs(value.astype(np.float64))  # quicker than in extended precision
        if value.size and largest(near) < half and largest(room) < half:
            return np.zeros(value.shape, bool), np.zeros(value.shape, bool)
        size = np.abs(value)
        certain: Mask = (size == np.inf) | (size - room >= beyond)
        possible: Mask = (room < np.inf) & (size + room >= beyond)
    return certain, possible & ~certain


def _tame(
    node: Node, errors: Errors, risky: dict[Node, Risk], peaks: Peaks | None
) -> bool:
    """The quick answer: far from the end of the range, and so are all inputs."""
    if risky and any(source in risky for source in node.inputs):
        return False
    if peaks is not None and peaks.overflow(node).any():
        return False
    assert node.primitive is not None
    name, top = node.primitive.name, errors.arithmetic.step.largest
    peak = errors.peaks.get(node)
    if peak is not None and name in _ROUNDED and (1 + errors.reach) * peak < top:
        return True
    size = errors.sizes[node]
    if not size.size or ERROR[name] is copied:
        return True
    most = largest(size)
    if not most < np.inf:  # or beyond float64, where extended precision is not
        return False
    peak = largest(errors.errors[node]) if peak is None else peak
    if terms(node) > 1:  # E of a sum is at least the sum of its terms' magnitudes
        inside = min(1.0, errors.arithmetic.sums / errors.arithmetic.roundoff)
        peak = peak / inside
        return bool((1 + errors.reach) * peak < top)
    return bool(most + errors.reach * peak < top)


class _View:
    """What a rule sees of a node and of its inputs."""

    def __init__(
        self,
        node: Node,
        errors: Errors,
        risky: dict[Node, Risk],
        peaks: Peaks | None,
        unreached: Callable[[], dict[Node, Mask]],
    ) -> None:
        self.node, self.errors, self.risky, self.peaks = node, errors, risky, peaks
        self.unreached = unreached

    def left_out(self, i: int) -> Mask:
        """Where an input is zero since nothing leads to it."""
        source = self.node.inputs[i]
        return self.unreached().get(source, np.zeros(source.shape, bool))

    def infinite(self, i: int) -> Mask:
        """Where an input is infinite, or may be."""
        exact: Mask = np.isinf(self.value(i))
        return exact | self.may_overflow(i)

    def _of(self, i: int) -> Risk:
        source = self.node.inputs[i]
        none = np.zeros(source.shape, bool)
        return self.risky.get(source, Risk(none, none))

    def may_overflow(self, i: int) -> Mask:
        """Where an input may be infinite although the reference's value is not."""
        return self._of(i).infinite

    def undefined(self, i: int) -> Mask:
        """Where an input may be nan, though the reference's value need not be."""
        return self._of(i).undefined

    def reach(self, i: int) -> NDArray[np.float64]:
        """The deviation of an input that the judge allows, underflow included."""
        error = self.errors.errors[self.node.inputs[i]]
        reached: NDArray[np.float64] = self.errors.reach * error
        return np.where(np.isnan(reached), np.inf, reached)

    def value(self, i: int) -> NDArray[Any]:
        """An input's value in the wide type."""
        return self.node.inputs[i].value

    def zero(self, i: int) -> Mask:
        """Where an input may be zero."""
        floor = self.errors.arithmetic.step.smallest
        near = self.errors.sizes[self.node.inputs[i]] <= self.reach(i)
        zero: Mask = near | (self.value(i) == 0) | (np.abs(self.value(i)) < floor)
        return zero

    def certain_sign(self, i: int) -> Mask:
        """Where an input has the sign of the reference's value."""
        sure: Mask = self.errors.sizes[self.node.inputs[i]] > self.reach(i)
        return sure


Rule = Callable[[_View], tuple[Any, Any]]


def _risk(at: _View) -> Risk:
    node = at.node
    assert node.primitive is not None
    name = node.primitive.name
    rule = _RULES.get(name) or (_moved if ERROR[name] is copied else _any_input)
    infinite, undefined = rule(at)
    beyond = np.zeros(node.shape, bool) | infinite
    if ERROR[name] is not copied:
        beyond = beyond | _beyond(at)
    undefined = np.zeros(node.shape, bool) | undefined
    return Risk(beyond & ~(node.value != node.value), undefined)


def _beyond(at: _View) -> Mask:
    """Where the node's own result may be rounded to infinity.

    The last rounding cannot lead beyond the largest number: only what was carried
    along counts, and half a unit above that number.
    """
    step, node = at.errors.arithmetic.step, at.node
    size, error = at.errors.sizes[node], at.errors.errors[node]
    carried = at.errors.reach * np.maximum(np.where(error < np.inf, error - size, 0), 0)
    size = np.where(np.isinf(node.value), 0.0, size)  # exact, or what it came from is
    beyond: Mask = size + carried >= step.beyond
    if node.primitive is not None and node.primitive.name in ("add", "subtract"):
        # An operand that is finite is not beyond the largest number.
        ends = (np.abs(at.value(i)) + at.reach(i) for i in (0, 1))
        beyond &= sum(np.minimum(end, step.largest) for end in ends) >= step.beyond
    if at.peaks is not None:
        beyond |= at.peaks.overflow(node)
    return beyond


def _cancelled(at: _View, sizes: Mapping[Node, NDArray[Any]]) -> Mask:
    """Where terms of both signs cancel, and some order makes any of them overflow.

    That gives inf - inf, or the infinity of the term that overflows by itself, which
    need not have the sign of the sum.
    """
    assert at.peaks is not None
    return at.peaks.overflow(at.node) & cancels(at.node.value, sizes[at.node])


def _zero_times_infinity(at: _View) -> Mask:
    """Where a factor or partial product is zero, and another one overflows.

    In a matrix product, of any term.
    """
    assert at.peaks is not None
    node = at.node
    zero = at.peaks.underflow(node) | (node.value == 0)
    if node.primitive is not None and node.primitive.name == "matmul":
        zero |= (at.value(0) == 0).any(axis=-1, keepdims=True)
        zero |= (at.value(1) == 0).any(axis=-2, keepdims=True)
    clash: Mask = at.peaks.overflow(node) & zero
    return clash


def _any_input(at: _View) -> tuple[Any, Any]:
    """Without a rule of its own: any risk of an input is every risk of the output."""
    infinite: Any = np.zeros(at.node.shape, bool)
    for i in range(len(at.node.inputs)):
        mask = at.may_overflow(i) | at.undefined(i)
        pairs = zip(mask.shape[::-1], at.node.shape[::-1], strict=False)
        fits = mask.ndim <= at.node.ndim and all(n in (1, m) for n, m in pairs)
        infinite = infinite | (mask if fits and terms(at.node) == 1 else mask.any())
    return infinite, infinite


def _moved(at: _View) -> tuple[Any, Any]:
    node, inputs = at.node, range(len(at.node.inputs))
    return (
        _compute(node, *map(at.may_overflow, inputs)).astype(bool),
        _compute(node, *map(at.undefined, inputs)).astype(bool),
    )


def _added(sign: float) -> Rule:
    def rule(at: _View) -> tuple[Any, Any]:
        a, b = at.value(0), sign * at.value(1)
        alike = (
            (np.signbit(a) == np.signbit(b)) & at.certain_sign(0) & at.certain_sign(1)
        )
        clash = at.infinite(0) & at.infinite(1) & ~alike
        infinite = at.may_overflow(0) | at.may_overflow(1)
        return infinite, at.undefined(0) | at.undefined(1) | clash

    return rule


def _multiplied(at: _View) -> tuple[Any, Any]:
    """Zero times an infinity; but what was not chosen has no slope, however large."""
    clash = (at.infinite(0) & at.zero(1)) | (at.infinite(1) & at.zero(0))
    infinite = at.may_overflow(0) | at.may_overflow(1)
    undefined = at.undefined(0) | at.undefined(1) | clash
    if undefined.any():
        first, second = at.left_out(0), at.left_out(1)
        left = (first & np.isinf(at.value(1))) | (second & np.isinf(at.value(0)))
        left = (left | (first & second)) & ~np.isnan(at.node.value)
        infinite, undefined = infinite & ~left, undefined & ~left
    return infinite, undefined


def _divided(at: _View) -> tuple[Any, Any]:
    """The sign of a zero is anybody's, and so is that of a quotient by it.

    A divisor that may be infinite leaves nothing certain: the quotient may be zero.
    """
    clash = (at.infinite(0) & at.infinite(1)) | at.zero(1) | at.may_overflow(1)
    infinite = at.may_overflow(0) | at.may_overflow(1) | at.zero(1)
    return infinite, at.undefined(0) | at.undefined(1) | clash


def _exponential(at: _View) -> tuple[Any, Any]:
    """exp(-inf) is zero; so is what would have been, had it not overflowed."""
    sunk = (at.value(0) < 0) & at.certain_sign(0)
    return at.may_overflow(0) & ~sunk, at.undefined(0)


def _root(at: _View) -> tuple[Any, Any]:
    below = (at.value(0) != 0) & (at.value(0) - at.reach(0) < 0)
    return at.may_overflow(0), at.undefined(0) | below


def _logarithm(at: _View) -> tuple[Any, Any]:
    below = (at.reach(0) > 0) & (at.value(0) - at.reach(0) <= 0)
    return at.may_overflow(0) | below, at.undefined(0) | below


def _wave(at: _View) -> tuple[Any, Any]:
    return False, at.undefined(0) | at.infinite(0)


def _bounded(at: _View) -> tuple[Any, Any]:
    """Saturated at infinity as it was long before, if the sign is certain."""
    return False, at.undefined(0) | (at.may_overflow(0) & ~at.certain_sign(0))


def _passed(at: _View) -> tuple[Any, Any]:
    last = len(at.node.inputs) - 1
    infinite = at.may_overflow(0) | at.may_overflow(last)
    return infinite, at.undefined(0) | at.undefined(last)


def _reduced(at: _View) -> tuple[Any, Any]:
    """Where the terms' magnitudes add up beyond the range, a sum may overflow."""
    node, value = at.node, at.value(0)

    def along(mask: Mask) -> Mask:
        return _compute(node, mask.astype(np.float64)) > 0

    size = np.where(np.isfinite(value), np.abs(value), 0.0)
    carried = np.where(np.isfinite(at.reach(0)), at.reach(0), 0.0)
    total = _compute(node, size + carried)
    over = total > at.errors.arithmetic.step.largest
    infinite = at.infinite(0)
    mixed = along(infinite & (value > 0)) & along(infinite & (value < 0))
    mixed |= over & (cancels(node.value, total) | np.isinf(node.value))
    unsure = along(at.may_overflow(0) & ~at.certain_sign(0))
    clash = mixed | unsure | along(at.undefined(0))
    return along(at.may_overflow(0)) | over, clash


def _compute(node: Node, *arrays: NDArray[Any]) -> NDArray[Any]:
    assert node.primitive is not None
    return np.asarray(node.primitive.compute(*arrays, **node.attributes))


def _product(at: _View) -> tuple[Any, Any]:
    """A matrix product: what may be infinite spoils its whole row or column."""
    a, b = (
        (at.infinite(i) | at.undefined(i)).any(axis=axis, keepdims=True)
        for i, axis in ((0, -1), (1, -2))
    )
    sizes = [np.where(np.isfinite(at.value(i)), np.abs(at.value(i)), 0) for i in (0, 1)]
    total = sizes[0] @ sizes[1]
    over = total > at.errors.arithmetic.step.largest / (1 + at.errors.reach)
    mixed = over & cancels(at.node.value, total)
    return over | a | b, mixed | a | b


def _largest(at: _View) -> tuple[Any, Any]:
    axis, keepdims = (at.node.attributes[name] for name in ("axis", "keepdims"))
    return (
        at.may_overflow(0).any(axis=axis, keepdims=keepdims),
        at.undefined(0).any(axis=axis, keepdims=keepdims),
    )


def _chosen(at: _View) -> tuple[Any, Any]:
    """Which of two is larger is not known where both may be infinite."""
    unknown = at.may_overflow(0) & at.infinite(1) | at.may_overflow(1) & at.infinite(0)
    return False, at.undefined(0) | at.undefined(1) | unknown


def _branch(at: _View) -> tuple[Any, Any]:
    """`where` takes its risks from the branch taken, or both where it is contested."""
    open_ = at.errors.errors[at.node.inputs[0]] > 0
    first = at.value(0).astype(bool)
    masks = (
        (of(1) & (first | open_)) | (of(2) & (~first | open_))
        for of in (at.may_overflow, at.undefined)
    )
    infinite, undefined = masks
    return infinite, undefined | at.undefined(0)


def _picked(at: _View) -> tuple[Any, Any]:
    axis = at.node.attributes["axis"]
    risky = (at.may_overflow(0) | at.undefined(0)).any(axis=axis, keepdims=True)
    if at.node.primitive is not None and at.node.primitive.name == "argmax":
        risky = risky.squeeze(axis)
    return False, risky


_RULES: dict[str, Rule] = {
    "add": _added(1.0),
    "subtract": _added(-1.0),
    "multiply": _multiplied,
    "divide": _divided,
    "negative": _passed,
    "abs": _passed,
    "stop_gradient": _passed,
    "exp": _exponential,
    "exp2": _exponential,
    "log": _logarithm,
    "sqrt": _root,
    "square": _passed,
    "sin": _wave,
    "cos": _wave,
    "tanh": _bounded,
    "sigmoid": _bounded,
    "sum": _reduced,
    "sum_to": _reduced,
    "cumulative_sum": _reduced,
    "scatter_add": _reduced,
    "matmul": _product,
    "maximum": _passed,
    "max": _largest,
    "share": _chosen,
    "compare": _chosen,
    "where": _branch,
    "sign": lambda at: (False, at.undefined(0)),
    "pick": _picked,
    "argmax": _picked,
}
