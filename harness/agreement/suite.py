"""The agreement suite: every op on every backend, judged against the reference.

In addition to the verdicts it computes a matrix of pairs, see `pairs`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import groupby, product
from operator import attrgetter
from typing import Any

import msgspec

from gradwatch.harness.agreement.findings import flags
from gradwatch.harness.agreement.pairs import (
    NONE,
    Distances,
    distances,
    keep_worst,
    of_trial,
)
from gradwatch.harness.judging import platforms
from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import compute_on
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.project.records import AgreeRecord, AgreeSummary, Number, finite
from gradwatch.harness.workers.fitness import judge_outcome
from gradwatch.harness.workers.messages import Outcome, Task
from gradwatch.harness.workers.pool import Fleet, sweep
from gradwatch.impls.catalogue import framework_of


class Required(Exception):
    """A required backend cannot run here; the message says why."""


class Settled(msgspec.Struct):
    """One trial that was judged on all backends, on one device; see `Agreement`."""

    op: str
    case: str
    device: str
    records: list[AgreeRecord] = []
    pairs: dict[str, dict[str, Number]] = {}
    missing: dict[str, str] = {}
    unrepeatable: list[str] = []


@dataclass
class Agreement:
    """The result of a run of the suite.

    `pairs[op][a][b]` is the largest ratio of |a - b| to the sum of both radii.
    `missing` gives the reason why a backend did not run. `unrepeatable` names the cases
    whose second run differed in some bit from the first (reported, not judged).
    `recalled` counts the records that an earlier run judged; `remembered` says of each
    of their ops when the oldest of them was judged.
    """

    records: list[AgreeRecord] = field(default_factory=list)
    pairs: dict[str, dict[str, dict[str, Number]]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    unrepeatable: list[str] = field(default_factory=list)
    gone: tuple[known.Known | platforms.Flushing, ...] = ()
    recalled: int = 0
    remembered: dict[str, str] = field(default_factory=dict)

    @property
    def unexpected(self) -> list[AgreeRecord]:
        """The records whose verdict is neither right nor a known outcome."""
        return known.unexpected(self.records)

    @property
    def exit_code(self) -> int:
        """0 if all is as expected and anything was judged, else 1."""
        return 1 if self.unexpected or self.gone or not self.judged else 0

    @property
    def judged(self) -> bool:
        """Whether anything was: a lack that a page declares leaves nothing to judge."""
        return any(record.verdict != "unsupported" for record in self.records)

    def add(self, settled: Settled) -> None:
        """Take a trial in."""
        self.records += settled.records
        self.missing |= settled.missing
        self.unrepeatable += settled.unrepeatable
        matrix = self.pairs.setdefault(settled.op, {})
        for a, row in settled.pairs.items():
            keep_worst(matrix.setdefault(a, {}), row.items())

    def summary(self) -> AgreeSummary:
        """Counts by verdict, and everything that is not as expected."""
        counts = Counter(record.verdict for record in self.records)
        judged = sum(counts[v] for v in ("agree", "convention", "vacuous", "disagree"))
        return AgreeSummary(
            judged=judged,
            verdicts=dict(counts),
            vacuous_share=counts["vacuous"] / judged if judged else 0.0,
            unexpected=len(self.unexpected),
            gone=[k.reason for k in self.gone],
            missing=self.missing,
            unrepeatable=self.unrepeatable,
            pairs=self.pairs,
            recalled=self.recalled,
            remembered=self.remembered,
        )


def agree(
    trials: Iterable[Trial],
    backends: Sequence[str],
    *,
    devices: Sequence[str] = ("cpu",),
    jobs: int = 2,
    timeout: float = 60.0,
    entries: Sequence[known.Known] | None = None,
    fleet: Fleet | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    at: Callable[[Trial], AbstractContextManager[None]] = lambda trial: nullcontext(),
    tell: Callable[[Settled], None] = lambda settled: None,
    settled: Container[tuple[str, str]] = (),
    pairs: bool = True,
    chosen: Callable[[Trial, str], bool] = lambda trial, backend: True,
) -> Agreement:
    """Run trials on backends and judge every tensor that they return.

    Args:
        trials: The trials; see `gradwatch.harness.judging.cases.trials`.
        backends: Names of backends.
        devices: "cpu", "cuda".
        jobs: Number of workers that run at the same time.
        timeout: Seconds for one case on one backend.
        entries: Known outcomes; by default those of the data file.
        fleet: Workers that are reused after this call; `jobs` is ignored then.
        progress: Called with the number of finished cases and of all cases.
        at: Guards the code of a trial's page, which runs for the reference.
        tell: Called with each trial that is judged.
        settled: Names of trials, with the device, that are left out.
        pairs: Compare backends with each other, too, even where nothing is wrong.
        chosen: Whether a backend is judged in a trial; see `sampling`.
    """
    listed = known.load() if entries is None else entries
    of_op = cache(lambda name: [entry for entry in listed if entry.of(name)])
    agreement = Agreement()
    paired = (
        (trial, task)
        for trial, task in _tasks(trials, backends, devices, of_op)
        if (trial.name, task.device) not in settled and chosen(trial, task.backend)
    )
    by_task = {task.id: (trial, task) for trial, task in paired}
    tasks = [task for _, task in by_task.values()]
    asked: dict[tuple[str, str], int] = defaultdict(int)
    for trial, task in by_task.values():
        asked[trial.name, task.device] += 1
    waiting: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    outcomes = (
        fleet.run(tasks, timeout=timeout)
        if fleet
        else sweep(tasks, jobs=jobs, timeout=timeout)
    )
    for done, outcome in enumerate(outcomes, 1):
        trial, task = by_task[outcome.task.id]
        heap = waiting[trial.name, task.device]
        heap.append(outcome)
        if len(heap) == asked[trial.name, task.device]:
            with at(trial):
                ready = waiting.pop((trial.name, task.device))
                of_it = of_op(trial.problem.op.name)
                judged = _settled(trial, task.device, ready, of_it, pairs=pairs)
                agreement.add(judged)
                tell(judged)
        progress(done, len(tasks))
    agreement.gone = gone(agreement.records, listed)
    return agreement


def gone(
    records: Sequence[AgreeRecord], entries: Sequence[known.Known]
) -> tuple[known.Known | platforms.Flushing, ...]:
    """What was expected, of a defect or of a platform, and did not occur."""
    return (*known.gone(records, entries), *platforms.unseen(records))


def _tasks(
    trials: Iterable[Trial],
    backends: Sequence[str],
    devices: Sequence[str],
    of_op: Callable[[str], Sequence[known.Known]],
) -> Iterator[tuple[Trial, Task]]:
    """Of each op those last that end a worker: after the last op none has to follow.

    Last of all ops, workers would only be waited for; and their trials, which wait for
    the last backend, hold few numbers.
    """
    for _, some in groupby(trials, key=lambda trial: trial.op):
        last = list[tuple[Trial, Task]]()
        for trial in some:
            listed = of_op(trial.problem.op.name)
            ends = [one for one in listed if {*one.verdicts} & {*known.FATAL}]
            for device, backend in product(devices, backends):
                pair = trial, Task.of(trial, backend, device)
                if any(entry.reaches(backend, trial, device) for entry in ends):
                    last.append(pair)
                else:
                    yield pair
        yield from last


def _settled(
    trial: Trial,
    device: str,
    outcomes: list[Outcome],
    entries: Sequence[known.Known],
    *,
    pairs: bool,
) -> Settled:
    """Judge one trial on all backends, and compare these in pairs."""
    settled = Settled(trial.problem.op.name, trial.name, device)
    outcomes.sort(key=lambda outcome: outcome.task.backend)
    compute = compute_on(device, trial.problem.dtype)
    right = reference(trial.problem, compute)
    tensors = {}
    judged: dict[str, list[AgreeRecord]] = {}
    shared: Shared = {}
    for outcome in outcomes:
        backend = outcome.task.backend
        if outcome.kind == "missing":
            settled.missing[backend] = outcome.message
            continue
        if outcome.result is not None:
            result = outcome.result
            tensors[backend] = result.tensors
            if not outcome.repeatable:
                settled.unrepeatable.append(f"{trial.name} {backend}")
        judged[backend] = [
            record_of(trial, outcome, **_verdict(j, shared))
            for j in judge_outcome(outcome, right)
        ]
    every = list[Distances]()
    for tensor in next(iter(right.truths.values())):
        wanted = not right.set_valued and (pairs or _accused(tensor, judged))
        every.append(distances(right, tensor, tensors) if wanted else NONE)
        _name_outliers(tensor, judged, every[-1], right.limit)
    settled.pairs |= of_trial(every)
    for backend, records in judged.items():
        reaching = [one for one in entries if one.reaches(backend, trial, device)]
        for record in records:
            record.expected_verdict = known.expected_verdict(record, reaching)
            settled.records.append(record)
    return settled


#: The fields that a record and a judgement have in common.
_JUDGED = sorted(
    {one.name for one in fields(Judgement)} & set(AgreeRecord.__struct_fields__)
)
_values = attrgetter(*_JUDGED)


#: The verdicts of a trial by the identity of a judgement, which is kept beside it.
Shared = dict[int, tuple[Judgement, dict[str, Any]]]


def _verdict(judgement: Judgement, shared: Shared) -> dict[str, Any]:
    """The fields of a verdict, once for all tensors of the same bits.

    What agrees needs no sentence: it was a third of the document.
    """
    if id(judgement) not in shared:
        judged = dict(zip(_JUDGED, map(_plain, _values(judgement)), strict=True))
        judged |= {name: _brief(judged[name]) for name in ("ratio", "radius")}
        if judgement.verdict == "agree":
            judged["message"] = ""
        shared[id(judgement)] = judgement, judged
    return shared[id(judgement)][1]


def _brief(value: Number) -> Number:
    """Six digits: nobody reads more, and all were a fifth of the document."""
    return None if value is None else float(f"{value:.6g}")


def record_of(trial: Trial, outcome: Outcome, **judged: Any) -> AgreeRecord:
    """The record of a trial on a backend; `judged` are the fields of the verdict."""
    return AgreeRecord(
        op=trial.problem.op.name,
        case=trial.name,
        regime=trial.regime,
        backend=outcome.task.backend,
        framework=framework_of(outcome.task.backend),
        framework_version=outcome.version,
        device=outcome.task.device,
        dtype=trial.problem.dtype,
        flags=flags(trial.problem.attributes, trial.problem.empty),
        order=trial.order,
        **judged,
    )


def _plain(value: Any) -> Any:
    """A field of a judgement, in the form that a record has."""
    if isinstance(value, float):
        return finite(value)
    return list(value) if isinstance(value, tuple) else value


def _name_outliers(
    tensor: str,
    judged: Mapping[str, list[AgreeRecord]],
    found: Distances,
    limit: float,
) -> None:
    """Add to the messages which backend is the outlier, if all others agree."""
    wrong = _accused(tensor, judged)
    accused = {r.backend for r in wrong}
    rest = [b for b in judged if b not in accused]
    if len(rest) > len(accused) > 0 and found.largest(rest) <= limit:
        for record in wrong:
            record.message += (
                f"; outlier: {record.backend} against {len(rest)} others, "
                "which agree with each other"
            )


def _accused(tensor: str, judged: Mapping[str, list[AgreeRecord]]) -> list[AgreeRecord]:
    """The records that call a tensor's numbers wrong."""
    return [
        r
        for rs in judged.values()
        for r in rs
        if r.tensor == tensor and r.verdict in ("disagree", "nonfinite")
    ]
