"""The agreement suite in a process of its own, which a page or a formula can end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from gradwatch.harness.agreement.remembered.outcomes import (
    Remembered,
    asked_for,
    batch_name,
)
from gradwatch.harness.agreement.sampling import in_sample
from gradwatch.harness.agreement.suite import Agreement, Settled, agree, gone
from gradwatch.harness.judging.cases import REGIMES, Trial, trials
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.platforms import Flushing
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.workers.child import Child, Failed, Link
from gradwatch.harness.workers.pool import Fleet
from gradwatch.impls.catalogue import load_op


class Asked(Struct, kw_only=True):
    """What is to be judged; `settled` are cases, with the device, that are already.

    first_case: of each op only the first case in each batch, which is a first look.
    programs: a folder in which JAX keeps what it compiles; "" if nowhere.
    """

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
    first_case: bool = False
    settled: Sequence[tuple[str, str]] = ()
    programs: str = ""


class _Plan(Struct, tag=True):
    """The names of an op's trials, by batch."""

    op: str
    names: dict[str, list[str]]


class _Step(Struct, tag=True):
    """A trial that is judged, and how far it is."""

    settled: Settled
    done: int
    total: int


class _News(Struct):
    """What a job hands over."""

    content: _Plan | _Step


def judged(
    asked: Asked,
    child: Child,
    progress: Callable[[int, int], None] = lambda done, total: None,
    remembered: Remembered | None = None,
) -> Agreement:
    """The verdicts that a process with the job `judge` gives, as `agree` would.

    An op whose page or formula cannot be run has one record, with what has happened.
    What is remembered is taken as it is, and not judged again.
    """
    entries = known.load()  # a damaged file ends a run before it begins
    agreement, settled = Agreement(), list[tuple[str, str]]()
    failed = dict[str, Failed]()
    memory = remembered or Remembered(asked)

    def take(one: Settled) -> None:
        agreement.add(one)
        settled.append((one.case, one.device))

    def request(left: Sequence[str]) -> Asked:
        return structs.replace(
            asked,
            ops=left,
            settled=settled,
            programs=memory.programs,
        )

    for one in memory.recalled():
        take(one)
    agreement.recalled, agreement.remembered = len(agreement.records), memory.dates
    rest = [op for op in asked.ops if not memory.whole(op)]
    for message in child.run(rest, request, _News):
        if isinstance(message, Failed):
            failed.setdefault(message.op, message)
        elif isinstance(news := message.content, _Plan):
            memory.plan(news.op, news.names)
        else:
            take(news.settled)
            memory.learn(news.settled)
            progress(news.done, news.total)
    memory.keep(failed)
    agreement.records += map(unjudged, failed.values())
    agreement.gone = vanished(asked, agreement, entries)
    return agreement


def vanished(
    asked: Asked, agreement: Agreement, entries: Sequence[known.Known]
) -> tuple[known.Known | Flushing, ...]:
    """What was expected and did not occur; a first look may lack the case for it."""
    return () if asked.first_case else gone(agreement.records, entries)


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
    asked = msgspec.msgpack.decode(content, type=Asked, dec_hook=_path)
    fleet = link.kept(Fleet, jobs=asked.jobs, programs=asked.programs)
    chosen = list[Trial]()
    for op in asked.ops:
        with link.at(op, patience=asked.timeout):
            names: dict[str, list[str]] = defaultdict(list)
            for trial in _chosen(op, asked):
                dtype, order = trial.problem.dtype, trial.order
                batches = [
                    batch_name(device, dtype, trial.regime, order)
                    for device in asked.devices
                ]
                if not (asked.first_case and names[batches[0]]):
                    chosen.append(trial)
                for batch in batches:
                    names[batch].append(trial.name)
                link.alive()
            link.tell(_News(_Plan(op, names)))
    done = [0, len(chosen)]
    agree(
        chosen,
        asked.backends,
        devices=asked.devices,
        timeout=asked.timeout,
        fleet=fleet,
        progress=lambda *counts: done.__setitem__(slice(2), counts),
        at=lambda trial: link.at(trial.op, trial.name, asked.timeout),
        tell=lambda settled: link.tell(_News(_Step(settled, *done))),
        settled={(case, device) for case, device in asked.settled},
        chosen=partial(_in_part, asked),
    )


def _path(kind: type, value: Any) -> Any:
    """A path, from its text: the only type here that messages do not have."""
    return kind(value)


def _in_part(asked: Asked, trial: Trial, backend: str) -> bool:
    """Whether a backend is judged in a trial: not all of those that compile."""
    return not asked.sampled or in_sample(trial, backend, first_look=asked.first_case)


def _chosen(op: str, asked: Asked) -> Iterator[Trial]:
    all_trials = trials(
        load_op(op),
        regimes=asked.regimes,
        dtypes=asked.dtypes,
        seed=asked.seed,
        source=op,
        orders=asked.orders,
    )
    for trial in all_trials:
        if asked_for(trial.name, asked.cases):
            yield trial
