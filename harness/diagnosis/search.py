"""Finds the edits of the right gradient's graph that give the candidate's tensors.

The result of an edit is compared within the judge's own radius, and no other tolerance.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from gradwatch.harness.diagnosis import edits
from gradwatch.harness.diagnosis.sweep import Array, Edit, Sweep
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.question import FULL, Question
from gradwatch.harness.judging.reference import ABSORBED, Reference
from gradwatch.harness.judging.verdict import allowed, zeros_pass
from gradwatch.impls.graph import Node
from gradwatch.impls.graph.expressions import factored, region_of, split, written
from gradwatch.impls.graph.parts import Box

EACH = 150_000  # steps of a call's search, up to 6 s: any machine finds the same
FEW = 8  # elements that are looked at of a large vector
CHANGES = "it changes from run to run: a second one gave other bits"
WRONG = ("disagree", "nonfinite")
PROBES = 4  # random projections of a tensor with which edits are compared
MOST, AHEAD = 48, 80  # edits of a tensor tried in full; of loops, read for each tried
SAME = 1e-6  # relative difference at another point below which two edits are the same
BITS = 96  # of all elements, 4 of float32: many edits fit fewer by chance
SEVERAL = 3  # explanations beside which none is certain
MANY = 16  # elements that no two edits fit by chance, if each has `SHARP` digits
SHARP = 24
PAIRS = 8  # pairs of edits that are evaluated in full for one tensor
HONEST = 0.1  # of the limit of 16 roundings, which errors of a type hardly exceed
SURE = 3  # rank below which no other explanation is looked for
LONG = 6  # rank from which a number of a few digits is likelier
FAR = 8  # rank from which an explanation is no reason to stop
Got = Mapping[str, Array | None]
Judged = tuple[Judgement, ...]
#: Raised by an edit that fits no shape here, or has another operation's attribute.
RAISED = (ValueError, TypeError, LookupError)


@dataclass(frozen=True)
class Finding:
    """An explanation of a wrong tensor.

    Attributes:
        rank: How far-fetched it is; least is best.
        words: A sentence in the user's terms.
        predict: Gives the tensors that it predicts, at any point; None if it cannot.
        elements, bits: How many agree with it.
        loose, rest, exact: As of the edit, of `Case.rest`, and whether all bits agree.
        others: How many explanations of another meaning agree nearly as well.
    """

    rank: float
    words: str
    predict: Callable[[Mapping[Node, Array]], Mapping[str, Array]] | None = None
    elements: int = 0
    bits: int = 0
    loose: bool = False
    rest: float = 0.0
    exact: bool = False
    others: int = 0

    @property
    def certain(self) -> bool:
        """Whether enough digits agree with it, and with few other explanations."""
        return self.bits >= BITS and self.others < SEVERAL

    @property
    def sentence(self) -> str:
        """The explanation as a sentence, with how far it is confirmed."""
        if self.predict is None:
            return self.words
        said = f"{self.words}: with this, all {self.elements} elements agree"
        if self.bits < BITS:
            said = f"{self.words}: {self.elements} elements show little"
        elif self.others:
            does = "explanation does" if self.others == 1 else "explanations do"
            said += f" ({self.others} other {does}, too)"
        return said if self.certain else f"perhaps {said}"


class Case:
    """The tensors that came back, their tolerances, and the explanations found."""

    def __init__(
        self, right: Reference, got: Got, judgements: Sequence[Any], steps: float
    ) -> None:
        """Prepare to explain the tensors judged wrong, in `steps` of the graph."""
        ways = {*right.graphs, *ABSORBED}
        ties = next((j.convention for j in judgements if j.convention in ways), "first")
        self.sweep, self.steps = Sweep(right.built, ties), steps
        self.right = self.sweep.gradients(self.sweep.values)
        given = {n: np.asarray(a, right.wide) for n, a in got.items() if a is not None}
        shapes = {n: value.shape for n, value in self.right.items()}
        self.got = {n: a for n, a in given.items() if a.shape == shapes.get(n)}
        self.tolerance = {n: allowed(right, ties, n) for n in self.got}
        arithmetic, precision = right.arithmetics[-1], PRECISIONS[right.dtype]
        self.last = right.limit * arithmetic.step.roundoff
        self.digits, self.roundoff = precision.digits, precision.roundoff
        self.wholes = right.radii(ties).wholes() if self.digits < SHARP else {}
        known = {n for n, room in self.tolerance.items() if np.isfinite(room).any()}
        wrong = (j.tensor for j in judgements if j.verdict in WRONG)
        self.wrong = [name for name in wrong if name in known | self.wholes.keys()]
        ends = {n: self.sweep.tensors[n].inputs[0] for n in self.wrong}
        self.outputs = {n: y for n, y in ends.items() if y not in self.sweep.flows}
        agree = {j.tensor for j in judgements if j.verdict == "agree"} - {*self.wrong}
        # Zero, as of a key's bias, is right whatever is wrong.
        tells = {n for n in agree & {*self.got} if not zeros_pass(right, n)}
        self.nearest = self.sweep.blame(self.wrong, tells)
        self.found: dict[str, list[Finding]] = {name: [] for name in self.wrong}
        nodes = {*self.sweep.order, *self.sweep.parts.values()}
        self.lengths = {n for node in nodes for n in (*node.shape, node.size)}
        summed = (n for n in nodes if n.inputs and n.size)
        self.lengths |= {n.inputs[0].size // n.size for n in summed}

    def late(self, rest: float = 0) -> bool:
        """Whether at most `rest` steps are left."""
        return self.sweep.spent > self.steps - rest

    def open(self, far: float = FAR) -> list[str]:
        """The wrong tensors without a sharp explanation of a rank below `far`."""
        ranks = {n: [f.rank for f in self.found[n] if not f.loose] for n in self.wrong}
        return [n for n, known in ranks.items() if min(known, default=far) >= far]

    def projected(self, name: str) -> tuple[Array, float, Mapping[Node, Array]]:
        """Random projections of a tensor's error, their tolerance, and their gradients.

        The gradients are by the values of nodes; an infinite error has none.
        """
        right, error = self.right[name], self.got[name] - self.right[name]
        room = self.tolerance[name] + self.last * np.abs(right)
        known = np.isfinite(room) & np.isfinite(right)
        least = 1e-18 * float(np.max(np.abs(right), initial=0.0, where=known))
        w = np.where(known, 1 / np.maximum(room, max(least, 1e-290)), 0)
        rng = np.random.default_rng(0)
        scales = [w * rng.choice([-1.0, 1.0], size=w.shape) for _ in range(PROBES)]
        along = np.array([np.sum(error * scale) for scale in scales], float)
        off = 3 * math.sqrt(max(1, int(known.sum()))) + 1e-7 * _most(along)
        finite = bool(np.isfinite(along).all())
        return along, off, self.sweep.weights(name, scales) if finite else {}

    def fits(self, name: str, value: Array) -> bool:
        """Whether a tensor agrees with the candidate's, by element and as a whole."""
        got, room = self.got[name], self.tolerance[name]
        if value.shape != got.shape:
            return False
        same = (value == got) | np.isinf(room) | (np.isnan(value) & np.isnan(got))
        room = room + self.last * np.where(np.isfinite(value), np.abs(value), 0)
        if not (same | (np.abs(value - got) <= room)).all():
            return False
        if name not in self.wholes:
            return True
        whole, right = self.wholes[name], self.right[name]
        rest = np.where(np.isfinite(got), got - value, 0)
        larger = np.linalg.norm(value) / np.linalg.norm(right)
        rest = rest / larger if 1 < larger < np.inf else rest
        return bool(whole.worst(right + rest)[0] <= whole.limit)

    def rest(self, name: str, value: Array) -> float:
        """The rms of the errors that are left, as a share of what is allowed."""
        ratios = (self.got[name] - value) / self.tolerance[name]
        left = np.where(np.isfinite(ratios), ratios, 0)
        return float(np.linalg.norm(left) / max(1, left.size) ** 0.5)

    def edited(self, edit: Edit) -> None:
        """Evaluate an edit in full, and note the tensors that it explains.

        Its rank is worse if it leaves other tensors wrong, or would make them so.
        """
        if edit.function:
            with contextlib.suppress(*RAISED):
                outputs = self.sweep.outputs(edit)
                if all(self.fits(n, outputs[n]) for n in self.outputs):
                    edit = replace(edit, function=False)
                    with contextlib.suppress(*RAISED):
                        self.edited(self.sweep.differentiated(edit))
                    if self.outputs:
                        self.edited(replace(edit, rank=edit.rank + 1))
            return
        predict = partial(self.sweep.gradients, edit=edit)
        try:
            made = predict(self.sweep.values)
        except RAISED:
            return
        rank, fit = edit.rank, {n: self.fits(n, made[n]) for n in self.wrong}
        same = partial(np.allclose, rtol=self.roundoff / 8, atol=0)
        explained = [n for n in fit if fit[n] and not same(made[n], self.right[n])]
        if explained and edit.about[0] not in self.sweep.ends:
            breaks = not all(self.fits(n, made[n]) for n in self.got if n not in fit)
            rank += (not all(fit.values())) + 1.5 * breaks
            one_mistake = 1 < len(fit) == len(explained) and not breaks
            rank -= 2.5 * (one_mistake and edit.rank < LONG)
        size = sum(self.got[n].size for n in explained)
        bits = size * min(self.digits, SHARP)
        if not explained or (edit.plain and rank >= FAR - 1 and bits < BITS):
            return  # nothing, or a single number, which a factor without a name fits
        words = self.sweep.say(edit)
        named = [*dict.fromkeys(edit.about[1:])]
        rank += 3 * (len({*map(self.sweep.quoted, named)}) < len(named))
        rests = {n: self.rest(n, made[n]) for n in explained}
        whole = math.hypot(*rests.values()) / len(rests) ** 0.5
        for name, left in rests.items():
            if all(words != one.words for one in self.found[name]):
                far = rank + FAR * (min(left, whole) > HONEST)
                exact = np.array_equal(made[name], self.got[name])
                one = Finding(far, words, predict, size, bits, edit.loose, left, exact)
                self.found[name].append(one)


