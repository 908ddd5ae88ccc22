"""Searches for failures: draws trials, judges them, and shrinks those that fail.

What is drawn is derived from an op's page and the suite's regimes: shapes are those of
its cases with other lengths, attributes are those of its cases and similar ones, and
values, layout and cotangent are each of any regime. The failures of a batch are then
shrunk one by one, as `gradwatch.check` shrinks its own, with the failing backend alone.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from msgspec import structs

from gradwatch.harness.agreement.repro import repro
from gradwatch.harness.agreement.store import details, headline
from gradwatch.harness.agreement.suite import agree
from gradwatch.harness.judging import cases, layouts
from gradwatch.harness.judging.cases import REFUSALS, REGIMES, Regime, Trial, admits
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.project.descent import cuts, descend, plainer
from gradwatch.harness.project.records import AgreeRecord, FindingRecord
from gradwatch.harness.project.verdicts import DEATHS, PASSING
from gradwatch.harness.workers.pool import Fleet
from gradwatch.impls.contract import Case, Op

BATCH = 20  # trials: about a second, mostly for OneFlow
RISKY = 10  # one in so many may kill a worker; a new worker takes seconds
TIMEOUT = 20.0  # seconds for a trial: thousands of times longer than usual
SHRINKING = 15.0  # seconds at most for one finding
DYING = 4  # crashes while shrinking one finding: each costs a new worker
SMALL = 4  # elements of an input; a crash with so few is not shrunk further
LONGEST = 4  # enough for all axes of a matrix product to differ
MOST = 256  # elements of an input: larger ones take longer and find nothing more
TRIES = 50  # cases drawn for one that the op admits

Rng = np.random.Generator
#: A trial, and what it shows.
Suspect = tuple[Trial, FindingRecord]


def draw(op: Op, source: str, seed: int) -> list[Trial]:
    """Draw the trials of a seed, each with a unique name."""
    rng = np.random.default_rng(seed)
    drawn = (
        _draw_trial(rng, op, source, risky=not (i + 1) % RISKY) for i in range(BATCH)
    )
    numbered = enumerate(filter(None, drawn))
    return [replace(trial, case=f"{trial.case}#{i}") for i, trial in numbered]


@dataclass
class Hunt:
    """A run of the fuzzer; `seen` are the ids of what it has found already.

    `at` guards the code of an op's page. `judged` counts verdicts; `missing` says why a
    backend gave none.
    """

    backends: Sequence[str]
    fleet: Fleet
    seed: int = 0
    timeout: float = TIMEOUT
    seen: set[str] = field(default_factory=set)
    at: Callable[[str], AbstractContextManager[None]] = lambda op: nullcontext()
    tried: int = 0
    judged: int = 0
    missing: dict[str, str] = field(default_factory=dict)
    _small: dict[str, list[Trial]] = field(default_factory=lambda: defaultdict(list))

    def run(
        self,
        ops: Mapping[str, Op],
        budget: float,
        progress: Callable[[], object] = int,
    ) -> Iterator[tuple[FindingRecord, str]]:
        """Yield each finding and its script twice: at once, and again after shrinking.

        Args:
            ops: Ops by the name or page from which workers load them.
            budget: Seconds; one trial or one shrinking step may end later. What is not
                shrunk by then stays as it was found.
            progress: Called after each op, and each finding that was shrunk.
        """
        end = time.monotonic() + budget
        for turn in itertools.count():
            waiting: list[Suspect] = []
            for source, op in list(ops.items()):  # one that fails is taken out
                if time.monotonic() > end:
                    break
                with self.at(source):
                    trials = draw(op, source, self.seed * 100_003 + turn)
                    for suspect in self.look(trials):
                        waiting.append(suspect)
                        yield self.describe(suspect)
                progress()
            waiting.sort(key=lambda suspect: suspect[1].record.verdict in DEATHS)
            for left, suspect in zip(range(len(waiting), 0, -1), waiting, strict=True):
                now = time.monotonic()
                if now > end:
                    break
                share = min((end - now) / left, SHRINKING)
                with self.at(suspect[0].op):
                    small = self.shrink(suspect, now + share)
                    yield self.describe(small)
                progress()
            if time.monotonic() > end or not ops:
                return

    # --- searching ----------------------------------------------------------------

    def look(self, trials: Sequence[Trial]) -> Iterator[Suspect]:
        """Run trials on all backends; yield the first of each new finding."""
        self.tried += len(trials)
        for trial, finding in self._examine(trials, self.backends):
            if finding.id not in self.seen:
                self.seen.add(finding.id)
                yield trial, finding

    def _examine(
        self, trials: Sequence[Trial], backends: Sequence[str]
    ) -> Iterator[Suspect]:
        """The failures in trials on some backends."""
        agreement = agree(
            trials, backends, entries=(), fleet=self.fleet, timeout=self.timeout
        )
        self.judged += len(agreement.records)
        self.missing |= agreement.missing
        for trial in trials:
            records = [r for r in agreement.records if r.case == trial.name]
            for finding in findings_of(trial.problem.op, records):
                yield trial, finding

    # --- shrinking ----------------------------------------------------------------

    def shrink(self, suspect: Suspect, deadline: float) -> Suspect:
        """The smallest trial that shows the finding, as far as the time allows."""
        trial, finding = suspect
        deadly, deaths = finding.record.verdict in DEATHS, 0
        largest = max(array.size for array in trial.problem.inputs.values())
        if deadly and largest <= SMALL:
            return suspect
        for small in self._small[finding.record.op]:
            if (shown := self._shown_by(small, finding)) is not None:
                return small, shown

        def fails(trial: Trial) -> FindingRecord | None:
            nonlocal deaths
            shown = None if deaths >= DYING else self._shown_by(trial, finding)
            deaths += deadly and shown is not None
            return shown

        best = replace(trial, case=trial.case.partition("#")[0]), finding
        for steps in (_shorter, _plainer):
            best = descend(best, steps, fails, deadline)
        self._small[finding.record.op].append(best[0])
        return best

    def _shown_by(self, trial: Trial, finding: FindingRecord) -> FindingRecord | None:
        """The finding as another trial shows it on its backend."""
        try:
            reference(trial.problem)
        except REFUSALS:  # the op's formula takes no such shape
            return None
        for _, seen in self._examine([trial], [finding.record.backend]):
            if seen.id == finding.id:
                return seen
        return None

    # --- reporting ----------------------------------------------------------------

    def describe(self, suspect: Suspect) -> tuple[FindingRecord, str]:
        """A finding and its script."""
        trial, found = suspect
        message = _plain(found.record.message)
        record = structs.replace(found.record, message=message, case=trial.name)
        shapes = {name: [*a.shape] for name, a in trial.problem.inputs.items()}
        finding = structs.replace(found, record=record, shapes=shapes, seed=self.seed)
        said = {"headline": headline(finding), "about": details(record)}
        right = reference(trial.problem)
        return finding, repro(trial, record.backend, record, right=right, **said)


def findings_of(op: Op, records: Iterable[AgreeRecord]) -> Iterator[FindingRecord]:
    """The failures in one trial: one for each backend, with its worst record.

    Wrong outputs come first, because they make the gradients wrong as well.
    """
    by_backend: dict[str, list[AgreeRecord]] = defaultdict(list)
    for record in records:
        if record.verdict not in PASSING:
            by_backend[record.backend].append(record)
    for wrong in by_backend.values():
        first = [r for r in wrong if _part(op, r) == "forward"]
        worst = max(first or wrong, key=_badness)
        yield FindingRecord(record=worst, part=_part(op, worst))


def _badness(record: AgreeRecord) -> tuple[bool, float]:
    """Sorts records: a missing or infinite number is worse than a wrong one."""
    distance = record.distance
    return record.verdict != "disagree", -1.0 if distance is None else distance


def _part(op: Op, record: AgreeRecord) -> str:
    """The part that computes a tensor: forward, backward, state, or run for all."""
    if record.tensor == "all":
        return "run"
    if record.tensor in op.outputs:
        return "forward"
    return "state" if record.tensor in op.state else "backward"


def _plain(message: str) -> str:
    """A message without OneFlow's colour codes and without positions in our code."""
    return re.sub(r"\x1b\[[0-9;]*m| in \w+ \(evaluate.py:\d+\)", "", message)


