"""Finds the edits of the right gradient's graph that give what a candidate gave.

What is compared is within the radius that judges, and no other tolerance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

import numpy as np

from gradwatch.harness.judging.diagnosis import edits as rows
from gradwatch.harness.judging.diagnosis.sweep import PROBES, Array, Make, Point, Sweep, Tensors
from gradwatch.harness.judging.diagnosis.tensors import common, facts, narrowed, weights
from gradwatch.harness.judging.diagnosis.words import Words, factored, written
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

MOST = 48  # edits that are evaluated in full for one tensor
SAME = 1e-6  # of another point's values: two edits that differ by less say the same
FEW = 3  # elements that many explanations fit by chance
Predict = Callable[[Point], Tensors]


@dataclass(frozen=True)
class Finding:
    """An explanation of a wrong tensor.

    Attributes:
        rank: How far-fetched it is; least is best.
        kind: Of mistake.
        words: A sentence in the user's terms.
        predict: What it makes of the tensors at any point.
        alone: More than 0 where another tensor would be wrong with it.
        elements: So many agree with it; 0 where it predicts nothing.
        others: Explanations that mean something else and agree as well.
    """

    rank: float
    kind: str
    words: str
    predict: Predict | None
    alone: float = 0.0
    elements: int = 0
    others: int = 0

    @property
    def sentence(self) -> str:
        """What is said of it."""
        if not self.elements:
            return self.words
        if self.elements < FEW:
            return f"perhaps {self.words}: {self.elements} elements show little"
        said = f"{self.words}: with this, all {self.elements} elements agree"
        if self.others:
            more = "explanation does" if self.others == 1 else "explanations do"
            said += f" ({self.others} other {more}, too)"
        return said


@dataclass
class Case:
    """What came back, and how far it may be off.

    Attributes:
        sweep: The right gradient's graph.
        got: The tensors that are judged, in the wide type.
        tolerance: The judge's own: limit times radius.
        last: Limit times one rounding: of the value that an edit gives.
        wrong: Names of tensors to be explained.
        digits: Of the precision under test.
        until: Time at which nothing more is tried.
    """

    sweep: Sweep
    got: Tensors
    tolerance: Mapping[str, Array]
    last: float
    wrong: Sequence[str]
    digits: int
    until: float
    found: dict[str, list[Finding]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.words, self.here = Words(self.sweep), self.sweep.here()
        self.right = self.here.tensors()
        self.found = {name: [] for name in self.wrong}
        self.error = {n: self.got[n] - self.right[n] for n in self.wrong}
        self.weight = {n: weights(self.tolerance[n], self.right[n]) for n in self.wrong}
        self.lengths = {n for node in self.sweep.order for n in (*node.shape, node.size)}
        self.tried: set[tuple[str, str]] = set()

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() > self.until

    def fits(self, name: str, value: Array) -> bool:
        """Whether a tensor is what came back, within the judge's radius."""
        got = self.got[name]
        if value.shape != got.shape:
            return False
        with np.errstate(all="ignore"):
            room = self.tolerance[name] + self.last * np.abs(value)
            near = np.abs(value - got) <= room
            near |= (value == got) | (np.isnan(value) & np.isnan(got)) | np.isinf(room)
        return bool(near.all())

    def add(self, rank: float, kind: str, words: str, predict: Predict, only: str = "") -> bool:
        """Note an explanation with the tensors that it explains; whether it does."""
        tensors = {**self.right, **predict(self.here)}
        fit = {n: self.fits(n, tensors[n]) for n in self.got if n in tensors}
        any_fits = False
        for name in self.wrong:
            if fit[name] and (not only or name == only) and (name, words) not in self.tried:
                self.tried.add((name, words))
                alone = 1.0 * (not only and not all(fit[n] for n in self.wrong))
                alone += 1.5 * (not only and not all(fit[n] for n in fit if n not in self.wrong))
                wrong = Finding(rank, kind, words, predict, alone, self.got[name].size)
                self.found[name].append(wrong)
                any_fits = True
        return any_fits

    def unexplained(self) -> list[str]:
        """Wrong tensors without an explanation that is worth its name."""
        return [n for n in self.wrong if not any(f.rank < 8 for f in self.found[n])]