def explanations(
    right: Reference, got: Got, judgements: Sequence[Any], steps: float = EACH
) -> tuple[Sweep | None, dict[str, list[Finding]]]:
    """The right gradient's graph, and each wrong tensor's explanations, best first.

    The reference is built once more, unless there is nothing to explain.
    """
    if all(j.verdict not in WRONG for j in judgements):
        return None, {}
    with np.errstate(all="ignore"):
        case = Case(right, got, judgements, steps)
        for edit in _likely(case):
            if case.late():
                break
            case.edited(edit)
        return case.sweep, {name: _ranked(case, name) for name in case.wrong}


@dataclass
class Diagnoses:
    """Explains wrong gradients: each tensor of a key once, in `left` steps in all."""

    left: float = 5 * EACH
    seconds: float = 0.0  # of processor time that it took
    told: set[tuple[Any, str]] = field(default_factory=set)

    def sentences(
        self,
        question: Question,
        got: Got,
        verdicts: Iterable[Any],
        key: Any = None,
        repeatable: bool = True,
    ) -> dict[str, str]:
        """The likeliest mistake in each wrong tensor, by the judgements or records."""
        judged = [v for v in verdicts if got.get(v.tensor) is not None]
        asked = [v for v in judged if v.verdict in WRONG]
        if self.left <= 0 or all((key, v.tensor) in self.told for v in asked):
            return {}
        seen, right = "elements agree", question.known
        if not right or sum(node.size for node in right.radii().order) > FULL:
            seen = "elements looked at agree"
            at = {v.tensor: (np.asarray(got[v.tensor]), v.worst_index) for v in judged}
            boxes = {n: _box(a.shape, worst) for n, (a, worst) in at.items()}
            # Right tensors tell explanations apart where they take a few rows.
            wrong, sizes = {v.tensor for v in asked}, question.part(boxes).sizes()
            boxes = {n: b for n, b in boxes.items() if n in wrong or sizes[n] <= FULL}
            got = {n: at[n][0][np.ix_(*box)] for n, box in boxes.items()}
            right = question.part(boxes).right
        sweep, found = explanations(right, got, judged, min(EACH, self.left))
        self.left -= sweep.spent if sweep else 0
        self.told |= {(key, v.tensor) for v in asked}
        said = {name: ones[0].sentence for name, ones in found.items() if ones}
        if not repeatable:
            said = {n: s if "elements agree" in s else CHANGES for n, s in said.items()}
        return {name: s.replace("elements agree", seen) for name, s in said.items()}

    def told_of(self, asked: Question, got: Got, judged: Judged, *how: Any) -> Judged:
        """The judgements, each with its diagnosis."""
        before = time.process_time()
        said = self.sentences(asked, got, judged, *how)
        self.seconds += time.process_time() - before
        return tuple(replace(j, diagnosis=said.get(j.tensor, "")) for j in judged)


