"""The agreement suite: every op on every backend, judged against the reference.

It runs in a process of its own, which a page or a formula can end. The ratio of a pair
of backends is |a - b| over the sum of both rounding radii: where it is above the limit,
one of the two is wrong.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct, structs

from gradwatch.harness.diagnosis.search import Diagnoses
from gradwatch.harness.judging.cases import REGIMES, Trial, trials
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.defects.known import like
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.question import Question
from gradwatch.harness.judging.reference import Reference
from gradwatch.harness.project.records import AgreeRecord, AgreeSummary, Number
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.workers.pages import Pages
from gradwatch.harness.workers.pool import Fleet, Outcome, Task
from gradwatch.harness.workers.process import Child, Failed, Link
from gradwatch.impls.catalogue import framework_of
from gradwatch.impls.contract import Op

#: The largest ratio of each two, by their names in alphabetical order.
Pairs = dict[str, dict[str, Number]]


class Asked(Struct, kw_only=True):
    """A request to judge; `settled` are cases, with the device, judged already."""

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
    """The verdicts on one trial, or on all of a run.

    `pairs[op][a][b]` is the largest ratio of |a - b| to the sum of both radii.
    `missing` gives the reason why a backend did not run; `unrepeatable` the cases whose
    second run differed in some bit (reported, not judged); `trials` the name and device
    of each, of `total` in a run; `gone`, of a run, known outcomes that did not occur.
    """

    records: list[AgreeRecord] = []
    pairs: dict[str, Pairs] = {}
    missing: dict[str, str] = {}
    unrepeatable: list[str] = []
    trials: list[tuple[str, str]] = []
    total: int = 0
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
        """Whether any tensor was judged: a page may declare all it lacks."""
        return any(record.verdict != "unsupported" for record in self.records)

    def add(self, other: Agreement) -> None:
        """Add other verdicts to these."""
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
    """The summary of two runs from their records, the newer ones last."""
    ran = {record.backend for record in records}
    missing = before.missing | now.missing
    both = Agreement(
        list(records),
        before.pairs | now.pairs,
        {name: why for name, why in missing.items() if name not in ran},
        [*dict.fromkeys((*before.unrepeatable, *now.unrepeatable))],
        gone=known.gone(records, known.load()),
    )
    summary = both.summary()
    summary.sampled = before.sampled | now.sampled
    summary.machines = [*dict.fromkeys((*before.machines, *now.machines))]
    summary.seconds, summary.seed = now.seconds, now.seed
    return summary


def judged(
    asked: Asked,
    child: Child,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Agreement:
    """The verdicts of a process with the job `judge`.

    An op whose page or formula cannot be run has one record, with the reason.
    """
    entries = known.load()  # a damaged file ends a run before it begins
    child.patience = asked.timeout
    agreement, failed = Agreement(), dict[str, Failed]()

    def request(left: Sequence[str]) -> Asked:
        return structs.replace(asked, ops=left, settled=agreement.trials)

    for found in child.run(asked.ops, request, Agreement):
        if isinstance(found, Failed):
            failed.setdefault(found.op, found)
        else:
            agreement.add(found)
            progress(len(agreement.trials), found.total)
    agreement.records += map(unjudged, failed.values())
    agreement.gone = known.gone(agreement.records, entries)
    return agreement


def unjudged(failed: Failed) -> AgreeRecord:
    """The record of an op whose page or formula failed, at a case or before any."""
    return AgreeRecord(
        op=failed.case.partition("[")[0] or Path(failed.op).stem,
        case=failed.case or f"{Path(failed.op).stem}[page]",
        regime="",
        backend="reference",
        framework="reference",
        framework_version="",
        device="cpu",
        dtype="",
        tensor="all",
        verdict=failed.verdict,
        message=failed.message,
    )


def judge(content: bytes, link: Link) -> None:
    """Judge a request, and send the verdicts on each trial."""
    asked = msgspec.msgpack.decode(content, type=Asked)
    pages = link.kept(Pages)  # before the threads of the fleet
    fleet = link.kept(Fleet, jobs=asked.jobs)
    chosen = list[Trial]()
    for op in asked.ops:
        with link.at(op):
            for trial in _chosen(op, asked, pages.load):
                chosen.append(trial)
                link.alive()
    settled = {*asked.settled}
    tasks = [
        Task(trial, backend, device)
        for trial, device, backend in product(chosen, asked.devices, asked.backends)
        if (trial.name, device) not in settled
        and (not asked.sampled or in_sample(trial, backend))
    ]
    total = len(settled | {(t.trial.name, t.device) for t in tasks})
    entries, timeout = known.load(), asked.timeout
    for found in verdicts(tasks, fleet, entries, timeout=timeout, at=link.at):
        found.total = total
        link.tell(found)


def _chosen(source: str, asked: Asked, load: Callable[[str], Op]) -> Iterator[Trial]:
    """The requested trials of an op."""
    op, stem = load(source), Path(source).stem
    others = [Path(other).stem for other in asked.ops if other != source]
    # The trials of two ops of one name would have the same names.
    if op.name != stem and (op.name in others or source == stem):
        raise ValueError(f"the page {source} calls its op {op.name!r}")
    how = {name: getattr(asked, name) for name in ("regimes", "dtypes", "orders")}
    for trial in trials(op, seed=asked.seed, source=source, **how):
        if not asked.cases or like(trial.name, *asked.cases):
            yield trial


def verdicts(
    tasks: Sequence[Task],
    fleet: Fleet,
    entries: Sequence[known.Known],
    *,
    timeout: float = 60.0,
    at: Callable[[str, str], AbstractContextManager[None]] = lambda *at: nullcontext(),
    pairs: bool = True,
) -> Iterator[Agreement]:
    """Run tasks, each within `timeout` seconds, and yield the verdicts on each trial.

    `at` guards the judging of a trial by its op and name. With `pairs`, backends are
    compared with each other even where nothing is wrong.
    """
    asked = Counter((task.trial.name, task.device) for task in tasks)
    waiting: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for outcome in fleet.run(tasks, timeout=timeout):
        trial = outcome.task.trial
        place = trial.name, outcome.task.device
        waiting[place].append(outcome)
        if len(waiting[place]) == asked[place]:
            with at(trial.op, trial.name):
                yield _judged(trial, waiting.pop(place), entries, pairs)


def _judged(
    trial: Trial, outcomes: list[Outcome], entries: Sequence[known.Known], pairs: bool
) -> Agreement:
    """The verdicts on a trial on all backends of one device."""
    op, device = trial.problem.op.name, outcomes[0].task.device
    agreement = Agreement(trials=[(trial.name, device)])
    asked = Question.of(trial.problem, device=device)
    # Pairs need all radii, so the reference is computed before anything is judged.
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
        judged[backend] = [record_of(trial, outcome, j) for j in outcome.judged(asked)]
    everything = [record for records in judged.values() for record in records]
    for tensor in names:
        wrong = [r for r in everything if r.tensor == tensor and r.verdict in _FAR]
        if (pairs or wrong) and len(tensors) > 1:
            valued = len(asked.right.graphs) > 1
            apart = {} if valued else distances(asked.right, tensor, tensors)
            keep_worst(agreement.pairs.setdefault(op, {}), apart)
            _name_outliers(wrong, {*tensors}, apart, asked.right.limit)
    known.expect(judged, entries, trial, device)
    agreement.records += everything
    for backend, records in judged.items():
        fresh = {r.tensor for r in records if r.verdict != r.expected_verdict}
        got = {n: a for n, a in tensors.get(backend, {}).items() if n in fresh}
        steady = f"{trial.name} {backend}" not in agreement.unrepeatable
        if fresh:
            said = _DIAGNOSES.sentences(asked, got, records, (op, backend), steady)
            for record in records:
                record.diagnosis = said.get(record.tensor, "")
    return agreement


#: Verdicts on wrong numbers.
_FAR = ("disagree", "nonfinite")
#: Diagnoses of unexpected verdicts, with some seconds in all for one process.
_DIAGNOSES = Diagnoses()
#: The fields that a record and a judgement have in common.
_JUDGED = sorted(
    {one.name for one in fields(Judgement)} & set(AgreeRecord.__struct_fields__)
)
#: Those of them that are stored with six digits: all digits were 1/5 of the document.
_BRIEF = ("ratio", "radius")


def record_of(trial: Trial, outcome: Outcome, judgement: Judgement) -> AgreeRecord:
    """The record of a judgement on a backend's result of a trial."""
    judged = {name: getattr(judgement, name) for name in _JUDGED}
    for name, value in judged.items():
        if isinstance(value, float):
            value = float(f"{value:.6g}") if name in _BRIEF else float(value)
            judged[name] = value if math.isfinite(value) else None
    judged["worst_index"] = list(judgement.worst_index)
    if judgement.verdict == "agree":  # sentences were a third of the document
        judged["message"] = ""
    flags = [
        name if value else f"not-{name}"
        for name, value in sorted(trial.problem.attributes.items())
        if isinstance(value, bool)
    ]
    flags += ["empty"] * trial.problem.empty
    return AgreeRecord(
        op=trial.problem.op.name,
        case=trial.name,
        regime=trial.regime,
        backend=outcome.task.backend,
        framework=framework_of(outcome.task.backend),
        framework_version=outcome.version,
        device=outcome.task.device,
        dtype=trial.problem.dtype,
        flags=flags,
        order=trial.order,
        **judged,
    )