def _shorter(trial: Trial) -> Iterator[Trial]:
    """The trial with shorter inputs and cotangents."""
    problem = trial.problem
    given = [*problem.inputs.values(), *problem.cotangents]
    for cut in cuts(a.shape for a in given if a is not None):
        inputs = {n: a[cut(a.shape)].copy() for n, a in problem.inputs.items()}
        dys = [
            None if a is None else a[cut(a.shape)].copy() for a in problem.cotangents
        ]
        yield replace(trial, problem=replace(problem, inputs=inputs, cotangents=dys))


def _plainer(trial: Trial) -> Iterator[Trial]:
    """In C order; with a cotangent of ones; an input all ones, or of few digits."""
    if (trial.layout, trial.cotangent_layout) != ("contiguous", "contiguous"):
        yield replace(trial, layout="contiguous", cotangent_layout="contiguous")
    problem = trial.problem
    ones = [None if a is None else np.ones_like(a) for a in problem.cotangents]
    if any(a is not None and (a != 1).any() for a in problem.cotangents):
        yield replace(trial, problem=replace(problem, cotangents=ones))
    for name, array in problem.inputs.items():
        if array.dtype.kind == "f" and name not in problem.op.domain:
            for plain in plainer(array):
                inputs = {**problem.inputs, name: plain}
                yield replace(trial, problem=replace(problem, inputs=inputs))


