"""Trial by trial: the candidate is run, the truth worked out, every tensor judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from gradwatch.harness.check.causes import cause_of, with_cause
from gradwatch.harness.check.inputs import Trial, torch_dtype
from gradwatch.harness.check.report import Row
from gradwatch.harness.check.runs import (
    Graph,
    Observation,
    Tensor,
    copies,
    differentiated,
    floating,
    in_short,
    nodes_behind,
    numbers,
    observe,
    replica,
    same,
)
from gradwatch.harness.check.subjects import Subject
from gradwatch.harness.check.subjects.apart import Apart, Raised
from gradwatch.harness.check.subjects.binding import (
    Bound,
    Call,
    Function,
    array_of,
    bind,
)
from gradwatch.harness.judging.diagnosis import Diagnoses
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.question import Question
from gradwatch.harness.tracing import callers_place
from gradwatch.impls.backends._torchlike import refusals
from gradwatch.impls.contract import Array, Unsupported

#: What of a function that draws cannot be told apart from a mistake.
OTHER_DRAWS = (
    "it draws other random numbers than the reference, whose values it has not: draw by"
    " the same calls in the same order, from the same generator and device, or make the"
    " mask or the noise an input"
)

CHOSEN = "elements are chosen by values so near to each other that rounding decides"
#: Inputs of which each is frozen alone: a backward has one branch for each.
FROZEN = 8


@dataclass(frozen=True)
class Expected:
    """The reference's own outputs, and what it writes to."""

    outputs: tuple[Tensor, ...]
    written: frozenset[int]

    @classmethod
    def of(cls, bound: Bound) -> Expected:
        """Run the reference forward."""
        graph = Graph(bound.call, bound.tensors, bound.wanted)
        return cls(graph.outputs, bound.updated | {*graph.changed_leaves()})

    def cotangents(self, trial: Trial) -> list[Tensor | None]:
        """One for each output that has a gradient.

        Raises:
            ValueError: None has, or all are nan: the numbers are outside its domain.
        """
        floats = [y for y in self.outputs if floating(y) and y.numel()]
        if floats and not trial.edge and all(bool(y.isnan().all()) for y in floats):
            raise ValueError("the reference returns nothing but nan for these numbers")
        made = [
            trial.cotangent(y, i) if y.requires_grad else None
            for i, y in enumerate(self.outputs)
        ]
        if not any(dy is not None for dy in made):
            raise ValueError("the reference has no output that can be differentiated")
        return made


def examined(
    subject: Subject,
    candidate: Function | Apart | None,
    trial: Trial,
    compute: str | None = None,
    notes: list[str] | None = None,
    diagnoses: Diagnoses | None = None,
) -> list[Row]:
    """The judgements of one trial, and of one output alone where there are several."""
    bound = subject.bound(trial)
    expected = Expected.of(bound)
    if not any(bound.wanted):
        raise ValueError("no input takes a gradient: give one of floats")
    cotangents = expected.cotangents(trial)
    apart = candidate if isinstance(candidate, Apart) else None
    call = bind(in_process(subject, candidate), bound)
    bench = Bench(subject, bound, call, expected, trial, compute, diagnoses, apart)
    if trial.order != "vjp":
        second = bench.judge_second(cotangents)
        return [bench.row(judgement) for judgement in second]
    rows = bench.rows(cotangents, "", trial.thorough)
    if notes is not None:
        notes += bench.oddities(rows)
        notes += bound.traced.notes if bound.traced else ()
    differentiable = [i for i, dy in enumerate(cotangents) if dy is not None]
    if trial.thorough and len(differentiable) > 1:
        names = subject.results(bound)
        for i in differentiable[:FROZEN]:
            alone = [dy if i == j else None for j, dy in enumerate(cotangents)]
            rows += bench.rows(alone, f"only {names[i]} used", False)
    return rows


def in_process(subject: Subject, candidate: Function | Apart | None) -> Function:
    """Return what can be called here; for what is apart the reference stands in."""
    if candidate is None or isinstance(candidate, Apart):
        return subject.own
    return candidate


#: A step in float64, whose own error is about its square root: 1e-12, or 1e-8 by it.
STEP = 1e-6
#: Shares of a slope within which a difference quotient shows it.
NEAR = 1e-3