def search(case: Case) -> dict[str, list[Finding]]:
    """Explanations of each wrong tensor, best first; at least what they share."""
    for step in (_facts, _edits, _changes, _constants, _branches, _pairs):
        if step not in (_facts, _edits) and not case.unexplained():
            break
        if not case.late:
            step(case)
    return {name: _ranked(case, name) for name in case.wrong}


def _facts(case: Case) -> None:
    for name in case.wrong:
        for fact in facts(name, case.right, case.got[name], case.tolerance[name], case.digits):
            with np.errstate(all="ignore"):
                case.add(
                    fact.rank,
                    fact.kind,
                    fact.words,
                    lambda point, f=fact, n=name: {n: np.asarray(f.predict(point.tensors()))},
                    only=name,
                )


@dataclass
class _Weighed:
    """The projections of a tensor's error, and how they depend on each node."""

    error: Array
    of: Mapping[Node, Array]
    noise: float


def _weighed(case: Case, name: str) -> _Weighed | None:
    w = case.weight[name]
    of = case.sweep.weights(name, w)
    rng, rows_ = np.random.default_rng(0), []
    for _ in range(PROBES):
        signs = rng.choice([-1.0, 1.0], size=w.shape)
        rows_.append(float(np.sum((case.error[name] * (signs * w)).astype(np.float64))))
    error = np.array(rows_)
    if not np.isfinite(error).all():
        return None
    return _Weighed(error, of, 3 * max(1, np.count_nonzero(w)) ** 0.5)


def _edits(case: Case) -> None:
    """Each edit of one value, weighed by projections; the best evaluated in full."""
    weighed = {n: v for n in case.wrong if (v := _weighed(case, n)) is not None}
    chances: dict[str, list[tuple[float, int, rows.Edit, list[tuple[float, str]]]]] = {
        n: [] for n in weighed
    }
    case.here.kept["weighed"] = weighed  # type: ignore[assignment]
    values: dict[Node, Array] = case.sweep.values
    with np.errstate(all="ignore"):
        for i, edit in enumerate(rows.edits(case.sweep, case.words, case.digits)):
            if i % 64 == 0 and case.late:
                break
            old = values[edit.node]
            if not any(edit.node in w.of for w in weighed.values()):
                continue
            try:
                new = edit.make(case.here.at)
            except (ValueError, TypeError, IndexError, FloatingPointError):
                continue
            if new.shape != old.shape:
                continue
            moved = (new - old).astype(np.float64).ravel()
            for name, w in weighed.items():
                if edit.node in w.of:
                    chance = _weigh(case, w, w.of[edit.node], old, moved, edit)
                    if chance:
                        chances[name].append((chance[0], i, edit, chance[1]))
    for name in weighed:
        for _, _, edit, factors in sorted(chances[name], key=lambda c: c[:2])[:MOST]:
            if case.late:
                return
            for factor, said in factors:
                if _confirm(case, edit, factor, said):
                    break


def _weigh(
    case: Case, w: _Weighed, of: Array, old: Array, moved: Array, edit: rows.Edit
) -> tuple[float, list[tuple[float, str]]] | None:
    """How far an edit is from the error, and the factors that stand before it."""
    change = of @ moved
    if not np.isfinite(change).all():
        return None
    size = float(np.abs(w.error).max())
    room = w.noise + 1e-7 * size
    itself = edit.rank == 3 and edit.kind == "path"
    if not itself and not moved.any():
        return None
    off = float(np.abs(w.error - change).max())
    if not itself and off <= room:
        return off / size, [(1.0, "")]
    if not edit.scales:
        return None
    flat = of @ old.astype(np.float64).ravel()
    total, target = flat + change, flat + w.error
    norm = float(total @ total)
    if not 0 < norm < np.inf:
        return None
    factor = float(target @ total) / norm
    off = float(np.abs(target - factor * total).max())
    if off > room + 1e-12 * float(np.abs(flat).max()):
        return None
    near = max(1e-3 if case.digits < 20 else 1e-5, 4 * room / max(norm**0.5, 1e-300))
    factors = written(factor, case.lengths, min(near, 0.02))
    if itself:
        factors += [(factor, "")]
    return (off / size, factors) if factors else None


