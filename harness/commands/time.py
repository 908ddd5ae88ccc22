"""`gradwatch time`: times forward and backward of all backends that agree."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import click
import msgspec
from msgspec import Struct, structs

from gradwatch.harness.agreement.suite import Agreement, Asked, verdicts
from gradwatch.harness.console import options as options
from gradwatch.harness.console.terminal import ending, keep, progress, say, show_grouped
from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.defects import known
from gradwatch.harness.project import documents as recording
from gradwatch.harness.project.records import TIME, Phase, TimeRecord, TimeSummary
from gradwatch.harness.project.requested import Required
from gradwatch.harness.timing.compare import PHASES, time_trial, workers
from gradwatch.harness.timing.timers import why_not_timed
from gradwatch.harness.workers import integrity
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.harness.workers.pool import Fleet, Task, why_unfit
from gradwatch.harness.workers.process import Child, Failed, Link
from gradwatch.harness.workers.worker import Worker
from gradwatch.impls.catalogue import framework_of


@click.command()
@options.op
@options.pages
@options.backend
@options.device
@options.timed_dtype
@options.size
@options.seconds(
    "--budget",
    2.0,
    "Sampling time of each op and size, for all backends and both phases.",
)
@options.threads
@options.seed
@options.json_file
def command(json_file: str | None, **given: Any) -> int:
    r"""Time forward and backward of every backend whose gradient is right.

    All backends are timed in turn, call by call, in random order, each in its own
    interpreter, with equal numbers of threads. The figure is the median with its 95 %
    interval; the JSON has the samples, and the first call separately. A backend that
    disagrees is not timed, and the reason is printed.

    \b
    Examples:
      gradwatch time --op layer_norm --size 256x1024
      gradwatch time --size middle --json -
      gradwatch time --device cuda --backend torch_autograd --backend torch_custom
    Exit code: 1 if a gradient is wrong and no known defect, a page cannot be run, or
    nothing is timed; 3 if the device is missing, or all requested backends.
    """
    ops, pages, backends = (given.pop(name) for name in ("ops", "pages", "backends"))
    devices = given["devices"]
    for why in filter(None, map(why_not_timed, devices)):
        raise click.UsageError(why)
    options.on_this_machine(devices)
    asked = TimeRequest(
        ops=options.sources(ops, pages),
        backends=options.framework_backends(backends),
        **given,
    )
    with progress("judging and timing") as advance:
        measured = _timed(asked, advance)
    rows = measured.rows
    summary = TimeSummary(timed=len(rows), untimed=measured.untimed)
    if rows or json_file:
        keep(TIME, recording.document(rows, summary), json_file, _combined)
    for op, why in measured.failed.items():
        say(f"not judged: {op}: {why}", "red")
    if json_file != "-":
        _show(measured)
    if measured.absent and not rows and not measured.failed:
        raise Required(f"nothing could be timed: {measured.absent[0]}")
    return 0 if rows and not measured.failed and not measured.wrong else 1


def _combined(
    before: TimeSummary, now: TimeSummary, records: Sequence[TimeRecord]
) -> TimeSummary:
    timed = {f"{one.op} {one.case} {one.dtype} {one.backend}" for one in records}
    untimed = (before.untimed | now.untimed).items()
    return TimeSummary(
        timed=len(records),
        untimed={what: why for what, why in untimed if what not in timed},
    )


class TimeRequest(Asked, kw_only=True):
    """A request to time ops and sizes."""

    sizes: Sequence[str]
    budget: float
    threads: int


class Timed(Struct, kw_only=True):
    """The records of a case or more, why others have none, and the progress.

    wrong: op and backend of each wrong gradient that is no known defect. absent: why
    backends or devices are missing. failed: by op, why its page or formula cannot be
    run. refused: why the call is wrong.
    """

    rows: list[TimeRecord] = []
    untimed: dict[str, str] = {}
    wrong: list[tuple[str, str]] = []
    absent: list[str] = []
    failed: dict[str, str] = {}
    refused: str = ""
    case: tuple[str, str] = ("", "")
    done: int = 0
    total: int = 0


def _timed(asked: TimeRequest, progress: Callable[[int, int], None]) -> Timed:
    """The results of a process with the job `measure`, collected."""
    measured, timed = Timed(), list[tuple[str, str]]()

    def request(left: Sequence[str]) -> TimeRequest:
        return structs.replace(asked, ops=left, settled=timed)

    with Child(measure) as child:
        for one in child.run(asked.ops, request, Timed):
            if isinstance(one, Failed):
                measured.failed.setdefault(one.op, f"{one.verdict}: {one.message}")
                measured.untimed.setdefault(f"{one.case or one.op} all", one.message)
                continue
            if one.refused:
                raise click.UsageError(one.refused)
            measured.rows += one.rows
            measured.untimed |= one.untimed
            measured.wrong += one.wrong
            measured.absent += one.absent
            timed.append(one.case)
            progress(one.done, one.total)
    return measured


def measure(content: bytes, link: Link) -> None:
    """Judge and time the trials of a request, and send each case."""
    integrity.remember()  # before any page is read
    asked = msgspec.msgpack.decode(content, type=TimeRequest)
    of_ops = {"sizes": asked.sizes, "dtypes": asked.dtypes}
    try:
        chosen = options.sized(asked.ops, link.at, **of_ops, seed=asked.seed)
    except click.UsageError as error:
        link.tell(Timed(refused=str(error)))
        return
    for device in asked.devices:
        left = [one for one in chosen if (device, one.name) not in asked.settled]
        _on(device, left, asked, link)


def _on(device: str, trials: Sequence[Trial], asked: TimeRequest, link: Link) -> None:
    """Judge all trials on a device, then time each: judging would disturb the clock."""
    usable = [
        name
        for name in asked.backends
        if device == "cpu" or framework_of(name) != "numpy"
    ]
    if not usable:
        link.tell(Timed(absent=[f"none of these runs on {device}"]))
        return

    def start(name: str) -> Worker:
        return Worker(interpreter_of(name), threads=asked.threads, waiting=link.alive)

    with workers(start) as worker:
        judged, entries = Agreement(), known.load()
        tasks = [Task(one, name, device) for one in trials for name in usable]
        with Fleet(jobs=os.cpu_count() or 1) as fleet:
            for each in verdicts(tasks, fleet, entries, at=link.at, pairs=False):
                judged.add(each)
        said = defaultdict[tuple[str, str], list[tuple[str, str]]](list)
        for record in judged.records:
            said[record.case, record.backend].append((record.verdict, record.message))
        unexpected = sorted({(r.op, r.backend) for r in judged.unexpected})
        link.tell(Timed(absent=list(judged.missing.values()), wrong=unexpected))
        settings: dict[str, Any] = {"device": device, "budget": asked.budget}
        for done, one in enumerate(trials, 1):
            found = {b: why_unfit(said[one.name, b]) for b in usable}
            reasons = {b: why for b, why in found.items() if why} | judged.missing
            right = [name for name in usable if name not in reasons]
            with link.at(one.op, one.name):
                rows, why = time_trial(one, right, worker, seed=asked.seed, **settings)
                label = f"{one.problem.op.name} {one.case} {one.problem.dtype}"
                reasons |= why
                untimed = {f"{label} {b}": why for b, why in reasons.items()}
                measured = Timed(rows=rows, untimed=untimed, case=(device, one.name))
                measured.done, measured.total = done, len(trials)
                link.tell(measured)


def _show(measured: Timed) -> None:
    """Print a table for each op and size, then a summary with untimed backends."""
    rows, wrong, absent = measured.rows, measured.wrong, measured.absent
    for device in sorted({row.device for row in rows}):
        _show_times([r for r in rows if r.device == device])
    unfit = dict[tuple[str, str], str]()  # one line an op and backend
    for what, why in measured.untimed.items():
        if not why.startswith((*absent, "unsupported")):
            unfit.setdefault((what.split()[0], what.split()[-1]), why)
    for place, why in unfit.items():
        sign = ("✗", "red") if place in wrong else ("not timed:", "yellow")
        say(f"{sign[0]} {' on '.join(place)}: {why.partition(';')[0]}", sign[1])
    found = f"backends timed: {len({row.backend for row in rows})}"
    found += f", {len(unfit)} not" if unfit else ""
    found += f"; wrong: {', '.join(map(' on '.join, wrong[:3]))}" if wrong else ""
    said = {doubt for row in rows for doubt in row.doubts}
    doubts = min(said, default="").partition(":")[0]
    found += f"; doubtful: {doubts}" if doubts else ""
    gone = {what.split()[-1] for what, why in measured.untimed.items() if why in absent}
    families = ", ".join(sorted({*map(framework_of, gone)}))
    following = "gradwatch compare A B; gradwatch report --open"
    for op, backend in wrong[:1]:
        following = f"gradwatch agree --op {op} --backend {backend} shows the elements"
    ending(
        found,
        "red" if wrong or not rows else "yellow" if doubts else "green",
        absent=f"{len(gone)} backends ({families}): gradwatch doctor" if gone else "",
        next_step=following,
    )


def _show_times(rows: Sequence[TimeRecord]) -> None:
    """Print the backends of each op and size, the fastest first, with multiples."""
    found = defaultdict[str, dict[str, dict[Phase, float]]](dict)
    for row in rows:
        about = found[f"{row.op} {row.case} {row.dtype}"]
        about.setdefault(row.backend, {})[row.phase] = row.seconds
    groups = dict[str, list[list[str]]]()
    for name, backends in found.items():
        order = sorted(backends, key=lambda b: sum(backends[b].values()))
        several = [dict.fromkeys(PHASES, 0.0) | backends[b] for b in order]
        columns = [_cells([times[phase] for times in several]) for phase in PHASES]
        groups[name] = [[b, *chain(*c)] for b, *c in zip(order, *columns, strict=True)]
    threads = rows[0].threads
    title = f"median times, {rows[0].device}, {threads} thread{'s'[: threads != 1]}"
    show_grouped(title, ["", *chain(*((f"{p} µs", "") for p in PHASES))], groups)


def _cells(seconds: Sequence[float]) -> Iterator[tuple[str, str]]:
    """Yield each time and its multiple of the least, as text; 0 is no time."""
    least = min(filter(None, seconds), default=0.0)
    for one in seconds:
        shown = f"{one * 1e6:,.{'3g' if one < 1e-3 else '0f'}}" if one else ""
        times = f"{one / least:.3g}x" if one else ""
        yield shown, "[green]fastest[/]" if one == least else times