def _box(shape: tuple[int, ...], worst: tuple[int, ...]) -> Box:
    """Positions along each axis: the worst element's, and some or all of the last."""
    box = [np.array([i]) for i in worst or [0] * len(shape)]
    few = shape[-1] if len(shape) > 1 else FEW
    if few < FEW:
        box[-2] = np.unique([0, *box[-2]])
    last = (np.unique(np.linspace(0, n - 1, few, dtype=int)) for n in shape[-1:])
    return (*box[:-1], *last)


def _likely(case: Case) -> Iterator[Edit]:
    """Edits that may be the mistake, cheap ones first, until all is explained."""
    for n in case.wrong:
        yield from edits.regions(case.sweep, n, case.got[n], case.tolerance[n])
    left = [n for n in case.nearest if n in case.open(SURE)]
    first = 0 if case.outputs else 1
    yield from _of_tensors(case, left[:first])
    yield from _of_numbers(case)
    yield from _of_functions(case) if case.outputs and not case.sweep.parts else ()
    yield from _of_tensors(case, left[first:] if first or case.open() else [])
    for rows in (edits.repeated, edits.broad):
        made = rows(case.sweep, case.digits) if case.open() else iter(())
        most = int(AHEAD * (case.steps - case.sweep.spent) / len(case.sweep.order))
        while some := [edit for _, edit in zip(range(most), made, strict=False)]:
            yield from sorted(some, key=lambda e: e.rank + case.sweep.far[e.about[0]])
    if not case.outputs and case.open() and not case.sweep.parts:
        yield from _of_functions(case, "in the function that is differentiated, ")