def steps_have_its_slope(subject: Subject, trial: Trial) -> bool:
    """Whether the steps of a forward have the slope that its values show, in float64.

    They have another one where it rounds, or looks for a root by bisection. Asked only
    of what runs a `torch.autograd.Function`: a detach elsewhere is meant.
    """

    def widened(value: Any) -> Any:
        if not floating(value):
            return value
        return value.detach().to(torch.promote_types(value.dtype, torch.float64))

    args, kwargs = tree_map(widened, (trial.args, dict(trial.kwargs)))
    wide = replace(trial, args=args, kwargs=kwargs, dtype="float64", order="vjp")
    bound = subject.bound(wide)
    expected = Expected.of(bound)
    own = torch.autograd.function.BackwardCFunction
    if not any(isinstance(node, own) for node in nodes_behind(expected.outputs)):
        return True
    cotangents = expected.cotangents(wide)
    call = bind(subject.own, bound)
    moved = [
        wide.tangent(tensor, i) if wanted else None
        for i, (tensor, wanted) in enumerate(
            zip(bound.tensors, bound.wanted, strict=True)
        )
    ]

    def value(step: float) -> float:
        pairs = zip(bound.tensors, moved, strict=True)
        outputs = call(*(t if v is None else t + step * v for t, v in pairs))
        products = zip(outputs, cotangents, strict=False)
        return sum(
            float((numbers(y) * numbers(dy)).sum())
            for y, dy in products
            if dy is not None
        )

    asked = Bench(subject, bound, call, expected, wide, None).truth(cotangents)
    nodes = asked.right.graphs["first"]
    slope = sum(
        float(np.sum(nodes[f"d{name}"].value * array_of(v)))
        for name, v in zip(bound.names, moved, strict=True)
        if v is not None
    )
    with torch.no_grad():
        seen = (value(STEP) - value(-STEP)) / (2 * STEP)
    return abs(seen - slope) <= NEAR * (abs(seen) + abs(slope))


