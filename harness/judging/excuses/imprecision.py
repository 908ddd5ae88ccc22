"""Losses of an honest but careless algorithm: rules for the verdict `imprecise`.

Equal terms round the same way every time, and a sequential sum of them loses up to n
roundings of the terms' magnitudes (Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., section 4.2). A lost term is no imprecision: the excuse of a sum is
therefore not that worst case, but a measured loss. The very terms are added up one by
one in the precision in question, and twice the largest loss of any partial sum,
relative to its terms' magnitudes, is allowed. Where n u > 1 there is no bound (section
3.1), and no excuse for an element. But terms of both signs lose little, as a tensor as
a whole shows: half a unit of each partial sum, independently (Higham and Mary 2019).

A function that saturates may be computed as its distance from 1: it has two roundings
of 1. An input may be recovered from sums (`recovered`). Factors multiplied in another
order may underflow on the way: a subnormal partial product is off by at most half the
spacing s of the subnormal numbers (section 2.1), and so the whole by s / 2 over the
smallest partial product (overflow.py), and at most by itself.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gradwatch.harness.judging.excuses.overflow import Peaks, magnitudes
from gradwatch.harness.judging.precisions import Array, Precision
from gradwatch.harness.judging.rounding.analysis import (
    RULES,
    At,
    Error,
    Table,
    computed,
    is_mean,
    moves,
    operation,
    unmoved,
)
from gradwatch.harness.judging.rounding.thresholds import UNIT
from gradwatch.impls.graph import PRIMITIVES, Node, as_array, topological_order
from gradwatch.impls.graph.engine import summed_axes

Rule = Callable[[At], Error]

#: Factors that may be taken out of a sum: equal terms then round in another way.
FACTORS = 2.0 ** (np.arange(1, 4) / 4)
#: Products of a matrix product that are added up one by one, in about a second.
MOST = 1 << 24
#: Products that are held at a time.
TOGETHER = 1 << 20
#: Elements of a row from which NumPy adds rows several times as fast as it accumulates.
LONG = 1 << 9
#: Roundoff of scores that are computed again, at most; share that a weight may lose.
AGAIN, LITTLE = 2.0**-23, 1 / 8

#: Products that lie between e and 1 + e in the gradient of log(1 + e).
DEEP = 4
_PRODUCTS = ("multiply", "divide", "negative")
#: Products that may have recovered values for factors, and those that may underflow.
_RECOVERING: Mapping[str, Any] = {"matmul": np.matmul, "multiply": np.multiply}
_SHRINKING = [name for name, rule in RULES.items() if rule.powers and rule.rounds]
_SUMS = ("add", "subtract")


def _sum(sums: Precision, at: At, *, full: bool = False) -> Error:
    """The E that a careless sum adds: its terms are scattered to their sums."""
    (source,), node = at.node.inputs, at.node
    axes = summed_axes(node, source.shape)
    kept = tuple(1 if i in axes else n for i, n in enumerate(source.shape))
    places = np.broadcast_to(np.arange(node.size).reshape(kept), source.shape)
    return as_array(_shift_lost(at) + _left_out(at) + _lost(sums, at, places, full))


def _shift_lost(at: At) -> Error:
    """The loss of sum(exp(x - m)) as exp(logsumexp(x) - m): two roundings of m.

    Of x, too, if it is a product that is computed again. There is none where little is
    left of an exponential.
    """
    power, moved = at.node.inputs[0], list[Node]()
    while moves(power) and len(power.inputs) == 1:
        moved.append(power)
        (power,) = power.inputs
    if operation(power) != "exp" or operation(shifted := power.inputs[0]) != "subtract":
        return np.zeros(())
    (x, shift), again = shifted.inputs, np.zeros(power.shape)
    behind = topological_order([x])
    if products := [i for i, n in enumerate(behind) if operation(n) == "matmul"]:
        terms = magnitudes(behind[products[-1] :])[x]
        again = np.where(power.value > 0, power.value * terms, 0.0)
    sizes = np.broadcast_to(np.abs(shift.value), power.shape)
    for node in reversed(moved):  # heads of it
        sizes, again = computed(node, sizes), computed(node, again)
    lost = 2 * at.roundoff * computed(at.node, sizes * at.a) / at.v
    again = min(2.0, AGAIN / at.roundoff) * computed(at.node, again)
    found = np.where(at.u * again < LITTLE * at.v, again, 0.0)
    return found + np.where(lost < 1, at.v * np.expm1(lost) / at.u, 0.0)


def _left_out(at: At) -> Error:
    """The loss where sum(c (x - mean)), exactly zero, is left out of a gradient.

    Then the shift of all terms by a rounding of the mean is not taken out again.
    """
    (source,), node = at.node.inputs, at.node
    shift = _shift_by_mean(source)
    if not shift.any():
        return np.zeros(())
    wide = source.size / node.size * float(np.finfo(node.dtype).eps)
    nothing = at.v <= wide * computed(node, at.a + shift)  # the reference's rounding
    return np.where(nothing, computed(node, shift), 0.0)


def _shift_by_mean(node: Node) -> Error:
    """The E that a rounding of the mean adds to a product with x - mean(x)."""
    if operation(node) == "add":
        return as_array(sum(map(_shift_by_mean, node.inputs)))
    for part in _factors(node, DEEP):
        if operation(part) == "subtract" and part.shape == node.shape:
            value, mean = part.inputs
            if is_mean(mean, value):
                size = np.abs(node.value / part.value * mean.value).astype(np.float64)
                return np.where(np.isfinite(size), size, 0.0)
    return np.zeros(node.shape)


def _partial_sums(rows: Array) -> Array:
    """The sums of the first 1, 2, ... rows, which are added one by one."""
    if rows[:1].size < LONG:
        return np.add.accumulate(rows, axis=0)
    return np.stack([*itertools.accumulate(rows)])


def _losses(rows: Array, sums: Precision) -> Error:
    """The relative loss of each partial sum of rounded terms, along the first axis."""
    with np.errstate(all="ignore"):
        rows = sums.round(np.asarray(rows))  # a device adds in another order
        if len(rows) * sums.roundoff > 1:  # no bound: independent roundings
            halves = np.exp2(np.frexp(np.cumsum(rows, axis=0))[1] - 1) * sums.roundoff
            off = np.linalg.norm(halves.astype(np.float64), axis=0, keepdims=True)
            return np.asarray(np.nan_to_num(off / np.abs(rows).sum(axis=0)))
        if sums.name == "bfloat16":  # NumPy lacks it
            steps = itertools.accumulate(rows, lambda a, b: sums.round(a + b))
            narrow: Array = np.stack([*steps])
        else:
            narrow = _partial_sums(rows.astype(sums.name))
        gap = np.abs(narrow - _partial_sums(rows))
        loss = (gap / _partial_sums(np.abs(rows))).astype(np.float64)
    return np.where(np.isfinite(loss), loss, 0.0)


def _cumulative_sum(sums: Precision, at: At) -> Error:
    """The loss of each partial sum, which includes those of the sums before it."""
    axis = at.node.attributes["axis"]
    rows = np.moveaxis(at.node.inputs[0].value, axis, 0)
    excused = np.zeros(rows.shape)
    rows = rows[: int(1 / sums.roundoff)]  # beyond n u = 1 there is no excuse
    losses = np.maximum.accumulate(_losses(rows, sums), axis=0)
    total = np.cumsum(np.abs(rows), axis=0).astype(np.float64)
    excused[: len(rows)] = UNIT * losses * total / at.u  # blocked: hardly twice it
    return np.moveaxis(excused, 0, axis)


def _lost(sums: Precision, at: At, places: Array, full: bool = False) -> Error:
    """The loss at each place where terms are added up, in E.

    It is one rounding of each term, or a sequential sum's; if n u > 1 only in `full`.
    """
    values, size = at.node.inputs[0].value.reshape(-1), at.node.size
    places = places.reshape(-1)
    taken = np.flatnonzero(places >= 0)
    counts = np.bincount(places[taken], minlength=size)
    total = np.bincount(places[taken], np.abs(values[taken]).astype(float), size)
    lost = np.where(counts > 1, sums.roundoff * total, 0.0)
    several = (counts > 1) & (full | (counts * sums.roundoff <= 1))
    columns = np.cumsum(several) - 1
    if several.any() and counts[several].max() * (columns[-1] + 1) <= MOST:
        taken = taken[several[places[taken]]]
        losses = np.zeros(columns[-1] + 1)
        for way in (taken, taken[::-1]):
            order = way[np.argsort(columns[places[way]], kind="stable")]
            column = columns[places[order]]
            rows = np.arange(column.size) - np.searchsorted(column, column)
            table = np.zeros((rows.max() + 1, losses.size), values.dtype)
            table[rows, column] = values[order]  # a column for each sum, zeros below
            losses = np.maximum(losses, _losses(table, sums).max(axis=0))
            off = np.abs(table - table[0]) > sums.roundoff * np.abs(table[0])
            equal = ~(off & (table != 0)).any(axis=0)
            for factor in FACTORS if equal.any() else ():
                scaled = _losses(factor * table[:, equal], sums).max(axis=0)
                losses[equal] = np.maximum(losses[equal], scaled)
        lost = np.where(several, np.maximum(lost, UNIT * losses[columns] * total), lost)
    return as_array(lost / at.u).reshape(at.v.shape)


def _matmul(sums: Precision, at: At) -> Error:
    """The loss of a sum: products are added up one by one, some rows at a time."""
    count = at.a.shape[-1]
    many, lost = at.v.size * count, np.full((), sums.roundoff if count > 1 else 0.0)
    if many <= MOST and count > 1 and count * sums.roundoff <= 1:
        a, b = (source.value for source in at.node.inputs)
        losses = [
            _losses(np.moveaxis(rows[..., None] * b[..., None, :, :], -2, 0), sums)
            for rows in np.array_split(a, 1 + many // TOGETHER, axis=-2)
        ]
        worst = np.concatenate([loss.max(axis=0) for loss in losses], axis=-2)
        lost = np.maximum(lost, UNIT * worst)  # a blocked sum loses hardly twice it
    return as_array(lost * (at.a @ at.b) / at.u)


def _parts(at: At) -> Error:
    """One rounding of each term: parts may be summed in 16 bits, but terms are not."""
    return as_array(at.roundoff / at.u * np.sqrt(at.a**2 @ at.b**2))


def _near_one(at: At, lost: Error) -> Error:
    """A loss beside 1, in E: at most |v|, lest the sign turn, but all for a tiny v."""
    lost = np.where(np.isfinite(lost), lost, 0.0)
    left = at.v >= at.arithmetic.step.trace * lost
    return as_array(np.where(left, np.minimum(lost, at.v), lost) / at.u)


def _saturated(at: At) -> Error:
    """The loss of e / (1 + e) as 1 - 1 / (1 + e), e = exp(x): two roundings of 1."""
    lost, found = np.zeros(at.node.shape), _factors(at.node, DEEP)
    added = [s for n in found if operation(n) == "add" for s in map(unmoved, n.inputs)]
    for e in found:
        in_sum = any(e is s for s in added)
        if in_sum and operation(e) == "exp" and e.shape == at.node.shape:
            size = e.value.astype(np.float64)
            lost += 2 * at.roundoff * at.v * (1 + size) / np.where(size > 0, size, 1)
    return _near_one(at, lost)


def _places(node: Node) -> Array:
    """The flat position at which a scatter adds each value; -1 where it does not."""
    how = {k: v for k, v in node.attributes.items() if k != "shape"}
    numbered = np.arange(node.size).reshape(node.shape) + 1
    return np.asarray(PRIMITIVES["gather"].compute(numbered, **how)) - 1


def _factors(node: Node, depth: int) -> list[Node]:
    """The factors and divisors of a product, through `depth` nested products."""
    node = unmoved(node)
    if depth and operation(node) in _PRODUCTS:
        return [n for s in node.inputs for n in _factors(s, depth - 1)]
    return [node]


def careless(
    sums: Precision, lost: Mapping[Node, Error], peaks: Peaks, *, full: bool = False
) -> Table:
    """Rules for `running_errors` of an algorithm that adds one by one in `sums`.

    `lost` are the losses `recovered`; in `full` all count in draws of honest size.
    """
    found = dict[Node, Error]()  # a node is asked for its E, and for its own part of it
    own: dict[str, Rule] = {
        **dict.fromkeys(("sum", "sum_to"), functools.partial(_sum, sums, full=full)),
        "cumulative_sum": functools.partial(_cumulative_sum, sums),
        "scatter_add": lambda at: _lost(sums, at, _places(at.node)),
        "matmul": _parts if full else functools.partial(_matmul, sums),
        # log(1 + x), where 1 + x is rounded, and a small x with it.
        "log1p": lambda at: _near_one(
            at, at.roundoff / np.abs(1 + at.node.inputs[0].value).astype(np.float64)
        ),
        "multiply": _saturated,
        # 1/2 + tanh(x / 2) / 2: two roundings of numbers near 1.
        "sigmoid": lambda at: _near_one(at, 2 * at.roundoff * (at.node.value != 1)),
    }

    def rule(name: str) -> Rule:
        def error(at: At) -> Error:
            if at.node not in found:
                found[at.node] = own[name](at) if name in own else np.zeros(())
            more = found[at.node]
            if name in _RECOVERING:
                (a, b), times = at.node.inputs, _RECOVERING[name]
                more = more + times(lost[a], at.b) if a in lost else more
                more = more + times(at.a, lost[b]) if b in lost else more
            if name in _SHRINKING or (name == "matmul" and at.a.shape[-1] == 1):
                step, least = at.arithmetic.step, peaks.ends[at.node][1]
                share = np.minimum(np.exp2(step.least - step.digits - least), 1.0)
                off = (least < step.least) & (at.v > 0)  # the smallest is subnormal
                more = more + np.where(off, at.v * share / at.u, 0.0)
            scale = at.u / at.roundoff if full else 1.0
            return as_array(RULES[name].error(at) + scale * more)

        return error

    return {name: rule(name) for name in {*own, *_RECOVERING, *_SHRINKING}}


def recovered(order: Sequence[Node], outputs: Iterable[Node]) -> dict[Node, Error]:
    """Losses of terms that are recovered from a sum, in E: one rounding of the sum.

    Of y = x1 + f(x2), z = x2 + g(y) a reversible block keeps y and z alone, and finds
    x2 as z - g(y), then x1 (Gomez and others, The Reversible Residual Network, 2017,
    section 3.2). Inputs and sums can be recovered where the other term follows from
    the outputs and from values already recovered.
    """
    lost, known, waiting = dict[Node, Error](), set[Node](), [*outputs]
    while waiting:
        node = waiting.pop()
        known.add(node)
        if moves(node) or operation(node) == "sum":  # of both halves
            waiting += node.inputs
    for total in reversed(order):
        if total not in known or operation(total) not in _SUMS:
            continue
        for part, other in zip(total.inputs, total.inputs[::-1], strict=True):
            if operation(unmoved(part)) not in ("", *_SUMS) or part in lost:
                continue
            if part.shape == total.shape and not _needs(other, part, known):
                size = np.abs(total.value).astype(np.float64)
                _note(part, size + lost.get(total, 0.0), lost)
                known |= lost.keys()
    for node in order:
        if moves(node) and node not in lost and any(s in lost for s in node.inputs):
            given = (lost.get(s, np.zeros(s.shape)) for s in node.inputs)
            lost[node] = computed(node, *given)
    return lost


def _needs(node: Node, part: Node, known: Collection[Node]) -> bool:
    """Whether a node is computed from `part`, and not from known nodes alone."""
    waiting, seen = [node], set[Node]()
    while waiting:
        node = waiting.pop()
        if node is part:
            return True
        if node not in seen and node not in known:
            waiting += node.inputs
        seen.add(node)
    return False


def _note(node: Node, error: Error, lost: dict[Node, Error]) -> None:
    """Note the loss of a node, also for the nodes whose elements it only moves."""
    lost[node] = error
    if not moves(node):
        return
    ends = np.cumsum([1, *(source.size for source in node.inputs)])
    places = [
        np.arange(end - source.size, end).reshape(source.shape)
        for source, end in zip(node.inputs, ends[1:], strict=True)
    ]
    flat = np.zeros(ends[-1])
    np.maximum.at(flat, computed(node, *places).astype(np.intp), error)
    for source, place in zip(node.inputs, places, strict=True):
        _note(source, flat[place], lost)
