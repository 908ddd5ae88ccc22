"""Finds the edits of the right gradient's graph that give what a candidate gave.

What an edit gives is compared within the radius that judges, and no other tolerance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

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
from gradwatch.harness.judging.diagnosis.tensors import common, regions, weights
from gradwatch.harness.judging.diagnosis.words import Words, factored, written
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.reference import Reference
from gradwatch.harness.judging.verdict import allowed
from gradwatch.impls.graph import Node

MOST = 48  # edits that are evaluated in full for one tensor
SAME = 1e-6  # of another point's values: two edits that differ by less say the same
FEW = 4  # elements that many explanations fit by chance
FAR = 8  # rank from which an explanation is no reason to stop
Predict = Callable[[Mapping[Node, Array]], Tensors]
Raised = (ValueError, TypeError, IndexError)  # an edit that fits no shape here


@dataclass(frozen=True)
class Finding:
    """An explanation of a wrong tensor.

    Attributes:
        rank: How far-fetched it is; least is best.
        kind: Of mistake.
        words: A sentence in the user's terms.
        predict: What it makes of the tensors at any point; None if nothing.
        elements: So many agree with it.
        others: Explanations that mean something else and agree as well.
    """

    rank: float
    kind: str
    words: str
    predict: Predict | None = None
    elements: int = 0
    others: int = 0

    @property
    def sentence(self) -> str:
        """What is said of it."""
        if self.predict is None:
            return self.words
        if self.elements < FEW:
            return f"perhaps {self.words}: {self.elements} elements show little"
        said = f"{self.words}: with this, all {self.elements} elements agree"
        more = "explanation does" if self.others == 1 else "explanations do"
        return said + (f" ({self.others} other {more}, too)" if self.others else "")


class Weighed(NamedTuple):
    """Projections of a tensor's error, how far off they may be, how nodes move them."""

    error: Array
    room: float
    of: Mapping[Node, Array]


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
        self.digits = PRECISIONS[right.dtype].digits
        self.words = Words(sweep)
        self.right = self.tensors()
        self.found: dict[str, list[Finding]] = {name: [] for name in self.wrong}
        rooms = {n: self.last * np.abs(self.right[n]) for n in self.wrong}
        #: One over how far each element may be off, with a last rounding.
        self.weight = {
            n: weights(self.tolerance[n] + room, self.right[n])
            for n, room in rooms.items()
        }
        self.lengths = {n for node in sweep.order for n in (*node.shape, node.size)}

    def tensors(
        self,
        edits: Mapping[Node, Make] | None = None,
        saved: Mapping[Node, Make] | None = None,
    ) -> Tensors:
        """The gradients at the case's numbers, with some edits."""
        return self.sweep.gradients(self.sweep.values, edits, saved)

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
        found = {}
        for name, w in self.weight.items():
            error = (self.got[name] - self.right[name]) * w
            seen = np.array([float(np.sum(error * s)) for s in signs(w.shape)])
            if np.isfinite(seen).all():
                room = 3 * math.sqrt(max(1.0, float(np.count_nonzero(w))))
                room += 1e-7 * float(np.abs(seen).max())
                found[name] = Weighed(seen, room, self.sweep.weights(name, w))
        return found

    def fits(self, name: str, value: Array) -> bool:
        """Whether a tensor is what came back, within the judge's radius."""
        got, room = self.got[name], self.tolerance[name]
        same = (value == got) | np.isinf(room) | (np.isnan(value) & np.isnan(got))
        room = room + self.last * np.where(np.isfinite(value), np.abs(value), 0)
        return bool((same | (np.abs(value - got) <= room)).all())

    def edited(self, edit: Edit, rank: float, more: str = "") -> bool:
        """Evaluate an edit in full, and note what it explains; whether there is any.

        Less is believed of one by which other tensors would be wrong, or stay so.
        """

        def predict(values: Mapping[Node, Array]) -> Tensors:
            return self.sweep.gradients(values, edit.edits, edit.saved)

        try:
            made = predict(self.sweep.values)
        except Raised:
            return False
        fit = {n: self.fits(n, made[n]) for n in self.got}
        explained = [n for n in self.wrong if fit[n]]
        if explained and edit.about[0] not in self.sweep.ends:
            rank += not all(fit[n] for n in self.wrong)
            rank += 1.5 * (not all(fit[n] for n in fit if n not in self.wrong))
        size = sum(self.got[n].size for n in explained)
        words = self.words.say(edit, more) if explained else ""
        for name in explained:
            if all(words != one.words for one in self.found[name]):
                one = Finding(rank, edit.kind, words, predict, size)
                self.found[name].append(one)
        return bool(explained)


def search(case: Case) -> dict[str, list[Finding]]:
    """Explanations of each wrong tensor, best first; at least what they share."""
    for n in case.wrong:
        for edit in regions(case.sweep, n, case.got[n], case.tolerance[n]):
            case.edited(edit, edit.rank)
    if weighed := case.weighed():
        _local(case, weighed)
    if case.open:
        _constants(case)
    for edit in rows.broad(case.sweep, case.digits) if case.open else ():
        if case.late:
            break
        case.edited(edit, edit.rank)
    return {name: _ranked(case, name) for name in case.wrong}