def _of_functions(case: Case, where: str = "") -> Iterator[Edit]:
    rank = 2 if case.digits >= SHARP else LONG + 0.5
    for name, y in case.outputs.items():
        factor = float(np.median(case.got[name] / case.right[name]))
        for c, said in written(factor, case.lengths, 1e-3):
            made, about = edits.by(partial(np.multiply, c), y), case.sweep.tensors[name]
            yield Edit(rank, f"{{term}} is {said}", (about,), {y: made}, function=True)
    for edit in edits.functions(case.sweep, case.digits):
        if case.open(SURE) and not case.late(EACH / 4):
            yield replace(edit, text=f"{where}{edit.text}", function=True)


def _of_tensors(case: Case, names: Sequence[str]) -> Iterator[Edit]:
    for name in names:
        if name in case.open(SURE) and not case.late(EACH / 2):
            yield from _local(case, name)


def _of_numbers(case: Case) -> Iterator[Edit]:
    until, whole = case.sweep.spent + EACH / 2, bool(case.outputs)
    for constant in edits.constants(case.sweep, whole):
        names = case.wrong if whole else case.nearest
        for name in [n for n in names if n in case.open(LONG)][:SEVERAL]:
            enough = case.got[name].size * case.digits >= BITS
            enough = enough and not case.late(EACH / 4) and case.sweep.spent < until
            if enough and name in case.open(LONG):
                yield from _solved(case, name, *constant)


def _local(case: Case, name: str) -> Iterator[Edit]:
    """Edits of one node, and pairs of them, that fit a tensor's projections."""
    error, room, of = case.projected(name)
    chances, moves = list[tuple[float, Edit]](), list[tuple[Array, Edit]]()
    for node, weights in of.items():
        if case.late(EACH / 2):
            break  # the rest of the time is for other rows
        value = case.sweep.values[node]
        old = weights @ value.astype(np.float64).ravel()
        for edit in edits.local(node, case.sweep, case.digits):
            with contextlib.suppress(*RAISED):
                case.sweep.spend([node] * PROBES)
                made = edit.edits[node](case.sweep.values.__getitem__)
                same = made.shape != value.shape or not (made != value).any()
                if same and not edit.plain:
                    continue
                new = weights @ made.astype(np.float64).ravel()
                moves.append((new - old, edit))
                chances += _weighed(case, edit, old, new, error, room)
    # Where the error is far within the projections' tolerance, most edits fit these.
    near = max(room / 100, 16 * min((off for off, _ in chances), default=0.0))
    chances.sort(key=lambda one: (one[0] > near, one[1].rank, one[0]))
    until = case.sweep.spent + EACH / 15  # a step of a deep network costs as many
    yield from (edit for _, edit in chances[:MOST] if case.sweep.spent < until)
    if name in case.open() and not case.late(EACH / 4):
        case.sweep.spend([*of] * PROBES)
        pairs = ((n, w * case.sweep.values[n].ravel()) for n, w in of.items())
        found = (one for n, along in pairs for one in edits.lost(n, along, error))
        few = sorted(found, key=lambda one: one[0])[:MOST]
        yield from (edit for off, edit in few if off <= room)
    many = case.digits >= SHARP and case.got[name].size >= MANY
    if moves and many and name in case.open():
        yield from _pairs(error, room, moves)


