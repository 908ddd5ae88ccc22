"""The agreement suite in a process of its own, which a page or a formula can end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec
from msgspec import Struct, structs

from harness.agreement.suite import Agreement, Settled, agree
from harness.judging import known
from harness.judging.cases import REGIMES, Trial, trials
from harness.project.records import AgreeRecord
from harness.workers.isolated import Failed, Isolated, Link
from harness.workers.pool import Fleet
from impls.catalogue import load_op


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
    settled: Sequence[tuple[str, str]] = ()


class _Step(Struct):
    """A trial that is judged, and how far it is."""

    settled: Settled
    done: int
    total: int


def judged(
    asked: Asked,
    child: Isolated,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Agreement:
    """The verdicts that a process with the job `judge` gives, as `agree` would.

    An op whose page or formula cannot be run has one record, with what has happened.
    """
    entries = known.load()  # a damaged file ends a run before it begins
    agreement, settled = Agreement(), list[tuple[str, str]]()
    failed = dict[str, Failed]()

    def request(left: Sequence[str]) -> Asked:
        return structs.replace(asked, ops=left, settled=settled)

    for message in child.run(asked.ops, request, _Step):
        if isinstance(message, Failed):
            failed.setdefault(message.op, message)
            continue
        agreement.add(message.settled)
        settled.append((message.settled.case, message.settled.device))
        progress(message.done, message.total)
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
    """The job: judge what is asked, and hand over each trial."""
    asked = msgspec.msgpack.decode(content, type=Asked)
    chosen = list[Trial]()
    for op in asked.ops:
        with link.at(op, patience=asked.timeout):
            for trial in _chosen(op, asked):
                chosen.append(trial)
                link.alive()
    done = [0, len(chosen)]
    agree(
        chosen,
        asked.backends,
        devices=asked.devices,
        timeout=asked.timeout,
        fleet=link.kept(Fleet, jobs=asked.jobs),
        progress=lambda *counts: done.__setitem__(slice(2), counts),
        at=lambda trial: link.at(trial.op, trial.name, asked.timeout),
        tell=lambda settled: link.tell(_Step(settled, *done), leaving=True),
        settled={(case, device) for case, device in asked.settled},
    )


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
        if not asked.cases or any(_matches(trial.name, case) for case in asked.cases):
            yield trial


def _matches(name: str, pattern: str) -> bool:
    literal = str.maketrans("[]", "()")
    return fnmatchcase(name.translate(literal), pattern.translate(literal))