def _local(case: Case, weighed: Mapping[str, Weighed]) -> None:
    """Each edit of one node, weighed by projections; the best evaluated in full.

    What may explain several tensors is tried first.
    """
    chances: list[tuple[tuple[Any, ...], Edit, list[tuple[float, str]]]] = []
    for i, edit in enumerate(rows.local(case.sweep, case.digits)):
        if i % 64 == 0 and case.late:
            break
        found = [found for found in _weigh(case, weighed, edit) if found[2]]
        for _, off, factors in found:
            named = edit.rank if factors[0][1] or not edit.plain else FAR
            chances.append(((-len(found), named, off, i), edit, factors))
    for _, edit, factors in sorted(chances, key=lambda c: c[0])[: MOST * len(weighed)]:
        if case.late:
            return
        any(_confirmed(case, edit, factor, said) for factor, said in factors)


def _weigh(
    case: Case, weighed: Mapping[str, Weighed], edit: Edit
) -> Iterator[tuple[str, float, list[tuple[float, str]]]]:
    """Tensors whose error an edit may be, how far off, and the factors before it."""
    ((node, make),) = edit.edits.items()
    old, seen = case.sweep.values[node], [n for n in weighed if node in weighed[n].of]
    try:
        new = make(case.sweep.values.__getitem__) if seen else old
    except Raised:
        return
    if new.shape != old.shape or not (edit.plain or (new != old).any()):
        return
    for name in seen:
        w = weighed[name]
        flat, total = (w.of[node] @ a.astype(np.float64).ravel() for a in (old, new))
        target = flat + w.error
        off, room = _most(target - total), w.room + 1e-12 * _most(flat)
        if off <= room and not edit.plain:
            yield name, off, [(1.0, "")]
        elif edit.scales:
            factor = float(target @ total) / float(total @ total or np.nan)
            off = _most(target - factor * total)
            if off <= room:
                near = 4 * w.room / max(_most(total), 1e-300)
                factors = written(factor, case.lengths, min(max(near, 1e-5), 0.02))
                if not edit.plain:  # nothing of it is left by a factor of 0
                    factors = [(c, said) for c, said in factors if c]
                yield name, off, factors + [(factor, "")] * edit.plain


def _most(x: Array) -> float:
    return float(np.abs(x).max())


def _confirmed(case: Case, edit: Edit, factor: float, said: str) -> bool:
    """Evaluate an edit, with a factor before it, in full."""
    ((node, make),) = edit.edits.items()
    rank, more = edit.rank, ""
    if edit.plain and not said:
        name = case.sweep.ends.get(node)
        if sum(case.got[n].size for n in case.wrong if name in (n, None)) < FEW:
            return False
        rank = FAR - (node in case.sweep.ends)
        more = f" multiplied by {factored(factor)}"
    elif edit.plain:
        _, place = case.words.made.get(edit.about[0], (None, None))
        rank = edit.rank - (factor in (0, 2, -1)) - 0.1 * (place is not None)
        whole = not factor and node in case.sweep.ends
        more = " zero everywhere" if whole else f" {said}"
    elif said:
        rank, more = rank + 2.5, f", {said}"
    scaled: dict[Node, Make] = {node: lambda at: make(at) * factor}
    return case.edited(replace(edit, edits=scaled), rank, more)


def _constants(case: Case) -> None:
    """A number of the formula that fits, everywhere or in the forward alone."""
    for node in rows.constants(case.sweep):
        for alone in (False, True) if node in case.sweep.forward else (False,):
            of = partial(rows.constant, node, case.sweep, alone)
            for name in [] if case.late else case.open:
                if case.got[name].size >= FEW:
                    _solved(case, node, of, name)


def _solved(case: Case, node: Node, of: Callable[[float], Edit], name: str) -> None:
    """What a constant must be for a projection of a tensor to be what came back.

    By the secant method; of the numbers that fit, the one of fewest digits is noted.
    """
    w, old = case.weight[name], float(node.value.reshape(-1)[0])
    along = (case.got[name] - case.right[name]) * w * w

    def made(value: float) -> Array:
        edit = of(value)
        return case.tensors(edit.edits, edit.saved)[name]

    def short(value: float) -> float:
        return float(np.sum(along * (case.got[name] - made(value))))

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
    brief = [0.0, *(float(f"{now:.{d}g}") for d in range(1, 10)), now]
    edit = of(next(new for new in brief if case.fits(name, made(new))))
    case.edited(edit, edit.rank)


def _ranked(case: Case, name: str) -> list[Finding]:
    """The explanations of a tensor that mean different things, best first."""
    found = sorted(case.found[name], key=lambda f: (f.rank, len(f.words)))
    if not found:
        beside = {n: dy.value for dy, n in case.words.names.items()}
        right, got, room = case.right[name], case.got[name], case.tolerance[name]
        kind, said = common(name, right, got, room, case.digits, beside)
        return [Finding(99, kind, said)]
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