def _weighed(
    case: Case, edit: Edit, old: Array, new: Array, error: Array, room: float
) -> Iterator[tuple[float, Edit]]:
    """The edit, or it times a factor, if it may fit, with the projections' error."""
    target, room = old + error, room + 1e-12 * _most(old)
    off = _most(target - new)
    if off <= room and not edit.plain:
        yield off, edit
        return
    along = new / (new @ new)
    factor, scale = float(target @ along), float(old @ along)
    off = _most(target - factor * new)
    alike = not edit.plain and _most(old - scale * new) < 1e-9 * _most(old)
    if not off <= room or abs(factor - 1) <= case.roundoff or alike:
        return  # an edit that only scales this term is found as a factor
    near = 4 * room / max(_most(new), 1e-300)
    numbers = written(factor, case.lengths, min(max(near, 1e-5), 0.02))
    ((node, make),) = edit.edits.items()
    rank, link = (edit.rank, " ") if edit.plain else (edit.rank + 2.5, ", ")
    # A factor 0 would hide the other value.
    rows = [(rank, c, said) for c, said in numbers if c or edit.plain]
    if edit.plain:
        said = f"multiplied by {factored(factor)}"
        rows.append((FAR - (node in case.sweep.ends), factor, said))
    for rank, c, said in rows:
        text = f"{edit.text}{link}{said}"
        made = {node: partial(lambda c, at: make(at) * c, c)}
        off = _most(target - c * new)
        yield off, replace(edit, rank=rank, text=text, edits=made)


def _most(x: Array) -> float:
    return float(np.abs(x).max())


def _pairs(error: Array, room: float, moves: list[tuple[Array, Edit]]) -> list[Edit]:
    """Two edits whose changes add up to the error, likeliest first."""
    from scipy.spatial import KDTree  # takes as long to import as all of the judge

    moves = sorted(moves, key=lambda move: move[1].rank)
    room += 1e-9 * _most(error)
    changes, error = np.stack([change for change, _ in moves]) / room, error / room
    changes = np.where(np.abs(changes) <= 1e3 * _most(error), changes, 0)  # and nan
    kept = np.sort(np.unique(np.rint(changes), axis=0, return_index=True)[1])
    kept = kept[np.rint(changes[kept]).any(axis=1)]
    near = KDTree(changes[kept]).query_ball_point(error - changes[kept], 1, np.inf)
    both = ((kept[i], kept[j]) for i, found in enumerate(near) for j in found if i < j)
    pairs = [(moves[i][1], moves[j][1]) for i, j in both]
    return [
        replace(a, rank=a.rank + b.rank, edits={**a.edits, **b.edits}, also=b)
        for a, b in sorted(pairs, key=lambda ab: ab[0].rank + ab[1].rank)[:PAIRS]
    ]


def _solved(
    case: Case, name: str, old: float, of: Callable[[float], Edit]
) -> Iterator[Edit]:
    """An edit of a constant with which a projection agrees with the candidate's.

    It is found by the secant method; of the numbers that fit, it has the fewest digits.
    """
    error = case.got[name] - case.right[name]
    error = np.where(np.isfinite(error), error, 0)

    def made(value: float) -> Array:
        return case.sweep.gradients(case.sweep.values, of(value))[name]

    def short(value: float) -> float:
        return float(np.sum(error * (case.got[name] - made(value))))

    before = old * (1 + 1.1e-3) if old else 1.1e-6
    now, low, high = old, short(old), short(before)
    for _ in range(24):
        if not np.isfinite(low) or low == high or abs(now - before) <= 1e-14 * abs(now):
            break
        before, now, high = now, now - low * (now - before) / (low - high), low
        low = short(now)
    fits = now != old and np.isfinite(now) and case.fits(name, made(now))
    far = (old, now + 100 * (now - old))  # beyond a step any number would do
    if fits and not any(case.fits(name, made(v)) for v in far):
        ends = (now + part * (now - old) for part in (-0.5, 0.5))
        loose = any(case.fits(name, made(v)) for v in ends)
        room = max(HONEST, case.rest(name, made(now)))
        for number in (0.0, *(float(f"{now:.{d}g}") for d in range(1, 7))):
            value = made(number)
            if case.fits(name, value) and case.rest(name, value) <= room:
                yield replace(of(number), loose=loose)
                return


