"""The agreement suite in a process of its own, which a page or a formula can end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from gradwatch.harness.agreement.sampling import in_sample
from gradwatch.harness.agreement.suite import (
    Agreement,
    Asked,
    gathered,
    gone,
    judge_trial,
)
from gradwatch.harness.judging.cases import Trial, trials
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.defects.where import like
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.workers.child import Child, Failed, Link
from gradwatch.harness.workers.formulas.pages import Pages
from gradwatch.harness.workers.messages import Task
from gradwatch.harness.workers.pool import Fleet
from gradwatch.impls.catalogue import load_op
from gradwatch.impls.contract import Op


class Step(Struct):
    """The verdicts on a trial; done, total: trials judged, and that were to be."""

    verdicts: Agreement
    done: int
    total: int


def judged(
    asked: Asked,
    child: Child,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Agreement:
    """The verdicts that a process with the job `judge` gives, as `agree` would.

    An op whose page or formula cannot be run has one record, with what has happened.
    """
    entries = known.load()  # a damaged file ends a run before it begins
    agreement, failed = Agreement(), dict[str, Failed]()

    def request(left: Sequence[str]) -> Asked:
        return structs.replace(asked, ops=left, settled=agreement.trials)

    for step in child.run(asked.ops, request, Step):
        if isinstance(step, Failed):
            failed.setdefault(step.op, step)
        else:
            agreement.add(step.verdicts)
            progress(step.done, step.total)
    agreement.records += map(unjudged, failed.values())
    agreement.gone = gone(agreement.records, entries)
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
    """The job: judge what is asked, and hand over each trial."""
    asked = msgspec.msgpack.decode(content, type=Asked)
    pages = link.kept(Pages)  # before the threads of the fleet
    fleet = link.kept(Fleet, jobs=asked.jobs)
    chosen = list[Trial]()
    for op in asked.ops:
        with link.at(op, patience=asked.timeout):
            for trial in _chosen(op, asked, pages.load):
                chosen.append(trial)
                link.alive()
    entries = known.load()
    settled = {*asked.settled}
    tasks = [
        Task(trial, backend, device)
        for trial, device, backend in product(chosen, asked.devices, asked.backends)
        if (trial.name, device) not in settled
        and (not asked.sampled or in_sample(trial, backend))
    ]
    total = len({(t.trial.name, t.device) for t in tasks})
    judging = gathered(tasks, fleet, asked.timeout)
    for done, (trial, outcomes) in enumerate(judging, 1):
        with link.at(trial.op, trial.name, asked.timeout):
            verdicts = judge_trial(trial, outcomes, entries)
            link.tell(Step(verdicts, done, total))


def _chosen(
    source: str, asked: Asked, load: Callable[[str], Op] = load_op
) -> Iterator[Trial]:
    """The trials of an op that are asked for.

    Raises:
        ValueError: Its page gives it the name of another one that is judged: their
            trials could not be told apart.
    """
    op, stem = load(source), Path(source).stem
    others = [Path(other).stem for other in asked.ops if other != source]
    if op.name != stem and (op.name in others or source == stem):
        raise ValueError(f"the page {source} calls its op {op.name!r}")
    for trial in trials(
        op,
        regimes=asked.regimes,
        dtypes=asked.dtypes,
        seed=asked.seed,
        source=source,
        orders=asked.orders,
    ):
        if not asked.cases or like(trial.name, *asked.cases):
            yield trial
