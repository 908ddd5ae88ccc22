"""Run the candidate at a trial, compute the exact tensors, and judge each of its own.

Where rounding hides a tensor, `Growth` finds the step to blame.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradwatch.harness.check.choice import MANY, Trial
from gradwatch.harness.check.frameworks import Elsewhere, Raised, dtype_of
from gradwatch.harness.check.frameworks.observation import Observation
from gradwatch.harness.check.report import Row
from gradwatch.harness.diagnosis.search import Diagnoses
from gradwatch.harness.diagnosis.sweep import Sweep
from gradwatch.harness.judging import verdict
from gradwatch.harness.judging.draws import TURNS, Draws, halves
from gradwatch.harness.judging.excuses.overflow import risks
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.question import FULL, Question
from gradwatch.harness.judging.reference import Reference
from gradwatch.harness.judging.rounding.analysis import operation, running_errors
from gradwatch.harness.judging.rounding.thresholds import MOST, SAYS_NOTHING, SMALL
from gradwatch.harness.judging.spread import WHOLE
from gradwatch.harness.project.machines import release_memory
from gradwatch.harness.tracing import callers_place
from gradwatch.harness.workers.evaluate import in_short
from gradwatch.impls import graph
from gradwatch.impls.contract import Array, Unsupported
from gradwatch.impls.graph import Node

Function = Callable[..., Any]
#: A candidate's tensors and their types, by name, and the judgements on them.
Arrays = Mapping[str, Array | None]
Dtypes = Mapping[str, str]
Judged = tuple[Judgement, ...]
#: The note on a wrong tensor of a random function: it may have drawn other numbers.
OTHER_DRAWS = (
    "the function draws random numbers, and every call starts from the same state of"
    " their generator: draw by the same calls in the same order, from the same one, or"
    " make the mask or the noise an input"
)
OWN_LOSS = "its own steps are the same function, and lose as much at these numbers"
CHOSEN = "elements are chosen by values so near to each other that rounding decides"
UNRECORDED = (
    "the double backward is a constant: the backward computes without autograd's graph "
    "(torch.no_grad, .data, .detach() or NumPy)"
)
#: Inputs of which each is frozen alone: a backward has one branch for each.
FROZEN = 8


def examined(bench: Bench, notes: list[str] | None = None) -> list[Row]:
    """The judgements of one trial, and of one output alone where there are several."""
    bound, trial = bench.bound, bench.trial
    if not any(bound.wanted):
        raise ValueError("no input takes a gradient: give one of floats")
    cotangents = bench.cotangents()
    if trial.order != "vjp":
        return [bench.row(judgement) for judgement in bench.judge_second(cotangents)]
    rows = bench.rows(cotangents, "", trial.thorough)
    if notes is not None:
        notes += bench.oddities(rows)
        notes += bound.traced.notes if bound.traced else ()
    differentiable = [i for i, dy in enumerate(cotangents) if dy is not None]
    if trial.thorough and len(differentiable) > 1:
        for i in differentiable[:FROZEN]:
            alone = [dy if i == j else None for j, dy in enumerate(cotangents)]
            rows += bench.rows(alone, f"only {bound.results[i]} used", False)
    return rows


def row_of(
    trial: Trial, judgement: Judgement, how: str = "", right: Reference | None = None
) -> Row:
    """A judgement with its trial, and whether rounding hides its tensor."""
    silent = zero = False
    if right is not None and judgement.verdict == "vacuous":
        zero = verdict.is_zero(right, judgement.tensor)
        silent = not zero and verdict.zeros_pass(right, judgement.tensor)
    made = trial.name, trial.dtype, judgement, how, silent, zero
    return Row(*made, own=trial.as_given, edge=trial.edge)


class Bench:
    """A candidate and a reference at one trial; the reference has run forward.

    `used` is the framework of their tensors, `growth` is computed when it is needed;
    `kept` is the truth by the candidate's values, if it has found a mistake.
    """

    unrepeatable = False
    beyond = 0
    asked: Question | None = None
    kept: Question | None = None
    growth: Growth | None = None
    given: Sequence[Any] = ()

    def __init__(
        self,
        subject: Any,
        candidate: Function | Elsewhere | None,
        trial: Trial,
        compute: str | None = None,
        diagnoses: Diagnoses | None = None,
    ) -> None:
        self.subject, self.trial, self.used = subject, trial, trial.framework
        self.compute, self.diagnoses = compute, diagnoses
        self.bound = bound = subject.bound(trial)
        self.expected = self.used.forward(bound.call, bound.tensors, bound.wanted)
        self.apart = isinstance(candidate, Elsewhere)
        judged: Any = candidate if self.apart else self.used
        self.observe = judged.observe
        self.own = None if self.apart else candidate
        # The reference is bound in place of a candidate in another process.
        own: Any = subject.own if self.own is None else candidate
        self.call = self.used.bind(own, bound.call, bound.tensors)

    def cotangents(self) -> list[Any]:
        """A cotangent of each differentiable output; ValueError for none, or nan."""
        outputs, followed = self.expected.outputs, self.expected.followed
        arrays = map(self.used.array_of, outputs)
        floats = [a for a in arrays if a.dtype.kind == "f" and a.size]
        if floats and not self.trial.edge and all(np.isnan(a).all() for a in floats):
            raise ValueError("the reference returns nothing but nan for these numbers")
        if not any(followed):
            raise ValueError("the reference has no output that can be differentiated")
        pairs = enumerate(zip(outputs, followed, strict=True))
        return [self.trial.cotangent(y, i) if f else None for i, (y, f) in pairs]

    @property
    def tangents(self) -> list[Any]:
        """A tangent for each tensor that needs a gradient; none in first order."""
        pairs = enumerate(zip(self.bound.tensors, self.bound.wanted, strict=True))
        trial, second = self.trial, self.trial.order != "vjp"
        return [trial.tangent(t, i) if second and w else None for i, (t, w) in pairs]

    def truth(self, cotangents: Sequence[Any], traced: Any = None) -> Question:
        """The right tensors of the trial, or of another trace where `traced` is one."""
        self.given = cotangents
        bound = replace(self.bound, traced=traced) if traced else self.bound
        dys, along = (
            [None if t is None else self.used.array_of(t) for t in tensors]
            for tensors in (cotangents, self.tangents)
        )
        asked = bound, dys, along, self.trial, self.compute
        right: Question = self.subject.truth(*asked)
        return right

    def second_names(self, cotangents: Sequence[Any]) -> tuple[str, ...]:
        """Names of the second derivatives, in the order of `runs.differentiated`."""
        pairs = zip(self.bound.results, cotangents, strict=False)
        outputs = [name for name, dy in pairs if dy is not None]
        if self.trial.order == "jvp":
            return tuple(f"jvp.{name}" for name in outputs)
        wanted = zip(self.bound.names, self.bound.wanted, strict=True)
        inputs = [name for name, w in wanted if w]
        return tuple(f"hvp.d{n}" for n in (*inputs, *(f"d{y}" for y in outputs)))

    def judge_second(self, cotangents: Sequence[Any]) -> Iterator[Judgement]:
        """Differentiate the candidate in the trial's order, and judge each tensor."""
        tangents, bound, order = self.tangents, self.bound, self.trial.order
        right = self.truth(cotangents)
        given = self.used.copies((*tangents, *cotangents))
        try:
            with self.used.refusals():
                got = self.used.differentiated(
                    *(order, self.call, bound.tensors, bound.wanted),
                    *(cotangents, tangents),
                )
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises
            yield self._judge_raised(error)
            return
        if not all(map(self.used.same, given, (*tangents, *cotangents))):
            message = "a cotangent or a tangent was overwritten"
            yield Judgement("cotangents", "malformed", message=message)
        named = dict(zip(self.second_names(cotangents), got, strict=True))
        judgements = self._judge(right, {n: (t, None) for n, t in named.items()})
        wrong = order == "hvp" and not all(j.passes for j in judgements)
        cause = self.used.cause_of(self.call, bound) if wrong else ""
        for j in judgements:
            why = cause or (UNRECORDED if named[j.tensor] is None else "")
            by_input = j.tensor.startswith("hvp.d") and not j.passes
            said = f"{j.message}; {why}" if why and by_input else j.message
            yield replace(j, message=said)

    def rows(self, cotangents: Sequence[Any], label: str, thorough: bool) -> list[Row]:
        """Run and judge; `label` says what is unusual about the cotangents."""
        judgements = self._judged(cotangents, thorough)
        return [self.row(judgement, how or label) for how, judgement in judgements]

    def row(self, judgement: Judgement, how: str = "") -> Row:
        """A judgement with its trial, and the step where rounding hides its tensor."""
        # Where only a sample of the elements is computed, nothing more is known.
        known = self.asked.known if self.asked else None
        row = row_of(self.trial, judgement, how, known)
        if row.shown != "vacuous" or not (row.own and known):
            return row
        if sum(node.size for node in known.radii().order) > FULL:
            return row  # every value would be held three times
        self.growth = self.growth or Growth(known)
        return replace(row, step=self.growth.explain(judgement))

    def oddities(self, rows: Sequence[Row]) -> Iterator[str]:
        """Notes on facts that are no mistakes: extra tensors, other bits, draws."""
        if self.beyond:
            more = "tensor" if self.beyond == 1 else "tensors"
            yield f"it returns {self.beyond} {more} more than the reference: not judged"
        wrong = not all(row.judgement.passes for row in rows)
        if wrong and self.bound.draws:
            yield OTHER_DRAWS
        if self.unrepeatable:
            random = "; what is random must be an input: a mask, a noise" * wrong
            yield f"{self.trial.name}: a second run gave other bits{random}"

    def _judged(
        self, cotangents: Sequence[Any], thorough: bool
    ) -> list[tuple[str, Judgement]]:
        frozen = list(self.frozen()) if thorough else []
        right = self.truth(cotangents)
        large = sum(self.trial.sizes) >= MANY
        if large:
            release_memory()
        try:
            given = self.bound.tensors, self.bound.wanted, cotangents
            seen = self.observe(self.call, *given, frozen, thorough)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises
            return [("", self._judge_raised(error))]
        if large:
            release_memory()
        self.unrepeatable = thorough and not seen.repeatable
        self.beyond = max(0, len(seen.outputs) - len(self.expected.outputs))
        self.asked = right
        first = self._named(right, seen.gradients, seen.outputs)
        written = {}
        if self.bound.updated or self.bound.call.state:
            places = zip(self.bound.names, seen.leaves, self.bound.tensors, strict=True)
            changed = {*right.names} - {*first}
            written = {n: (now, like) for n, now, like in places if n in changed}
        numbers = self._judge(right, first | written)
        judgements = [("", j) for j in (*self._faults(seen), *numbers)]
        count = len(seen.gradients)
        for how, places, again in seen.others:
            fixed = {f"d{self.bound.names[i]}" for i in places}
            named = self._named(right, again[:count], again[count:])
            odd = {
                name: found
                for name, found in named.items()
                if name in first
                and name not in fixed
                and not self.used.same(found[0], first[name][0])
            }
            done = self._done(how, places)
            judgements += [(done, j) for j in self._judge(right, odd)]
        for how, places, words in seen.raised:
            if not (places and self._needs(places)):
                raised = Judgement("all", "error", message=f"raised {words}")
                judgements.append((self._done(how, places), raised))
        return judgements

    def _judge_raised(self, error: BaseException) -> Judgement:
        """The judgement on an exception of the candidate."""
        if isinstance(error, Unsupported) and self.trial.order != "vjp":
            message = f"{self.used.TITLE}: {error}"
            return Judgement("all", "unsupported", message=message)
        if isinstance(error, Raised):  # in a process of its own
            return Judgement("all", "error", message=f"raised {error}")
        place = callers_place(error) if self.trial.as_given else None
        at = f" at {place}" if place and place.file else ""
        return Judgement("all", "error", message=f"raised {in_short(error)}{at}")

    def frozen(self) -> Iterator[tuple[int, ...]]:
        """Sets of tensors to run without `requires_grad`, one at a time."""
        at = [i for i, wanted in enumerate(self.bound.wanted) if wanted]
        count = len(self.bound.tensors) - len(self.bound.call.state)
        own = tuple(i for i in at if i >= count)
        inputs = tuple(i for i in at if i < count)
        if own and inputs:
            yield own
            yield inputs
        if len(at) > 1:
            yield from ((i,) for i in at[:FROZEN] if (i,) not in (own, inputs))

    def _needs(self, places: Sequence[int]) -> bool:
        """Whether the reference, too, raises where some tensors need no gradient."""
        wanted = [w and i not in places for i, w in enumerate(self.bound.wanted)]
        with contextlib.suppress(Exception):  # whatever it raises
            self.used.forward(self.bound.call, self.bound.tensors, wanted)
            return False
        return True

    def _done(self, how: str, places: Sequence[int]) -> str:
        names = [self.bound.names[i] for i in places[:3]]
        few = ", ".join([*names, *["..."] * (len(places) > 3)])
        return f"{few} without requires_grad" if places else how

    def _faults(self, seen: Observation[Any]) -> Iterator[Judgement]:
        names, results = self.bound.names, self.bound.results
        for kind, place, message in seen.faults:
            if kind == "input" and place in self.expected.written:
                continue
            known = names if kind in ("input", "gradient") else results
            name = known[place] if place < len(known) else f"{kind} {place}"
            name = f"d{name}" if kind in ("gradient", "cotangent") else name
            name = "saved tensors" if kind == "saved" else name
            yield Judgement(name, "malformed", message=f"{name}: {message}")
        got, wanted = len(seen.outputs), len(self.expected.outputs)
        if got < wanted:
            message = f"returned {got} tensors, expected {wanted}"
            yield Judgement("outputs", "malformed", message=message)

    def _named(
        self, right: Question, gradients: Sequence[Any], outputs: Sequence[Any]
    ) -> dict[str, tuple[Any, Any]]:
        """Tensors by name, each with one that has the dtype it must have."""
        bound = self.bound
        likes = zip(outputs, self.expected.outputs, strict=False)
        named = dict(zip(bound.results, likes, strict=False))
        if odd := {n: two for n, two in named.items() if two[0].shape != two[1].shape}:
            return odd  # no cotangent fits them: a gradient says nothing
        for i, name in enumerate(f"d{name}" for name in bound.names):
            absent = (
                gradients[i] is None and name in right.names and name in right.unreached
            )
            if bound.wanted[i] and not absent:
                named[name] = (gradients[i], bound.tensors[i])
        return named

    def _judge(self, right: Question, tensors: Mapping[str, tuple[Any, Any]]) -> Judged:
        dtype, used = self.trial.dtype, self.used
        arrays, dtypes = dict[str, Array | None](), dict[str, str]()
        for name, (tensor, like) in tensors.items():
            arrays[name] = None if tensor is None else used.array_of(tensor)
            if tensor is not None:
                has = dtype_of(tensor.real if like is None else tensor)
                same = like is not None and has == dtype_of(like)
                dtypes[name] = dtype if same else has
        judged = self._chosen(right, arrays, dtypes)
        # Only the steps of a PyTorch candidate in this process can be traced.
        if not (self.bound.traced is None or self.own is None or self.trial.edge):
            judged = self._excused(right, judged, arrays, dtypes)
        if self.diagnoses is None or self.trial.edge:
            return judged
        how = dtype, not self.unrepeatable
        named = self.diagnoses.told_of(self.kept or right, arrays, judged, *how)
        return tuple(_in_parts(j, tensors[j.tensor][0]) for j in named)

    def _excused(
        self, right: Question, found: Judged, arrays: Arrays, dtypes: Dtypes
    ) -> Judged:
        """The judgements; a loss of the candidate's own algorithm is `imprecise`.

        Within the rounding errors of its own steps the tensor agrees, and within one
        radius the reference's values. Large errors, as most mistakes, are not excused.
        """
        own = functools.cache(
            lambda: self.truth(self.given, self.used.followed(self.call, self.bound))
        )

        def is_lost(j: Judgement) -> bool:
            got, exact = arrays.get(j.tensor), right.known
            if j.verdict != "disagree" or got is None or exact is None:
                return False
            if not abs(j.got - j.expected) <= SAYS_NOTHING * np.abs(got).max():
                return False
            with contextlib.suppress(Exception):  # an exception explains nothing
                value, theirs = exact.graphs["first"][j.tensor].value, own().right
                off = np.abs(got - theirs.graphs["first"][j.tensor].value)
                room = verdict.allowed(theirs, "first", j.tensor)
                if np.isinf(room[np.isfinite(value)]).any() or (off > room).any():
                    return False
                judged = [own().judge({j.tensor: a}, dtypes)[0] for a in (got, value)]
                same = judged[1].ratio <= 1
                return same and all(one.verdict == "agree" for one in judged)
            return False

        with np.errstate(all="ignore"):
            return tuple(
                replace(j, verdict="imprecise", message=f"{j.message}; {OWN_LOSS}")
                if is_lost(j)
                else j
                for j in found
            )

    def _chosen(self, right: Question, arrays: Arrays, dtypes: Dtypes) -> Judged:
        """The judgements, by the values that the candidate keeps where these say more.

        The values that it saves for its backward are known, to the bit; so is what
        rounding has chosen, if these are the reference's bits. Where it may choose
        otherwise, a tensor is right by the choices of the reference's own run.
        """
        found, traced = right.judge(arrays, dtypes), self.bound.traced
        failed = [j.tensor for j in found if not j.passes]
        asked = {
            j.tensor: arrays[j.tensor]
            for j in found
            if j.tensor in failed or verdict.says_little(right.known, j)
        }
        if traced is None or not asked:
            return found
        turned = traced.turned(self.trial.dtype) if failed else []
        saved, theirs = self._saved(arrays, found) if right.known else (None, set())
        if not turned and saved is None:
            return found
        run = traced.as_run() if saved is None else traced.keeping(saved)
        chosen = kept = self.truth(self.given, run)
        alike = bool(theirs) and theirs <= self.used.hashes([*run.ran.values()])
        ends = {n: asked.pop(n) for n in self.bound.results if n in asked}
        if ends and saved is not None:
            chosen = self.truth(self.given, traced.as_run())
        judged = *chosen.judge(ends, dtypes), *kept.judge(asked, dtypes)
        by_run, exact = {j.tensor: j for j in judged}, kept.known
        steps = () if saved is None or exact is None else exact.radii().order
        kinks = "compare", *graph.SELECTIONS  # which rounding may decide
        sure = alike or (bool(steps) and not any(operation(n) in kinks for n in steps))
        pairs = ((a, by_run.get(a.tensor, a)) for a in found)
        both = tuple(self._read(a, b, arrays[a.tensor], kept, sure) for a, b in pairs)
        if sure or not turned or all(j.passes for j in both):
            return both
        if any(a is not b for a, b in zip(found, both, strict=True)):
            right, kept = kept, right
        return self._open(right, kept, turned, both, arrays)

    def _read(
        self, a: Judgement, b: Judgement, got: Array | None, kept: Question, sure: bool
    ) -> Judgement:
        """The judgement by exact numbers, or by kept ones where no element tells."""
        if a is b:
            return a
        if b.verdict in ("agree", "convention") and a.verdict != "nonfinite":
            said = f"{a.tensor}: right for what {self.trial.dtype} chooses; {CHOSEN}"
            as_chosen = replace(b, verdict="convention", message=said)
            return replace(b, verdict="agree") if a.passes else as_chosen
        accuses = sure and not b.passes and (a.passes or a.radius_kind in WHOLE)
        if not accuses or got is None or (exact := kept.known) is None:
            excused = ("imprecise",) if a.passes else ("imprecise", "vacuous")
            return b if b.verdict in excused else a
        first, *others = (nodes[a.tensor].value for nodes in exact.graphs.values())
        tied = max((np.linalg.norm(v - first) for v in others), default=0.0)
        if tied >= MOST * np.linalg.norm(got - first):
            return a
        self.kept = kept
        return b

    def _saved(
        self, arrays: Mapping[str, Any], found: Sequence[Judgement]
    ) -> tuple[list[Any] | None, set[int]]:
        """The tensors that it saves; hashes of the reference's, if these are the same.

        None if it is not known, as of another process, if nothing is known of a result
        (what is saved may have overflowed), or if other bits are wrong.
        """
        used, bound = self.used, self.bound
        ends = [j.verdict for j in found if j.tensor in bound.results]
        with contextlib.suppress(Exception):  # a forward that differentiates twice
            pairs = zip(bound.results, self.expected.outputs, strict=False)
            same = all(np.array_equal(arrays[n], used.array_of(y)) for n, y in pairs)
            if not (self.apart or self.trial.edge or "vacuous" in ends):
                own = used.saved(self.call, bound)
                theirs = used.hashes(used.saved(bound.call, bound)) if same else set()
                alike = same and theirs <= used.hashes(own)
                known = alike or all(j.passes for j in found)
                return own if known else None, theirs if alike else set()
        return None, set()

    def _open(
        self,
        right: Question,
        kept: Question,
        runs: Sequence[Any],
        found: Judged,
        arrays: Arrays,
    ) -> Judged:
        """The judgements; `vacuous` if the choices of some run move a tensor as far.

        It stays wrong where that is half of it at the caller's own numbers; in other
        trials, as of tiny ones, all values may be that close.
        """
        exact, turned = right.known, [kept.known]
        for run in runs if exact is not None else ():
            with contextlib.suppress(Exception):  # another count fits no shape
                turned.append(self.truth(self.given, run).right)

        def is_open(j: Judgement) -> bool:
            if j.passes or not np.isfinite(j.got) or exact is None:
                return not j.passes and bool(np.isfinite(j.got))
            value, got = exact.graphs["first"][j.tensor].value, arrays[j.tensor]
            others = [r.graphs["first"][j.tensor].value for r in turned if r]
            moved = [np.abs(v - value) for v in others if v.shape == value.shape]
            if got is None or got.shape != value.shape or not moved:
                return True
            off, room = np.abs(got - value), verdict.allowed(exact, "first", j.tensor)
            if (off > room + TURNS * np.max(moved, axis=0)).any():
                return False
            wrong = (moved[0] <= room) & (off > room)
            half = np.count_nonzero(wrong | (np.abs(value) > room)) / 2
            return not (self.trial.as_given and 0 < half <= np.count_nonzero(wrong))

        return tuple(
            replace(j, verdict="vacuous", vacuous=1.0, message=f"{j.message}; {CHOSEN}")
            if is_open(j)
            else j
            for j in found
        )


