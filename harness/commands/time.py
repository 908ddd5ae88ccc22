"""`gradwatch time`: times forward and backward of all backends that agree."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence

import click
from rich.markup import escape
from rich.table import Table

from harness.agreement.suite import Required, agree
from harness.console import options as options
from harness.console.terminal import errors, output, progress
from harness.judging.cases import Trial
from harness.project import documents as recording
from harness.project.records import TimeRecord, TimeSummary
from harness.timing.memory import copy_bandwidth
from harness.timing.remote import lines
from harness.timing.trial import time_trial
from harness.workers import integrity
from harness.workers.fitness import why_unfit

Reasons = dict[str, str]  # by backend


@click.command()
@options.op
@options.pages
@options.backend
@options.device
@options.dtype
@options.size
@click.option(
    "--budget",
    default=2.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Sampling time of each op and size, for all backends and both phases.",
)
@click.option("--threads", default=1, show_default=True, help="Threads of a framework.")
@options.seed
@options.json_file
def command(
    ops: tuple[str, ...],
    pages: tuple[str, ...],
    backends: tuple[str, ...],
    devices: tuple[str, ...],
    dtypes: tuple[str, ...],
    sizes: tuple[str, ...],
    budget: float,
    threads: int,
    seed: int,
    json_file: str | None,
) -> int:
    r"""Time forward and backward of every backend whose gradient is right.

    All backends are timed in turn, call by call, in random order, each in its own
    interpreter, with equal numbers of threads. The figure is the median with its 95 %
    interval; the JSON has the samples, and the first call separately. A backend that
    disagrees is not timed, and the reason is printed. Exit code: 3 if the device is
    missing, or all requested backends.

    \b
    Examples:
      gradwatch time --op layer_norm --size 256x1024
      gradwatch time --size middle --json results/latest/time.json
      gradwatch time --device cuda --backend torch_autograd --backend torch_custom
    """
    integrity.remember()  # before any page is read
    chosen = options.sized_trials(
        options.loaded_ops(ops, pages), sizes=sizes, dtypes=dtypes, seed=seed
    )
    names = options.framework_backends(backends)
    rows: list[TimeRecord] = []
    untimed: dict[str, str] = {}
    absent: list[str] = []
    for device in devices or ("cpu",):
        timed, why, missing = _on(device, chosen, names, budget, threads, seed)
        rows += timed
        untimed |= why
        absent += missing
    bandwidth = copy_bandwidth() if "cpu" in (devices or ("cpu",)) else None
    summary = TimeSummary(timed=len(rows), untimed=untimed, copy_bandwidth=bandwidth)
    if json_file:
        recording.write(recording.document(rows, summary), json_file)
    if json_file != "-":
        _show(rows, untimed, bandwidth)
    if absent and not rows:
        raise Required(f"nothing could be timed: {absent[0]}")
    return 0


def _on(
    device: str,
    trials: Sequence[Trial],
    names: Sequence[str],
    budget: float,
    threads: int,
    seed: int,
) -> tuple[list[TimeRecord], dict[str, str], list[str]]:
    """The records, the reasons for missing records, and for missing backends."""
    usable = [name for name in names if options.runs_on(name, device)]
    if not usable:
        return [], {}, [f"none of these runs on {device}"]
    missing, wrong = _judged(trials, usable, device)
    rows: list[TimeRecord] = []
    untimed: dict[str, str] = {}
    with lines(threads) as line, progress("timing") as advance:
        for done, one in enumerate(trials, 1):
            reasons = missing | wrong[one.name]
            right = [name for name in usable if name not in reasons]
            timed, why = time_trial(
                one, right, line, device=device, budget=budget, seed=seed
            )
            rows += timed
            label = f"{one.problem.op.name} {one.case} {one.problem.dtype}"
            untimed |= {f"{label} {b}": reason for b, reason in (reasons | why).items()}
            advance(done, len(trials))
    return rows, untimed, list(missing.values())


def _judged(
    trials: Sequence[Trial], backends: Sequence[str], device: str
) -> tuple[Reasons, dict[str, Reasons]]:
    """The reasons why backends are missing, and why a trial of one is not right.

    Everything is judged before the first timing, so that no worker that judges can
    disturb the clock.
    """
    wrong: dict[str, Reasons] = {one.name: {} for one in trials}
    with progress("judging") as advance:
        judged = agree(
            trials,
            backends,
            devices=(device,),
            jobs=os.cpu_count() or 1,
            entries=(),
            progress=advance,
        )
    verdicts: dict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for record in judged.records:
        place = record.case, record.backend
        verdicts[place].append((record.verdict, record.message))
    for (case, backend), given in verdicts.items():
        if why := why_unfit(given):
            wrong[case][backend] = why
    return judged.missing, wrong


def _show(
    rows: Sequence[TimeRecord], untimed: dict[str, str], bandwidth: float | None
) -> None:
    console = output()
    for device in sorted({row.device for row in rows}):
        console.print(_table([r for r in rows if r.device == device], bandwidth))
    doubts = sorted({d for row in rows for d in row.doubts if "busy" not in d})
    if any("busy" in doubt for row in rows for doubt in row.doubts):
        doubts.append("other processes were busy on this machine")
    for doubt in doubts[:5]:
        console.print(f"doubtful: {doubt}", style="yellow", markup=False)
    alike: dict[tuple[str, str], list[str]] = {}
    for what, why in untimed.items():
        alike.setdefault((what.rpartition(" ")[2], why), []).append(what)
    for (backend, why), (what, *more) in alike.items():
        subject = f"{what} and {len(more)} more of {backend}" if more else what
        line = f"not timed: {subject}: {why}"
        errors().print(line, style="yellow", markup=False, soft_wrap=True)


def _table(rows: Sequence[TimeRecord], bandwidth: float | None) -> Table:
    """The medians by op and size; the fastest of each row is bold."""
    title = f"median microseconds, {rows[0].device}, {rows[0].threads} thread"
    if bandwidth:
        title += f"; in brackets the share of {bandwidth / 1e9:.1f} GB/s copy bandwidth"
    table = Table(title=title, title_justify="left")
    backends = sorted({row.backend for row in rows})
    for heading in ("op", "size", "phase"):
        table.add_column(heading)
    for name in backends:
        table.add_column(escape(name).replace("_", "\n", 1), justify="right")
    keys = dict.fromkeys((r.op, r.case, r.dtype, r.phase) for r in rows)
    for key in keys:
        here = {r.backend: r for r in rows if (r.op, r.case, r.dtype, r.phase) == key}
        fastest = min(row.seconds for row in here.values())
        cells = (_cell(here.get(name), fastest, bandwidth) for name in backends)
        table.add_row(escape(key[0]), escape(f"{key[1]} {key[2]}"), key[3], *cells)
    return table


def _cell(row: TimeRecord | None, fastest: float, bandwidth: float | None) -> str:
    if row is None:
        return ""
    shown = f"{row.seconds * 1e6:,.3g}" if row.seconds < 1e-3 else ""
    shown = shown or f"{row.seconds * 1e6:,.0f}"
    if row.seconds == fastest:
        shown = f"[bold]{shown}[/]"
    if bandwidth and row.bytes:
        shown += f" [dim]({row.bytes / row.seconds / bandwidth:.0%})[/]"
    return shown