def _name_outliers(
    wrong: Sequence[AgreeRecord], backends: set[str], apart: Pairs, limit: float
) -> None:
    """Note in the records of wrong tensors that all other backends agree."""
    rest = backends - {record.backend for record in wrong}
    ratios = (apart.get(a, {}).get(b) or 0.0 for a in rest for b in rest)
    if len(rest) > len(backends) - len(rest) and max(ratios, default=0.0) <= limit:
        others = f"{len(rest)} others, which agree with each other"
        for record in wrong:
            record.message += f"; outlier: {record.backend} against {others}"


def distances(
    right: Reference, tensor: str, tensors: Mapping[str, Mapping[str, Any]]
) -> Pairs:
    """The largest ratio of each two backends that have this tensor, in its shape.

    Elements with a finite reference and radius count; nan has an infinite ratio.
    """
    truth = right.radii().bounds[tensor]
    found = {name: all_of_it.get(tensor) for name, all_of_it in tensors.items()}
    alike = {
        name: array
        for name, array in found.items()
        if array is not None and array.shape == truth.value.shape
    }
    sound = np.isfinite(truth.value) & np.isfinite(truth.radius)
    rows = [array[sound].astype(right.wide) for array in alike.values()]
    names, pairs = [*alike], Pairs()
    with np.errstate(all="ignore"):
        for i, name in enumerate(names[:-1]):
            gap = np.abs(np.stack(rows[i + 1 :]) - rows[i])
            ratios = np.where(gap == 0, 0.0, gap / (2 * truth.radius[sound]))
            worst = ratios.max(1, initial=0.0)  # nan where any ratio is nan
            worst = np.where(np.isnan(worst), np.inf, worst).astype(np.float64)
            pairs[name] = dict(zip(names[i + 1 :], worst.tolist(), strict=True))
    return pairs