def _confirm(case: Case, edit: rows.Edit, factor: float, said: str) -> bool:
    """Evaluate an edit in full."""
    itself, words, rank = edit.rank == 3 and edit.kind == "path", edit.words(), float(edit.rank)

    def times(c: float) -> Make:
        return (lambda at: edit.make(at) * c) if c != 1 else edit.make

    if itself and not said:
        refined = _refined(case, edit, factor)
        said, factor, rank = f"multiplied by {factored(refined)}", refined, 8.0
        if sum(case.got[n].size for n in case.wrong) < 3:
            return False
    elif itself:
        rank = 2.0 if factor in (0.0, 2.0, -1.0) else 3.0
    if itself:
        words = f"{words} is {said}"
    elif said:
        words, rank = f"{words}, {said}", rank + 2.5
    make = times(factor)
    return case.add(rank, edit.kind, words, lambda point: point.tensors({edit.node: make}))


def _refined(case: Case, edit: rows.Edit, factor: float) -> float:
    """A factor by least squares over all elements of the tensors that it moves."""
    none = case.here.tensors({edit.node: lambda at: edit.make(at) * 0})
    top, bottom = 0.0, 0.0
    for name in case.wrong:
        w = case.weight[name]
        carried = ((case.right[name] - none[name]) * w).astype(np.float64)
        target = ((case.got[name] - none[name]) * w).astype(np.float64)
        top, bottom = top + float(np.sum(carried * target)), bottom + float(np.sum(carried**2))
    return top / bottom if 0 < bottom < np.inf else factor


def _constants(case: Case) -> None:
    """A number of the formula that fits, found by the secant method."""
    for node in rows.constants(case.sweep, case.words):
        if case.late:
            return
        for name in case.unexplained():
            new = _solved(case, node, name)
            if new is not None:
                for change in rows.constant(node, new, case.words, 6):
                    _try(case, change)


def _solved(case: Case, node: Node, name: str) -> float | None:
    """The value of a constant at which a projection of a tensor is what came back."""
    old = float(node.value.reshape(-1)[0])
    w, error = case.weight[name], case.error[name]
    along = (error * w * w).astype(np.float64)
    goal = float(np.sum(along * error.astype(np.float64)))
    if not 0 < goal < np.inf:
        return None

    def short(value: float) -> float:
        made = case.here.tensors({node: lambda at: np.full_like(node.value, value)})
        moved = (made[name] - case.right[name]).astype(np.float64)
        return goal - float(np.sum(along * moved))

    left, right_ = old, old * (1 + 1e-3) if old else 1e-6
    high, low = goal, short(right_)
    for _ in range(24):
        if not np.isfinite(low) or low == high or case.late:
            return None
        left, right_ = right_, right_ - low * (right_ - left) / (low - high)
        if abs(right_ - left) <= 1e-15 * abs(right_):
            break
        high, low = low, short(right_)
    return _rounded(right_) if np.isfinite(right_) and right_ != old else None


def _rounded(value: float) -> float:
    """A number of few digits, if it is very near to one."""
    for digits in (1, 2, 3, 4, 6):
        short = float(f"{value:.{digits}g}")
        if abs(short - value) <= 1e-6 * abs(value) * 10.0 ** max(0, 3 - digits) * 0.1:
            return short
    return value


def _changes(case: Case) -> None:
    sweep, words = case.sweep, case.words
    for change in chain(rows.changes(sweep, words, case.digits), rows.rules(sweep, words)):
        if case.late:
            return
        _try(case, change)


def _try(case: Case, change: rows.Change) -> bool:
    def predict(point: Point) -> Tensors:
        return point.tensors(change.edits, change.saved, change.within)

    try:
        made = predict(case.here)
    except (ValueError, TypeError, IndexError):
        return False
    if not any(case.fits(n, made[n]) for n in case.unexplained()):
        return False
    return case.add(change.rank, change.kind, change.words(), predict)