def _ranked(case: Case, name: str) -> list[Finding]:
    """The explanations of a tensor that mean different things, best first."""
    ones = case.found[name]
    exact = (f.rest for f in ones if not f.loose)
    room = 2 * max(HONEST / 10, min(exact, default=math.inf))
    # A number can be fitted to any error: what leaves half as much is likelier.
    far = [FAR * (f.loose and f.rest > room) for f in ones]
    found = [replace(f, rank=f.rank + d) for f, d in zip(ones, far, strict=True)]
    found.sort(key=lambda f: (f.rank, len(f.words)))
    if not found:
        return [Finding(99, _common(case, name) + case.sweep.where())]
    # At inputs near by, and with other cotangents, two explanations may differ.
    sweep, rng, leaves = case.sweep, np.random.default_rng(1), dict[Node, Any]()
    for leaf in (*sweep.inputs.values(), *sweep.cotangents):
        if leaf.value.dtype.kind == "f":
            noise = rng.standard_normal(leaf.shape)
            new = noise if leaf in sweep.flows else leaf.value * (1 + 0.1 * noise)
            leaves[leaf] = partial(lambda new, at: new, new.astype(leaf.dtype))
    other = sweep.run(sweep.values, leaves)
    kept = list[tuple[Array, Finding]]()
    right = np.abs(case.sweep.gradients(other)[name])
    near = SAME * np.max(right, initial=0.0, where=np.isfinite(right))
    alike = partial(np.allclose, rtol=SAME, atol=float(near), equal_nan=True)
    for one in found[:16]:
        assert one.predict is not None
        there = one.predict(other)[name]
        if not any(alike(there, seen) for seen, _ in kept):
            kept.append((there, one))
    few = [one for _, one in kept if one.rank < FAR] or [one for _, one in kept]
    count = sum(1 + SEVERAL * one.loose for one in few if one.exact >= few[0].exact)
    return [replace(one, others=count - 1) for _, one in kept]


def _common(case: Case, name: str) -> str:
    """A sentence on what unexplained wrong elements have in common."""
    node, right = case.sweep.tensors[name], case.right[name]
    off = np.abs(case.got[name] - right)
    bad, ratios = ~(off <= case.tolerance[name]), off / case.tolerance[name]
    if not bad.any():
        return f"no element of {name} is off by more than roundings, but all together"
    most = float(np.max(ratios, initial=0.0, where=np.isfinite(ratios)))
    count, where = int(bad.sum()), region_of(bad)[1]
    values = (*case.sweep.names, *edits.near(node, case.sweep))
    alike = {case.sweep.quoted(n): n.value for n in values if n not in case.sweep.ends}
    alike = {n: v for n, v in alike.items() if v.shape == bad.shape}
    # All of a slice is rounded: one element, or some here and there, are not.
    rounded = count > 1 and bool(where or 2 * count >= np.count_nonzero(right))
    sizes = (case.got[name] - right)[bad] / right[bad]
    rounded &= not any(_follows(sizes, v[bad]) for v in alike.values())
    for narrow, precision in PRECISIONS.items():
        reach = most * 2.0 ** (precision.digits - case.digits)
        if rounded and precision.digits < case.digits and 2e-4 <= reach <= HONEST:
            said = f"the errors of {name} are as large as roundings of {narrow}"
            return f"{said}: perhaps something is computed or kept in it"
    seen = "looked at " if case.sweep.parts else ""
    share = f"{count} of {bad.size} elements {seen}of {name} are wrong"
    where = split(bad, alike) if seen or not where else where
    return f"{share}: {where}" if where else share


def _follows(errors: Array, value: Array) -> bool:
    """Whether the sign of errors changes slowly with a value, as no rounding's does."""
    signs = np.sign(errors[np.argsort(value)])
    return len(signs) >= 32 and int((signs[1:] != signs[:-1]).sum()) < len(signs) / 5