def keep_worst(worst: Pairs, pairs: Pairs) -> None:
    """Add ratios that are larger than those in `worst`."""
    for name, row in pairs.items():
        own = worst.setdefault(name, {})
        for other, ratio in row.items():  # a million in a run
            if other not in own or (ratio or 0.0) > (own[other] or 0.0):
                own[other] = ratio


# Samples --------------------------------------------------------------------------

# Frameworks that compile each shape are judged in part, unless they and an op, or a
# case, are named (all would take JAX half an hour): in C order, and in all regimes of
# values, since other values need no compilation.


def precisions(backend: str) -> Sequence[str]:
    """The precisions of a backend's sample; empty where all trials are judged."""
    traits = traits_of(backend)
    return traits.sampled if traits.compiles else ()


def in_sample(trial: Trial, backend: str) -> bool:
    """Whether a trial is in the sample of a backend, judged when nothing is named."""
    some, first = precisions(backend), next(iter(trial.problem.op.cases), "")
    kind = trial.case, trial.layout, trial.problem.dtype
    return not some or kind in {(first, "contiguous", dtype) for dtype in some}


def explained(backends: Sequence[str]) -> dict[str, str]:
    """A note on each backend that is judged in part: which trials, and why."""
    return {
        backend: "judged in the first case of each op, in C order, in "
        f"{' and '.join(some)}: "
        "every shape is compiled; name --op and --backend to judge all of it"
        for backend in backends
        if (some := precisions(backend))
    }