def _branches(case: Case) -> None:
    """A factor that is missing on the way of one of several uses of a gradient."""
    weighed: Mapping[str, _Weighed] = case.here.kept["weighed"]  # type: ignore[assignment]
    sweep, words = case.sweep, case.words
    users: dict[Node, list[Node]] = {}
    for node in sweep.flowing:
        for source in node.inputs:
            if source in sweep.flows:
                users.setdefault(source, []).append(node)
    forks = [(n, u) for n, us in users.items() for u in us if len(us) > 1]
    for edit in rows.missing(sweep, words):
        if case.late or not case.unexplained():
            return
        values = sweep._run(sweep.values, {edit.node: edit.make})
        for source, user in forks:
            if values[source] is sweep.values[source]:
                continue
            new = graph.computed(user, [(values if n is source else sweep.values)[n] for n in user.inputs])
            moved = (new - sweep.values[user]).astype(np.float64).ravel()
            for name in case.unexplained():
                w = weighed.get(name)
                if w is None or user not in w.of:
                    continue
                off = float(np.abs(w.error - w.of[user] @ moved).max())
                if off <= w.noise + 1e-7 * float(np.abs(w.error).max()):

                    def predict(point: Point, edit: Any = edit, source: Node = source, user: Node = user) -> Tensors:
                        there = sweep._run(point.values, {edit.node: edit.make})
                        return point.tensors(
                            {user: lambda at: graph.computed(user, [there[n] if n is source else at(n) for n in user.inputs])}
                        )

                    case.add(6, edit.kind, f"{edit.words()}, on the way into {words.path(user)}", predict)


#: Factors of two paths at once.
_PLAIN = (0.0, 2.0, -1.0)


def _pairs(case: Case) -> None:
    """Two paths with plain factors at once."""
    weighed: Mapping[str, _Weighed] = case.here.kept["weighed"]  # type: ignore[assignment]
    for name in case.unexplained():
        if name not in weighed:
            continue
        w = weighed[name]
        nodes = [n for n in case.sweep.flowing if n in w.of]
        moves = [
            (node, c, (c - 1) * (w.of[node] @ case.sweep.values[node].astype(np.float64).ravel()))
            for node in nodes
            for c in _PLAIN
        ]
        if not moves or len(moves) > 3000:
            continue
        table = np.array([m for _, _, m in moves])
        size = float(np.abs(w.error).max())
        done = 0
        for i, (node, c, move) in enumerate(moves):
            if case.late or done > MOST:
                break
            off = np.abs(w.error - move - table[i + 1 :]).max(axis=1, initial=0.0)
            for k in np.flatnonzero(off <= w.noise + 1e-7 * size)[:8]:
                other, d, _ = moves[i + 1 + int(k)]
                done += 1
                said = dict(((0.0, "left out"), (2.0, "counted twice"), (-1.0, "given the wrong sign")))
                first, second = case.words.path(node), case.words.path(other)
                made = {
                    node: _times(node, c),
                    other: _times(other, d),
                }
                case.add(
                    7.5,
                    "path",
                    f"{first} is {said[c]} and {second} is {said[d]}",
                    lambda point, made=made: point.tensors(made),
                )


def _times(node: Node, factor: float) -> Make:
    def make(at: Any) -> Array:
        own = graph.computed(node, [at(n) for n in node.inputs]) if node.primitive else at(node)
        return own * factor

    return make


def _ranked(case: Case, name: str) -> list[Finding]:
    """The explanations of a tensor that mean different things, best first."""
    found = sorted(case.found[name], key=lambda f: (f.rank + f.alone, f.alone))
    if not found:
        right, got, room = case.right[name], case.got[name], case.tolerance[name]
        narrow = narrowed(right, got, room, case.digits)
        if narrow:
            said = f"the errors of {name} are as large as roundings of {narrow}: something is computed or kept in it"
            return [Finding(98, "narrow", said, None)]
        said = common(name, right, got, room, _beside(case, name))
        return [Finding(99, "unknown", said, None)] if said else []
    other, kept = case.sweep.point(1), list[tuple[Array, Finding]]()
    for one in found[:16]:
        assert one.predict is not None
        with np.errstate(all="ignore"):
            there = np.asarray({**other.tensors(), **one.predict(other)}[name])
            scale = float(np.max(np.abs(there), initial=0.0, where=np.isfinite(there)))
            if not any(
                np.allclose(there, seen, rtol=SAME, atol=SAME * scale, equal_nan=True)
                for seen, _ in kept
            ):
                kept.append((there, one))
    return [replace(one, others=len(kept) - 1) for _, one in kept]


def _beside(case: Case, name: str) -> Iterator[tuple[str, Array]] | dict[str, Array]:
    """An input and cotangents of a tensor's shape."""
    shape, found = case.got[name].shape, dict[str, Array]()
    leaf = case.sweep.inputs.get(name[1:])
    if leaf is not None and leaf.value.dtype.kind == "f":
        found[name[1:]] = leaf.value
    for dy in case.sweep.cotangents:
        if dy.value.shape == shape:
            found["dy"] = dy.value
    return found