def _in_parts(judgement: Judgement, tensor: Any) -> Judgement:
    """A judgement whose diagnosis names real and imaginary parts, not the last axis."""
    if tensor is None or not dtype_of(tensor).startswith("complex"):
        return judgement
    said = judgement.diagnosis
    for place, part in (("slice 0", "real"), ("the last", "imaginary")):
        axis = f"{place} of 2 along axis {tensor.ndim} of"
        said = said.replace(axis, f"the {part} part of")
    return replace(judgement, diagnosis=said)


class Growth:
    """The growth of rounding errors from step to step of an evaluation."""

    def __init__(self, right: Reference) -> None:
        self.sweep, self.arithmetic = Sweep(right.built, "first"), right.arithmetics[-1]
        order, self.least = self.sweep.order, self.arithmetic.step.roundoff
        self.errors = running_errors(order, self.arithmetic, right.limit)
        draws = Draws(self.errors, order, once=True)
        with np.errstate(all="ignore"):
            pairs = draws.pair(2, {*order})  # each rounding by itself
            self.shares = {n: self._share(n, halves(n, pairs[n])) for n in order}

    def _share(self, node: Node, moved: tuple[Any, Any] | None) -> float:
        """The norm of a node's rounding error over its own; at least one roundoff."""
        if moved is None or not moved[0].any():
            return self.least
        share = np.linalg.norm(moved[0]) / np.linalg.norm(node.value)
        return max(float(share), self.least) if share < np.inf else 1.0

    def explain(self, of: Judgement) -> str:
        """The step with most of a tensor's rounding error, its line, and a remedy."""
        shares, end = self.shares, self.sweep.tensors[of.tensor]
        undefined = np.count_nonzero(np.isnan(end.value))
        if undefined > end.size / 2:
            return f"it is undefined (nan) in {undefined} of {end.size} elements"
        if not of.radius < np.inf and (lost := verdict.vanished(end, self.arithmetic)):
            return f"{lost}: compute with it in float32, or take a larger one"
        if not of.radius < np.inf and (said := self._overflow(end)):
            return f"{said}: float64 tells more"
        behind = dict.fromkeys([end])
        for node in reversed(graph.topological_order([end])):
            if node in behind:  # without inputs whose errors are negligible in it
                felt = (s for s in node.inputs if shares[s] * SMALL <= shares[node])
                behind |= dict.fromkeys(felt)

        def growth(node: Node) -> float:
            return shares[node] / max((shares[s] for s in node.inputs), default=1.0)

        most = [n for n in behind if shares[n] >= SMALL * min(shares[end], 1.0)]
        step = max(most, key=growth)
        said = f"rounding grows {growth(step):,.0f}-fold in {self._named(step)}"
        if growth(step) < 1 / SAYS_NOTHING:
            much = shares[end] / self.least
            said = f"rounding grows {much:,.0f}-fold in all, in no step by much"
            if not of.compute:  # no rounding explains it, but an excuse
                said = of.message.rpartition("; ")[2]
        more = ", or more numbers in its sums (a larger batch)" if of.compute else ""
        return f"{said}: float64 tells more{more}"

    def _overflow(self, step: Node) -> str:
        """The first step whose overflow reaches this one, in words; "" if none does."""
        risky, narrow = risks(self.sweep.order, self.errors), self.arithmetic.step
        while before := [s for s in step.inputs if s in risky]:
            step = before[0]
        overflows = step in risky and (np.abs(step.value) >= narrow.beyond).any()
        return f"{self._named(step)} overflows in {narrow.name}" if overflows else ""

    def _named(self, step: Node) -> str:
        """The term of a step, and its line."""
        sweep, before = self.sweep, reversed(graph.topological_order([step]))
        rule = next((sweep.made[n][0] for n in before if n in sweep.made), step)
        term = sweep.term(step) if step in sweep.flows else sweep.quoted(step)
        return f"{term}{sweep.line(rule)}"
