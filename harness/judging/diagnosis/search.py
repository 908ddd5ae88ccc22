"""Finds the edits of the right gradient's graph that give what a candidate gave.

What an edit gives is compared within the radius that judges, and no other tolerance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from gradwatch.harness.judging.diagnosis.edits import (
    Edit,
    broad,
    constants,
    local,
    repeated,
)
from gradwatch.harness.judging.diagnosis.sweep import (
    Array,
    Make,
    Sweep,
    Tensors,
    signs,
)
from gradwatch.harness.judging.diagnosis.tensors import (
    region_of,
    regions,
    split,
)
from gradwatch.harness.judging.diagnosis.words import Words, factored, written
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.reference import Reference
from gradwatch.harness.judging.verdict import allowed
from gradwatch.harness.judging.whole import Whole
from gradwatch.impls.graph import Node

EACH = 2.0  # seconds of the processor: a busy machine finds the same
WRONG = ("disagree", "nonfinite")
MOST = 48  # edits that are evaluated in full for one tensor
SAME = 1e-6  # of another point's values: two edits that differ by less say the same
BITS = 96  # of all elements, which many explanations fit by chance: 4 of float32
SEVERAL = 3  # explanations beside which none is certain
MANY = 16  # elements that no two edits fit by chance, with so many digits:
SHARP = 24
PAIRS = 8  # pairs of edits that are evaluated in full for one tensor
FAR = 8  # rank from which an explanation is no reason to stop
Predict = Callable[[Mapping[Node, Array]], Tensors]
#: By an edit that fits no shape here, or an attribute of another operation.
Raised = (ValueError, TypeError, LookupError)


@dataclass(frozen=True)
class Finding:
    """An explanation of a wrong tensor.

    Attributes:
        rank: How far-fetched it is; least is best.
        words: A sentence in the user's terms.
        predict: What it makes of the tensors at any point; None if nothing.
        elements, bits: So many agree with it.
        others: Explanations that mean something else and agree as well.
    """

    rank: float
    words: str
    predict: Predict | None = None
    elements: int = 0
    bits: int = 0
    others: int = 0

    @property
    def certain(self) -> bool:
        """Whether so many digits agree, and few other explanations do."""
        return self.bits >= BITS and self.others < SEVERAL

    @property
    def sentence(self) -> str:
        """What is said of it."""
        if self.predict is None:
            return self.words
        said = f"{self.words}: with this, all {self.elements} elements agree"
        if self.bits < BITS:
            said = f"{self.words}: {self.elements} elements show little"
        elif self.others:
            does = "explanation does" if self.others == 1 else "explanations do"
            said += f" ({self.others} other {does}, too)"
        return said if self.certain else f"perhaps {said}"


#: Projections of a tensor's error, how far off they may be, and how nodes move them.
Weighed = tuple[Array, float, Mapping[Node, Array]]
Move = tuple[Array, Edit]


class Case:
    """What came back, and how far it may be off."""

    def __init__(
        self,
        right: Reference,
        got: Mapping[str, Array | None],
        judgements: Sequence[Any],
        until: float,
    ) -> None:
        """What is judged to be wrong is to be explained by the time `until`.

        It may be off by the judge's own tolerance, limit times radius.
        """
        assert right.build is not None
        ties = next((j.convention for j in judgements if j.convention), "first")
        ties = ties if ties in right.graphs else "first"
        self.sweep, self.until = Sweep(right.build, ties), until
        self.right = self.sweep.gradients(self.sweep.values)
        arrays = {n: np.asarray(a) for n, a in got.items() if n in self.right}
        self.got = {
            n: a.astype(right.wide)
            for n, a in arrays.items()
            if a.shape == self.right[n].shape and a.dtype != object
        }
        self.wrong = [
            j.tensor for j in judgements if j.verdict in WRONG and j.tensor in self.got
        ]
        self.tolerance = {n: allowed(right, "first", n) for n in self.got}
        self.last = right.limit * right.arithmetics[-1].roundoff
        precision = PRECISIONS[right.dtype]
        self.digits, self.roundoff = precision.digits, precision.roundoff
        self.wholes: Mapping[str, Whole] = (
            right.wholes(ties, right.arithmetics[-1]) if self.digits < SHARP else {}
        )
        self.words = Words(self.sweep)
        self.found: dict[str, list[Finding]] = {name: [] for name in self.wrong}
        nodes = {*self.sweep.order, *self.sweep.parts.values()}
        self.lengths = {n for node in nodes for n in (*node.shape, node.size)}
        summed = (n for n in nodes if n.inputs and n.size)
        self.lengths |= {n.inputs[0].size // n.size for n in summed}

    @property
    def late(self) -> bool:
        """Whether the time of the processor is up."""
        return time.thread_time() > self.until

    @property
    def open(self) -> list[str]:
        """Wrong tensors without an explanation that is worth its name."""
        return [n for n in self.wrong if not any(f.rank < FAR for f in self.found[n])]

    def error(self, name: str) -> tuple[Array, Array]:
        """How far off a tensor is, and the weight: one over how far it may be."""
        right, got = self.right[name], self.got[name]
        room, size = self.tolerance[name] + self.last * np.abs(right), np.abs(right)
        known = np.isfinite(room) & np.isfinite(size)
        largest = np.max(size, initial=0.0, where=known)
        w = 1 / np.maximum(room, max(1e-18 * float(largest), 1e-290))
        return got - right, np.where(known, w, 0.0)

    def weighed(self) -> dict[str, Weighed]:
        """Of each wrong tensor whose error is finite."""
        found = dict[str, Weighed]()
        for name in self.wrong:
            error, w = self.error(name)
            seen = np.array([float(np.sum(error * w * s)) for s in signs(w.shape)])
            if np.isfinite(seen).all():
                room = 3 * math.sqrt(max(1.0, float(np.count_nonzero(w))))
                room += 1e-7 * _most(seen)
                found[name] = seen, room, self.sweep.weights(name, w)
        return found

    def fits(self, name: str, value: Array) -> bool:
        """Whether a tensor is what came back, within the judge's radii, also whole."""
        got, room = self.got[name], self.tolerance[name]
        same = (value == got) | np.isinf(room) | (np.isnan(value) & np.isnan(got))
        room = room + self.last * np.where(np.isfinite(value), np.abs(value), 0)
        if not (same | (np.abs(value - got) <= room)).all():
            return False
        whole, right = self.wholes.get(name), self.right[name]
        if whole is None:
            return True
        rest = np.where(np.isfinite(got), got - value, 0)
        larger = np.linalg.norm(value) / np.linalg.norm(right)
        rest = rest / larger if 1 < larger < np.inf else rest
        return bool(whole.worst(right + rest)[0] <= whole.limit)

    def scaled(self, edit: Edit, factor: float, said: str) -> Edit:
        """An edit with a factor before it, which has words if a person writes it."""
        if factor == 1:
            return edit
        ((node, make),) = edit.edits.items()
        rank, text = edit.rank + 2.5 * (not edit.plain), edit.text
        if not said:
            rank = FAR - (node in self.sweep.ends)
            said = f"multiplied by {factored(factor)}"
        text += f" {said}" if edit.plain else f", {said}"
        made: dict[Node, Make] = {node: lambda at: make(at) * factor}
        return replace(edit, rank=rank, text=text, edits=made)

    def edited(self, edit: Edit) -> None:
        """Evaluate an edit in full, and note what it explains.

        Less is believed of one by which other tensors would be wrong, or stay so.
        """
        predict = partial(self.sweep.gradients, edit=edit)
        try:
            made = predict(self.sweep.values)
        except Raised:
            return
        if any(made[n].shape != self.right[n].shape for n in self.got):
            return
        rank, fit = edit.rank, {n: self.fits(n, made[n]) for n in self.got}
        moved = (n for n in self.wrong if (made[n] != self.right[n]).any())
        explained = [n for n in moved if fit[n]]
        if explained and edit.about[0] not in self.sweep.ends:
            rank += not all(fit[n] for n in self.wrong)
            rank += 1.5 * (not all(fit[n] for n in fit if n not in self.wrong))
        size = sum(self.got[n].size for n in explained)
        bits = size * min(self.digits, SHARP)
        if edit.plain and rank >= FAR - 1 and bits < BITS:
            return  # a factor without a name fits a single number
        words = self.words.say(edit) if explained else ""
        for name in explained:
            if all(words != one.words for one in self.found[name]):
                one = Finding(rank, words, predict, size, bits)
                self.found[name].append(one)