@dataclass
class Bench:
    """A candidate at one trial."""

    subject: Subject
    bound: Bound
    call: Call
    expected: Expected
    trial: Trial
    compute: str | None
    diagnoses: Diagnoses | None = None
    apart: Apart | None = None
    unrepeatable: bool = False
    beyond: int = 0
    asked: Question | None = None

    @property
    def tangents(self) -> list[Tensor | None]:
        """One for each tensor that needs a gradient; of a gradient none."""
        pairs = zip(self.bound.tensors, self.bound.wanted, strict=True)
        second = self.trial.order != "vjp"
        return [
            self.trial.tangent(tensor, i) if second and wanted else None
            for i, (tensor, wanted) in enumerate(pairs)
        ]

    def truth(self, cotangents: Sequence[Tensor | None]) -> Question:
        """The right tensors."""
        dys, along = (
            [None if t is None else array_of(t) for t in tensors]
            for tensors in (cotangents, self.tangents)
        )
        return self.subject.truth(self.bound, dys, along, self.trial, self.compute)

    def second_names(self, cotangents: Sequence[Tensor | None]) -> tuple[str, ...]:
        """Names of the second derivatives, in the order of `runs.differentiated`."""
        pairs = zip(self.subject.results(self.bound), cotangents, strict=False)
        outputs = [name for name, dy in pairs if dy is not None]
        if self.trial.order == "jvp":
            return tuple(f"jvp.{name}" for name in outputs)
        wanted = zip(self.bound.names, self.bound.wanted, strict=True)
        inputs = [name for name, w in wanted if w]
        return tuple(f"hvp.d{n}" for n in (*inputs, *(f"d{y}" for y in outputs)))

    def judge_second(self, cotangents: Sequence[Tensor | None]) -> Iterator[Judgement]:
        """Differentiate the candidate in the trial's order, and judge each tensor."""
        tangents, bound, order = self.tangents, self.bound, self.trial.order
        given = copies((*tangents, *cotangents))
        try:
            with refusals():
                got = differentiated(
                    *(order, self.call, bound.tensors, bound.wanted),
                    *(cotangents, tangents),
                )
        except Unsupported as words:
            yield Judgement("all", "unsupported", message=f"PyTorch: {words}")
            return
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises
            yield Judgement("all", "error", message=f"raised {in_short(error)}")
            return
        if not all(map(same, given, (*tangents, *cotangents))):
            message = "a cotangent or a tangent was overwritten"
            yield Judgement("cotangents", "malformed", message=message)
        named = dict(zip(self.second_names(cotangents), got, strict=True))
        like = torch_dtype(self.trial.dtype)
        right = self.truth(cotangents)
        judgements = self._judge(right, {n: (t, like) for n, t in named.items()})
        wrong = order == "hvp" and not all(j.passes for j in judgements)
        cause = cause_of(self.call, bound, cotangents) if wrong else ""
        for judgement in judgements:
            yield with_cause(judgement, named[judgement.tensor], cause)

    def rows(
        self, cotangents: Sequence[Tensor | None], label: str, thorough: bool
    ) -> list[Row]:
        """Run and judge; `label` says what is unusual about the cotangents."""
        judgements = self._judged(cotangents, thorough)
        return [self.row(judgement, how or label) for how, judgement in judgements]

    def row(self, judgement: Judgement, how: str = "") -> Row:
        """A judgement with what is known of its trial."""
        # Where a sample is all, nothing more is known.
        known = self.asked.known if self.asked else None
        return self.trial.row(judgement, how, known)

    def oddities(self, rows: Sequence[Row]) -> Iterator[str]:
        """What is neither right nor wrong, a note each."""
        if self.beyond:
            more = "tensor" if self.beyond == 1 else "tensors"
            yield f"it returns {self.beyond} {more} more than the reference: not judged"
        wrong = not all(row.judgement.passes for row in rows)
        if wrong and self.bound.call.draws:
            yield (
                "the function draws random numbers, and every call starts from the same"
                " state of their generator; who uses them in another way needs the mask"
                " or the noise as an input"
            )
        if self.unrepeatable:
            random = "; what is random must be an input: a mask, a noise"
            yield (
                f"{self.trial.name}: a second run gave other bits"
                f"{random if wrong else ''}"
            )

    def _judged(
        self, cotangents: Sequence[Tensor | None], thorough: bool
    ) -> list[tuple[str, Judgement]]:
        frozen = list(self.frozen()) if thorough else []
        try:
            if self.apart:
                seen = self.apart.observe(self.bound, cotangents, frozen, thorough)
            else:
                given = self.bound.tensors, self.bound.wanted, cotangents
                seen = observe(self.call, *given, frozen, thorough)
        except Raised as error:
            return [("", Judgement("all", "error", message=f"raised {error}"))]
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises
            place = callers_place(error) if self.trial.as_given else None
            at = f" at {place}" if place and place.file else ""
            message = f"raised {in_short(error)}{at}"
            return [("", Judgement("all", "error", message=message))]
        self.unrepeatable = thorough and not seen.repeatable
        self.beyond = max(0, len(seen.outputs) - len(self.expected.outputs))
        right = self.asked = self.truth(cotangents)
        judgements = [("", j) for j in self._faults(seen)]
        judgements += [("", j) for j in self._numbers(right, seen)]
        if self._draws_otherwise(judgements):
            return [("", Judgement("all", "error", message=OTHER_DRAWS))]
        for how, places, gradients in seen.others:
            message = self._frozen_names(places) if places else how
            compared = [None if i in places else g for i, g in enumerate(gradients)]
            firsts = [None if i in places else g for i, g in enumerate(seen.gradients)]
            odd = self._differing(right, firsts, compared)
            judgements += [(message, judgement) for judgement in odd]
        for how, places, words in seen.raised:
            if places and self._needs(places):
                continue
            message = self._frozen_names(places) if places else how
            raised = Judgement("all", "error", message=f"raised {words}")
            judgements.append((message, raised))
        return judgements

    def _draws_otherwise(self, judgements: Iterable[tuple[str, Judgement]]) -> bool:
        """Whether an output is another one, and generators end up elsewhere."""
        generators, states = [*self.bound.call.draws], []
        named = {*self.subject.results(self.bound)}
        wrong = (j.tensor in named and not j.passes for _, j in judgements)
        if not generators or self.apart or not any(wrong):
            return False
        for call in (self.bound.call, self.call):
            call(*map(replica, self.bound.tensors))
            drawn = [g or torch.default_generator for g in generators]
            states.append([g.get_state() for g in drawn])
        return not all(map(same, *states))

    def frozen(self) -> Iterator[tuple[int, ...]]:
        """Sets of tensors that need no gradient for once."""
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
        try:
            Graph(self.bound.call, self.bound.tensors, wanted)
        except Exception:  # noqa: BLE001  # whatever it raises
            return True
        return False

    def _frozen_names(self, places: Sequence[int]) -> str:
        names = [self.bound.names[i] for i in places]
        few = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        return f"{few} without requires_grad"

    def _faults(self, seen: Observation) -> Iterator[Judgement]:
        names, results = self.bound.names, self.subject.results(self.bound)
        known = {
            "input": names,
            "gradient": tuple(f"d{name}" for name in names),
            "output": results,
            "cotangent": tuple(f"d{name}" for name in results),
            "saved": ("saved tensors",),
        }
        for kind, place, message in seen.faults:
            if kind == "input" and place in self.expected.written:
                continue
            named = known[kind]
            name = named[place] if place < len(named) else f"{kind} {place}"
            yield Judgement(name, "malformed", message=f"{name}: {message}")
        got, wanted = len(seen.outputs), len(self.expected.outputs)
        if got < wanted:
            message = f"returned {got} tensors, expected {wanted}"
            yield Judgement("outputs", "malformed", message=message)

    def _numbers(self, right: Question, seen: Observation) -> Iterable[Judgement]:
        results = self.subject.results(self.bound)
        tensors: dict[str, tuple[Tensor | None, torch.dtype]] = {}
        for name, y, like in zip(
            results, seen.outputs, self.expected.outputs, strict=False
        ):
            tensors[name] = (y, like.dtype)
        tensors |= self._gradients(right, seen.gradients)
        changes = self.bound.updated or self.bound.call.state
        changed = set(right.names) - {*tensors} if changes else ()
        for place, name in enumerate(self.bound.names):
            if name in changed:
                tensors[name] = (seen.leaves[place], self.bound.tensors[place].dtype)
        return self._judge(right, tensors)

    def _gradients(
        self, right: Question, gradients: Sequence[Tensor | None]
    ) -> dict[str, tuple[Tensor | None, torch.dtype]]:
        named = {}
        triples = zip(self.bound.names, self.bound.tensors, gradients, strict=True)
        for (name, like, gradient), wanted in zip(
            triples, self.bound.wanted, strict=True
        ):
            absent = (
                gradient is None
                and f"d{name}" in right.names
                and (f"d{name}" in right.unreached)
            )
            if wanted and not absent:
                named[f"d{name}"] = (gradient, like.dtype)
        return named

    def _differing(
        self,
        right: Question,
        firsts: Sequence[Tensor | None],
        gradients: Sequence[Tensor | None],
    ) -> Iterable[Judgement]:
        """Judgements on gradients that are not those of the first run."""
        pairs = zip(self.bound.names, gradients, firsts, strict=True)
        odd = {f"d{name}" for name, mine, first in pairs if not same(mine, first)}
        named = self._gradients(right, gradients)
        return self._judge(right, {n: t for n, t in named.items() if n in odd})

    def _judge(
        self, right: Question, tensors: Mapping[str, tuple[Tensor | None, torch.dtype]]
    ) -> tuple[Judgement, ...]:
        dtype = self.trial.dtype
        arrays: dict[str, Array | None] = {}
        dtypes: dict[str, str] = {}
        for name, (tensor, like) in tensors.items():
            arrays[name] = None if tensor is None else array_of(tensor)
            if tensor is not None:
                has = str(tensor.dtype).removeprefix("torch.")
                dtypes[name] = dtype if tensor.dtype == like else has
        judged = self._uncertain(right.judge(arrays, dtypes))
        if self.diagnoses is None or self.trial.edge:
            return judged
        return self.diagnoses.told_of(right.known, arrays, judged, self.trial.dtype)

    def _uncertain(self, judged: tuple[Judgement, ...]) -> tuple[Judgement, ...]:
        """What is wrong says nothing where rounding may have chosen other elements."""
        wrong = [j for j in judged if not j.passes and np.isfinite(j.got)]
        traced = self.bound.traced
        if not wrong or traced is None or not traced.contested(self.trial.dtype):
            return judged
        return tuple(
            j.changed(verdict="vacuous", vacuous=1.0, message=f"{j.message}; {CHOSEN}")
            if j in wrong
            else j
            for j in judged
        )
