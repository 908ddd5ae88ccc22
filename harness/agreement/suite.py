"""The agreement suite: every op on every backend, judged against the reference.

In addition to the verdicts it computes a matrix of pairs, see `pairs`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from itertools import product
from typing import Any

from msgspec import Struct

from gradwatch.harness.agreement.pairs import Pairs, distances, keep_worst, largest
from gradwatch.harness.judging.cases import REGIMES, Trial
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.diagnosis import Diagnoses
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import compute_on
from gradwatch.harness.judging.question import Question
from gradwatch.harness.project.records import AgreeRecord, AgreeSummary
from gradwatch.harness.workers.fitness import judge_outcome
from gradwatch.harness.workers.messages import Outcome, Task
from gradwatch.harness.workers.pool import Fleet
from gradwatch.impls.catalogue import framework_of
from gradwatch.impls.contract import Problem


class Asked(Struct, kw_only=True):
    """What is to be judged; `settled` are cases, with the device, that are already."""

    ops: Sequence[str]
    backends: Sequence[str]
    devices: Sequence[str] = ("cpu",)
    regimes: Sequence[str] = tuple(REGIMES)
    dtypes: Sequence[str] = ("float32", "float64")
    cases: Sequence[str] = ()
    orders: Sequence[str] = ("vjp",)
    seed: int = 0
    jobs: int = 1
    timeout: float = 60.0
    sampled: bool = False
    settled: Sequence[tuple[str, str]] = ()


class Agreement(Struct):
    """Verdicts: on one trial, or on all of a run.

    `pairs[op][a][b]` is the largest ratio of |a - b| to the sum of both radii.
    `missing` gives the reason why a backend did not run. `unrepeatable` names the cases
    whose second run differed in some bit from the first (reported, not judged).
    `trials` are the name and the device of each trial. Of a run alone: `gone` are known
    outcomes that did not occur.
    """

    records: list[AgreeRecord] = []
    pairs: dict[str, Pairs] = {}
    missing: dict[str, str] = {}
    unrepeatable: list[str] = []
    trials: list[tuple[str, str]] = []
    gone: tuple[known.Known, ...] = ()

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

    def add(self, other: Agreement) -> None:
        """Take in other verdicts."""
        self.records += other.records
        self.missing |= other.missing
        self.unrepeatable += other.unrepeatable
        self.trials += other.trials
        for op, matrix in other.pairs.items():
            keep_worst(self.pairs.setdefault(op, {}), matrix)

    def summary(self) -> AgreeSummary:
        """Counts by verdict, and everything that is not as expected."""
        counts = Counter[str](record.verdict for record in self.records)
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
        )


def combined(
    before: AgreeSummary, now: AgreeSummary, records: Sequence[AgreeRecord]
) -> AgreeSummary:
    """The summary of two runs, whose records these are, the newer ones last."""
    ran = {record.backend for record in records}
    missing = before.missing | now.missing
    both = Agreement(
        list(records),
        before.pairs | now.pairs,
        {name: why for name, why in missing.items() if name not in ran},
        [*dict.fromkeys((*before.unrepeatable, *now.unrepeatable))],
        gone=gone(records, known.load()),
    )
    summary = both.summary()
    summary.sampled = before.sampled | now.sampled
    summary.machines = [*dict.fromkeys((*before.machines, *now.machines))]
    summary.seconds, summary.seed = now.seconds, now.seed
    return summary


def agree(
    trials: Iterable[Trial],
    backends: Sequence[str],
    *,
    devices: Sequence[str] = ("cpu",),
    entries: Sequence[known.Known] | None = None,
    fleet: Fleet | None = None,
    timeout: float = 60.0,
) -> Agreement:
    """Run trials on backends and judge every tensor that they return.

    Args:
        trials: The trials; see `gradwatch.harness.judging.cases.trials`.
        backends: Names of backends.
        devices: "cpu", "cuda".
        entries: Known outcomes; by default those of the data file.
        fleet: Workers that are reused after this call; by default new ones.
        timeout: Seconds for one case on one backend.
    """
    listed = known.load() if entries is None else entries
    agreement = Agreement()
    with nullcontext(fleet) if fleet else Fleet(jobs=2) as workers:
        asked = product(trials, backends, devices)
        tasks = [Task(*one) for one in asked]
        for trial, outcomes in gathered(tasks, workers, timeout):
            agreement.add(judge_trial(trial, outcomes, listed))
    agreement.gone = gone(agreement.records, listed)
    return agreement


def gone(
    records: Sequence[AgreeRecord], entries: Sequence[known.Known]
) -> tuple[known.Known, ...]:
    """What was expected, of a defect or of a platform, and did not occur."""
    return (*known.gone(records, entries), *known.unseen(records))


def gathered(
    tasks: Sequence[Task], fleet: Fleet, timeout: float = 60.0
) -> Iterator[tuple[Trial, list[Outcome]]]:
    """Each trial with its outcomes on one device, as soon as all of them are there."""
    asked = Counter((task.trial.name, task.device) for task in tasks)
    waiting: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in fleet.run(tasks, timeout=timeout):
        trial = outcome.task.trial
        place = trial.name, outcome.task.device
        waiting[place].append(outcome)
        if len(waiting[place]) == asked[place]:
            yield trial, waiting.pop(place)


def judge_trial(
    trial: Trial,
    outcomes: list[Outcome],
    entries: Sequence[known.Known],
    *,
    pairs: bool = True,
) -> Agreement:
    """The verdicts on a trial on all backends of one device.

    Args:
        trial: The trial.
        outcomes: One of each backend, at least one.
        entries: Known outcomes.
        pairs: Compare backends with each other, too, even where nothing is wrong.
    """
    op, device = trial.problem.op.name, outcomes[0].task.device
    agreement = Agreement(trials=[(trial.name, device)])
    asked = Question.of(trial.problem, compute_on(device, trial.problem.dtype))
    # Pairs need all radii, so that the reference is there before anything is judged.
    names = asked.right.graphs["first"] if pairs else asked.names
    tensors, judged = {}, dict[str, list[AgreeRecord]]()
    for outcome in sorted(outcomes, key=lambda outcome: outcome.task.backend):
        backend = outcome.task.backend
        if outcome.kind == "missing":
            agreement.missing[backend] = outcome.message
            continue
        if outcome.result is not None:
            tensors[backend] = outcome.result.tensors
            if not outcome.repeatable:
                agreement.unrepeatable.append(f"{trial.name} {backend}")
        judged[backend] = [
            record_of(trial, outcome, j) for j in judge_outcome(outcome, asked)
        ]
    matrix = agreement.pairs.setdefault(op, {})
    for tensor in names:
        keep_worst(matrix, _compared(asked, tensor, tensors, judged, always=pairs))
    of_op = [entry for entry in entries if entry.of(op)]
    for backend, records in judged.items():
        reaching = [one for one in of_op if one.reaches(backend, trial, device)]
        for record in records:
            record.expected_verdict = known.expected_verdict(record, reaching)
            agreement.records.append(record)
        fresh = {r.tensor for r in records if r.verdict != r.expected_verdict}
        got = {n: a for n, a in tensors.get(backend, {}).items() if n in fresh}
        steady = f"{trial.name} {backend}" not in agreement.unrepeatable
        sentences = _DIAGNOSES.sentences(asked, got, records, (op, backend), steady)
        for record in records:
            record.diagnosis = sentences.get(record.tensor, "")
    return agreement


#: Of unexpected verdicts, some seconds in all for one process.
_DIAGNOSES = Diagnoses()
#: The fields that a record and a judgement have in common.
_JUDGED = sorted(
    {one.name for one in fields(Judgement)} & set(AgreeRecord.__struct_fields__)
)
#: Of those, numbers of which six digits say enough: all were a fifth of the document.
_BRIEF = ("ratio", "radius")


def record_of(trial: Trial, outcome: Outcome, judgement: Judgement) -> AgreeRecord:
    """The record of a judgement on what a backend returned in a trial.

    What agrees needs no sentence: it was a third of the document.
    """
    judged = {name: getattr(judgement, name) for name in _JUDGED}
    for name, value in judged.items():
        if isinstance(value, float):
            value = float(f"{value:.6g}") if name in _BRIEF else float(value)
            judged[name] = value if math.isfinite(value) else None
    judged["worst_index"] = list(judgement.worst_index)
    if judgement.verdict == "agree":
        judged["message"] = ""
    return AgreeRecord(
        op=trial.problem.op.name,
        case=trial.name,
        regime=trial.regime,
        backend=outcome.task.backend,
        framework=framework_of(outcome.task.backend),
        framework_version=outcome.version,
        device=outcome.task.device,
        dtype=trial.problem.dtype,
        flags=_flags(trial.problem),
        order=trial.order,
        **judged,
    )


def _flags(problem: Problem) -> list[str]:
    """What a problem has beside numbers: training, not-training, empty."""
    names = [
        name if value else f"not-{name}"
        for name, value in sorted(problem.attributes.items())
        if isinstance(value, bool)
    ]
    return [*names, "empty"] if problem.empty else names


def _compared(
    asked: Question,
    tensor: str,
    tensors: Mapping[str, Mapping[str, Any]],
    judged: Mapping[str, list[AgreeRecord]],
    *,
    always: bool,
) -> Pairs:
    """The distances of backends, `always` or where one is wrong.

    The messages then say which backends are outliers, if all others agree.
    """
    wrong = [
        record
        for records in judged.values()
        for record in records
        if record.tensor == tensor and record.verdict in ("disagree", "nonfinite")
    ]
    if not (always or wrong):
        return {}
    right = asked.right
    found = {} if right.set_valued else distances(right, tensor, tensors)
    accused = {record.backend for record in wrong}
    rest = [backend for backend in judged if backend not in accused]
    if len(rest) > len(accused) > 0 and largest(found, rest) <= right.limit:
        for record in wrong:
            record.message += (
                f"; outlier: {record.backend} against {len(rest)} others, "
                "which agree with each other"
            )
    return found