def explanations(
    right: Reference,
    got: Mapping[str, Array | None],
    judgements: Sequence[Any],
    seconds: float = EACH,
) -> tuple[Sweep | None, dict[str, list[Finding]]]:
    """The right gradient's graph, and by wrong tensor what explains it, best first.

    The reference is built once more; nothing is where nothing is to be explained.
    """
    until = time.thread_time() + seconds
    if right.build is None or all(j.verdict not in WRONG for j in judgements):
        return None, {}
    with np.errstate(all="ignore"):
        case = Case(right, got, judgements, until)
        for edit in _likely(case):
            if case.late:
                break
            case.edited(edit)
        return case.sweep, {name: _ranked(case, name) for name in case.wrong}


def _likely(case: Case) -> Iterator[Edit]:
    """What may be the mistake, from cheap to dear, as long as a tensor is open."""
    for n in case.wrong:
        yield from regions(case.sweep, n, case.got[n], case.tolerance[n])
    weighed = case.weighed()
    chances, moves = _local(case, weighed) if weighed else ([], {})
    yield from chances
    for name in case.open if case.digits >= SHARP else ():
        if moves.get(name) and case.got[name].size >= MANY:
            yield from _pairs(weighed[name], moves[name])
    for constant in constants(case.sweep):
        for name in case.open:
            if case.got[name].size * case.digits >= BITS:
                yield from _solved(case, name, *constant)
    for edits in (repeated, broad):
        if case.open:
            yield from edits(case.sweep, case.digits)