# What is drawn --------------------------------------------------------------------


def _draw_trial(rng: Rng, op: Op, source: str, risky: bool) -> Trial | None:
    """Draw a trial of an op; None if none of `TRIES` cases is admitted.

    A `risky` trial, which can crash a worker, has an empty input or is one of the
    page's odd cases.
    """
    drawn = (_draw_case(rng, op, risky) for _ in range(TRIES))
    case = next(filter(None, drawn), None)
    if case is None:
        return None
    values, laid, given = (_one(rng, [*REGIMES.values()]) for _ in range(3))
    mixture = Regime(
        "fuzz",
        # A stride of 0 takes values that are repeated.
        (laid if laid.layout == "expanded" else values).values,
        cotangent=given.cotangent,
        layout=laid.layout,
        cotangent_layout=given.cotangent_layout,
        first_only=values.first_only,
    )
    dtype, seed = _one(rng, ("float32", "float64")), int(rng.integers(2**32))
    return cases.trial(op, case, mixture, dtype, seed, source)


def _one(rng: Rng, among: Sequence[Any]) -> Any:
    return among[int(rng.integers(len(among)))]


def _draw_case(rng: Rng, op: Op, risky: bool) -> Case | None:
    """Draw a case of the page with other lengths and attributes; None if refused."""
    usual, odd = (*op.cases.values(),), (*op.odd.values(),)
    empty = risky and not (odd and rng.random() < 0.5)
    case = _one(rng, (*usual, *odd) if empty else odd if risky else usual)
    names = layouts.lengths(op, case)
    change = {n: int(rng.integers(0 if empty else 1, LONGEST + 1)) for n in names}
    if rng.random() < 0.5:  # square shapes hide some transpositions and reveal others
        change = dict.fromkeys(change, next(iter(change.values()), 1))
    case = layouts.resized(op, case, change)
    sizes = [int(np.prod(shape)) for shape in op.shapes(case).values()]
    if max(sizes) > MOST or (0 in sizes) != empty:
        return None
    changed = {
        name: _draw_attribute(rng, name, value, op, case)
        for name, value in op.attributes(case).items()
    }
    case = Case(case.name, **{**case.fields, **changed})
    return case if admits(op, case) else None


def _draw_attribute(rng: Rng, name: str, value: Any, op: Op, case: Case) -> Any:
    """Draw from the attributes of the page's cases, similar axes and small numbers."""
    listed = (*op.cases.values(), *op.odd.values())
    shown = list(dict.fromkeys(op.attributes(c).get(name, value) for c in listed))
    axes = len(next(iter(op.shapes(case).values())))
    if isinstance(value, int) and not isinstance(value, bool) and axes:
        return int(rng.integers(-axes, axes))
    if isinstance(value, float):
        shown += [value / 1000]
    return _one(rng, shown)
