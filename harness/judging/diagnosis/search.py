"""Finds the edits of the right gradient's graph that give what a candidate gave.

What an edit gives is compared within the radius that judges, and no other tolerance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradwatch.harness.judging.diagnosis import edits as rows
from gradwatch.harness.judging.diagnosis.edits import Edit
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
    weights,
)
from gradwatch.harness.judging.diagnosis.words import Words, factored, written
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.reference import Reference
from gradwatch.harness.judging.verdict import allowed
from gradwatch.harness.judging.whole import Whole
from gradwatch.impls.graph import Node

MOST = 48  # edits that are evaluated in full for one tensor
SAME = 1e-6  # of another point's values: two edits that differ by less say the same
BITS = 96  # of all elements, which many explanations fit by chance: 4 of float32
SEVERAL = 3  # explanations beside which none is certain
MANY = 16  # elements that no two edits fit by chance, with so many digits:
SHARP = 24
PAIRS = 8  # pairs of edits that are evaluated in full for one tensor
FAR = 8  # rank from which an explanation is no reason to stop
#: What pairs of edits do to terms.
FACTORS = [(c, written(c, (), 0)[0][1]) for c in (0.0, 2.0, -1.0)]
ONCE = [(1.0, "")]
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
        if self.bits < BITS:
            return f"perhaps {self.words}: {self.elements} elements show little"
        said = f"{self.words}: with this, all {self.elements} elements agree"
        more = "explanation does" if self.others == 1 else "explanations do"
        said += f" ({self.others} other {more}, too)" if self.others else ""
        return said if self.certain else f"perhaps {said}"


#: Projections of a tensor's error, how far off they may be, and how nodes move them.
Weighed = tuple[Array, float, Mapping[Node, Array]]


class Case:
    """What came back, and how far it may be off."""

    def __init__(
        self,
        right: Reference,
        ties: str,
        got: Mapping[str, Array | None],
        wrong: Sequence[str],
        until: float,
    ) -> None:
        """Of tensors that came back, `wrong` are to be explained, by the time `until`.

        They may be off by the judge's own tolerance, limit times radius.
        """
        assert right.build is not None
        self.sweep = sweep = Sweep(right.build, ties)
        self.got = {
            n: a.astype(right.wide)
            for n, a in got.items()
            if n in sweep.tensors and a is not None
            if a.shape == sweep.tensors[n].shape
        }
        self.wrong, self.until = [n for n in wrong if n in self.got], until
        self.tolerance = {n: allowed(right, "first", n) for n in self.got}
        self.last = right.limit * right.arithmetics[-1].roundoff
        precision = PRECISIONS[right.dtype]
        self.digits, self.roundoff = precision.digits, precision.roundoff
        self.wholes: Mapping[str, Whole] = (
            right.wholes(ties, right.arithmetics[-1]) if self.digits < SHARP else {}
        )
        self.words = Words(sweep)
        self.right = sweep.gradients(sweep.values)
        self.found: dict[str, list[Finding]] = {name: [] for name in self.wrong}
        #: One over how far each element may be off, with a last rounding.
        self.weight = {
            n: weights(self.tolerance[n] + self.last * np.abs(value), value)
            for n, value in self.right.items()
            if n in self.wrong
        }
        nodes = {*sweep.order, *sweep.parts.values()}
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

    def weighed(self) -> dict[str, Weighed]:
        """Of each wrong tensor whose error is finite."""
        found = dict[str, Weighed]()
        for name, w in self.weight.items():
            error = (self.got[name] - self.right[name]) * w
            seen = np.array([float(np.sum(error * s)) for s in signs(w.shape)])
            if np.isfinite(seen).all():
                room = 3 * math.sqrt(max(1.0, float(np.count_nonzero(w))))
                room += 1e-7 * float(np.abs(seen).max())
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
        ((node, make),) = edit.edits.items()
        rank, text = edit.rank, edit.text
        if edit.plain and not said:
            rank = FAR - (node in self.sweep.ends)
            text += f" multiplied by {factored(factor)}"
        elif edit.plain:
            rank -= {0.0: 1.05, 2.0: 1, -1.0: 1}.get(factor, 0)
            whole = not factor and node in self.sweep.ends
            text += " zero everywhere" if whole else f" {said}"
        elif said:
            rank, text = rank + 2.5, f"{text}, {said}"
        made: dict[Node, Make] = {node: lambda at: make(at) * factor}
        return replace(edit, rank=rank, text=text, edits=made)

    def edited(self, edit: Edit) -> None:
        """Evaluate an edit in full, and note what it explains.

        Less is believed of one by which other tensors would be wrong, or stay so.
        """

        def predict(values: Mapping[Node, Array]) -> Tensors:
            return self.sweep.gradients(values, edit.edits, edit.saved)

        try:
            made = predict(self.sweep.values)
        except Raised:
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


def search(case: Case) -> dict[str, list[Finding]]:
    """Explanations of each wrong tensor, best first; at least what they share."""
    for n in case.wrong:
        for edit in regions(case.sweep, n, case.got[n], case.tolerance[n]):
            case.edited(edit)
    if weighed := case.weighed():
        _local(case, weighed)
    for edits in (rows.otherwise(case.sweep), rows.broad(case.sweep, case.digits)):
        for edit in edits if case.open else ():
            if case.late:
                break
            case.edited(edit)
        for constant in rows.constants(case.sweep):
            for name in () if case.late else case.open:
                if case.got[name].size * case.digits >= BITS:
                    _solved(case, name, *constant)
    return {name: _ranked(case, name) for name in case.wrong}


def _local(case: Case, weighed: Mapping[str, Weighed]) -> None:
    """Each edit of one node, weighed by projections; the best evaluated in full.

    What may explain several tensors is tried first, and two edits at once where no
    single one explains a tensor.
    """
    chances: list[tuple[tuple[Any, ...], Edit]] = []
    moves: dict[str, list[tuple[Array, Edit]]] = {name: [] for name in weighed}
    for i, edit in enumerate(rows.local(case.sweep, case.digits)):
        if i % 64 == 0 and case.late:
            break
        moved = [*_moved(case, weighed, edit)]
        alone = [case.scaled(edit, *f) for f in (FACTORS if edit.plain else ONCE)]
        for name, old, new in moved if case.digits >= SHARP else ():
            change = (f * new - old for f, _ in (FACTORS if edit.plain else ONCE))
            moves[name] += zip(change, alone, strict=True)
        found = [_factors(case, weighed[name], edit, *both) for name, *both in moved]
        found = [one for one in found if one[1]]
        for off, factors in found:
            named = edit.rank if factors[0][1] or not edit.plain else FAR
            key = -len(found), named, off, i
            chances += (
                ((*key, j), case.scaled(edit, *f)) for j, f in enumerate(factors)
            )
    for _, edit in sorted(chances, key=lambda c: c[0])[: MOST * len(weighed)]:
        if case.late:
            return
        case.edited(edit)
    for name in case.open:
        if moves.get(name) and case.got[name].size >= MANY and not case.late:
            for edit in _pairs(weighed[name], moves[name]):
                case.edited(edit)


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
) -> tuple[float, list[tuple[float, str]]]:
    """How far off an edit leaves the projections, and factors that may be in it."""
    error, room, _ = weighed
    target, room = old + error, room + 1e-12 * _most(old)
    off = _most(target - new)
    if off <= room and not edit.plain:
        return off, [(1.0, "")]
    factor = float(target @ new) / float(new @ new or np.nan)
    off = _most(target - factor * new)
    if not off <= room or abs(factor - 1) <= case.roundoff:
        return off, []
    near = 4 * room / max(_most(new), 1e-300)
    factors = written(factor, case.lengths, min(max(near, 1e-5), 0.02))
    if edit.plain:
        return off, [*factors, (factor, "")]
    return off, [(c, said) for c, said in factors if c]  # of 0 nothing of it is left


def _most(x: Array) -> float:
    return float(np.abs(x).max())


def _pairs(weighed: Weighed, moves: list[tuple[Array, Edit]]) -> list[Edit]:
    """Two edits whose changes add up to the error, likeliest first."""
    moves = sorted(moves, key=lambda move: move[1].rank)
    changes = np.stack([change for change, _ in moves])
    error, room, _ = weighed
    room, most = room + 1e-9 * _most(error), 1e3 * _most(error)
    changes = np.where(np.abs(changes) <= most, changes, 0)  # and where it is nan
    rounded = np.rint(changes / room)
    kept = np.sort(np.unique(rounded, axis=0, return_index=True)[1])
    kept = kept[rounded[kept].any(axis=1)]
    changes, edits = changes[kept], [moves[i][1] for i in kept]
    order, rest = np.argsort(changes[:, 0]), error - changes
    low, high = (
        np.searchsorted(changes[order, 0], rest[:, 0] + side) for side in (-room, room)
    )
    found = [
        edits[i].beside(edits[j])
        for i in np.flatnonzero(high > low)
        for j in order[low[i] : high[i]]
        if i < j and _most(rest[i] - changes[j]) <= room
    ]
    return sorted(found, key=lambda edit: edit.rank)[:PAIRS]


def _solved(case: Case, name: str, old: float, of: Callable[[float], Edit]) -> None:
    """What a constant must be for a projection of a tensor to be what came back.

    By the secant method; of the numbers that fit, the one of fewest digits is noted.
    """
    w, got = case.weight[name], case.got[name]
    along = (got - case.right[name]) * w * w

    def made(value: float) -> Array:
        edit = of(value)
        return case.sweep.gradients(case.sweep.values, edit.edits, edit.saved)[name]

    def short(value: float) -> float:
        return float(np.sum(along * (got - made(value))))

    before, now = old, old * (1 + 1e-3) if old else 1e-6
    high, low = short(before), short(now)
    for _ in range(24):
        if not np.isfinite(low) or low == high or case.late:
            break
        before, now = now, now - low * (now - before) / (low - high)
        if abs(now - before) <= 1e-14 * abs(now):
            break
        high, low = low, short(now)
    if not np.isfinite(now) or now == old or not case.fits(name, made(now)):
        return
    for brief in (0.0, *(float(f"{now:.{d}g}") for d in range(1, 6))):
        if case.fits(name, made(brief)):
            case.edited(of(brief))
            break


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