def _local(
    case: Case, weighed: Mapping[str, Weighed]
) -> tuple[list[Edit], Mapping[str, list[Move]]]:
    """Edits of one node that may explain most tensors, by their projections.

    Beside them is how each edit moves the projections of each tensor.
    """
    chances: list[tuple[tuple[Any, ...], Edit]] = []
    moves: dict[str, list[Move]] = {name: [] for name in weighed}
    for i, edit in enumerate(local(case.sweep, case.digits)):
        if i % 64 == 0 and time.thread_time() > case.until - EACH / 2:
            break  # the rest of the time is for other rows
        found = list[tuple[float, list[tuple[float, str]]]]()
        for name, old, new in _moved(case, weighed, edit):
            moves[name].append((new - old, edit))
            found += _factors(case, weighed[name], edit, old, new)
        for off, factors in found:
            named = edit.rank if factors[0][1] or not edit.plain else FAR
            for j, factor in enumerate(factors):
                key = -len(found), named, off, i, j
                chances.append((key, case.scaled(edit, *factor)))
    best = sorted(chances, key=lambda chance: chance[0])[: MOST * len(weighed)]
    return [edit for _, edit in best], moves


def _moved(
    case: Case, weighed: Mapping[str, Weighed], edit: Edit
) -> Iterator[tuple[str, Array, Array]]:
    """By tensor the projections of a node as it is, and as an edit has it."""
    ((node, make),) = edit.edits.items()
    old, seen = case.sweep.values[node], [n for n in weighed if node in weighed[n][2]]
    try:
        new = make(case.sweep.values.__getitem__) if seen else old
    except Raised:
        return
    if new.shape == old.shape and (edit.plain or (new != old).any()):
        both = [x.astype(np.float64).ravel() for x in (old, new)]
        for name in seen:
            of = weighed[name][2][node]
            yield name, of @ both[0], of @ both[1]


def _factors(
    case: Case, weighed: Weighed, edit: Edit, old: Array, new: Array
) -> list[tuple[float, list[tuple[float, str]]]]:
    """How far off an edit leaves the projections, and factors that may be in it."""
    error, room, _ = weighed
    target, room = old + error, room + 1e-12 * _most(old)
    off = _most(target - new)
    if off <= room and not edit.plain:
        return [(off, [(1.0, "")])]
    along = new / (_most(new) or np.nan)
    along = along / _most(new) / (along @ along)
    factor, scale = float(target @ along), float(old @ along)
    off = _most(target - factor * new)
    alike = not edit.plain and _most(old - scale * new) < 1e-9 * _most(old)
    if not off <= room or abs(factor - 1) <= case.roundoff or alike:
        return []  # what only scales a term here is a factor
    near = 4 * room / max(_most(new), 1e-300)
    factors = written(factor, case.lengths, min(max(near, 1e-5), 0.02))
    if edit.plain:
        return [(off, [*factors, (factor, "")])]
    factors = [(c, said) for c, said in factors if c]  # of 0 nothing of it is left
    return [(off, factors)] if factors else []


def _most(x: Array) -> float:
    return float(np.abs(x).max())


def _pairs(weighed: Weighed, moves: list[Move]) -> list[Edit]:
    """Two edits whose changes add up to the error, likeliest first."""
    from scipy.spatial import KDTree  # takes as long to import as all of the judge

    moves = sorted(moves, key=lambda move: move[1].rank)
    error, room, _ = weighed
    room, most = room + 1e-9 * _most(error), 1e3 * _most(error)
    changes = np.stack([change for change, _ in moves]) / room
    changes = np.where(np.abs(changes) <= most / room, changes, 0)  # and where nan
    kept = np.sort(np.unique(np.rint(changes), axis=0, return_index=True)[1])
    kept = kept[np.rint(changes[kept]).any(axis=1)]
    few, wanted = changes[kept], error / room - changes[kept]
    rest = KDTree(few).query_ball_point(wanted, 1, np.inf) if len(few) else ()
    both = ((kept[i], kept[j]) for i, found in enumerate(rest) for j in found if i < j)
    pairs = [moves[i][1].beside(moves[j][1]) for i, j in both]
    return sorted(pairs, key=lambda edit: edit.rank)[:PAIRS]


def _solved(
    case: Case, name: str, old: float, of: Callable[[float], Edit]
) -> Iterator[Edit]:
    """A constant with which a projection of a tensor is what came back.

    By the secant method; of the numbers that fit it is the one of fewest digits.
    """
    (error, w), got = case.error(name), case.got[name]

    def made(value: float) -> Array:
        return case.sweep.gradients(case.sweep.values, of(value))[name]

    def short(value: float) -> float:
        return float(np.sum(error * w * w * (got - made(value))))

    before, now = old, old * (1 + 1.1e-3) if old else 1.1e-6
    first, wide = now, abs(now - old)
    high, low = short(before), short(now)
    for _ in range(24):
        if not np.isfinite(low) or low == high or abs(now - before) <= 1e-14 * abs(now):
            break
        before, now, high = now, now - low * (now - before) / (low - high), low
        low = short(now)
    step = abs(now - first) < 1e-3 * wide  # beyond it any number would do
    if np.isfinite(now) and not step and now != old and case.fits(name, made(now)):
        briefer = [0.0, *(float(f"{now:.{d}g}") for d in range(1, 6))]
        yield from [of(v) for v in briefer if case.fits(name, made(v))][:1]


def _ranked(case: Case, name: str) -> list[Finding]:
    """The explanations of a tensor that mean different things, best first."""
    found = sorted(case.found[name], key=lambda f: (f.rank, len(f.words)))
    if not found:
        return [Finding(99, _common(case, name))]
    other, kept = case.sweep.near(1), list[tuple[Array, Finding]]()
    for one in found[:16]:
        assert one.predict is not None
        there = np.asarray(one.predict(other)[name])
        size = np.max(np.abs(there), initial=0.0, where=np.isfinite(there))
        if not any(
            np.allclose(there, seen, rtol=SAME, atol=float(SAME * size), equal_nan=True)
            for seen, _ in kept
        ):
            kept.append((there, one))
    return [replace(one, others=len(kept) - 1) for _, one in kept]


def _common(case: Case, name: str) -> str:
    """What the wrong elements have in common, where nothing explains them."""
    error = np.abs(case.got[name] - case.right[name])
    ratios = error / case.tolerance[name]
    bad = ~(ratios <= 1)
    if not bad.any():
        return f"no element of {name} is off by more than roundings, but all together"
    most = float(np.max(ratios, initial=0.0, where=np.isfinite(ratios)))
    for narrow, precision in PRECISIONS.items():
        reach = most * 2.0 ** (precision.digits - case.digits)
        if precision.digits < case.digits and 2e-4 <= reach <= 1:
            said = f"the errors of {name} are as large as roundings of {narrow}"
            return f"{said}: perhaps something is computed or kept in it"
    seen = "looked at " if case.sweep.parts else ""
    share = f"{int(bad.sum())} of {bad.size} elements {seen}of {name} are wrong"
    named = {n: node.value for node, n in case.words.names.items()}
    alike = {n: a for n, a in named.items() if a.shape == bad.shape and n != name}
    alike = {n: a for n, a in alike.items() if a.dtype.kind == "f"}
    if where := (not seen and region_of(bad)[1]) or split(bad.ravel(), alike):
        return f"{share}: {where}"
    alike["the right gradient"] = case.right[name]
    for other, array in alike.items() if bad.size >= MANY else ():
        one, two = (np.argsort(np.argsort(np.abs(a), None)) for a in (error, array))
        if np.ptp(np.abs(array)) > 0 and np.corrcoef(one, two)[0, 1] > 0.9:
            return f"{share}; the error follows the size of {other}"
    return share
