"""`gradwatch time`: forward and backward of whatever agrees, side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence

import click
from rich.table import Table

from harness import records as recording
from harness.agreement import agree
from harness.commands import _options as options
from harness.inputs import REGIMES, Trial, trial
from harness.known import as_expected
from harness.memory import copy_bandwidth
from harness.sweep import Fleet
from harness.terminal import errors, output, progress
from harness.timing import Record, lines, time_trial


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
    help="For each op and size, all backends and both phases together.",
)
@click.option("--threads", default=1, show_default=True, help="Of each framework.")
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

    Backends are timed in turn, call by call, in a drawn order, each in its own
    interpreter, with equal thread counts; the first call is apart. The figure is the
    median with a 95 % interval; the samples are in the JSON. What disagrees is not
    timed, and it is told why.

    \b
    Examples:
      gradwatch time --op layer_norm --size 256x1024
      gradwatch time --size middle --json results/latest/time.json
      gradwatch time --device cuda --backend torch_autograd --backend torch_custom
    """
    found = options.loaded_ops(ops, pages)
    chosen = [
        trial(op, case, REGIMES["normal"], dtype, seed, source)
        for source, op in found.items()
        for case in options.sizes_of(op, sizes)
        for dtype in dtypes or ("float32",)
    ]
    if not chosen:
        told = ", ".join(size for op in found.values() for size in op.sizes)
        raise click.UsageError(f"no size is called that; small, middle, large, {told}")
    names = options.framework_backends(backends)
    rows: list[Record] = []
    untimed: dict[str, str] = {}
    for device in devices or ("cpu",):
        usable = [name for name in names if options.runs_on(name, device)]
        measured, why = _timed(chosen, usable, device, budget, threads, seed)
        rows += measured
        untimed |= why
    bandwidth = copy_bandwidth() if "cpu" in (devices or ("cpu",)) else None
    summary = {"timed": len(rows), "untimed": untimed, "copy_bandwidth": bandwidth}
    if json_file:
        recording.write(recording.document(rows, summary), json_file)
    if json_file != "-":
        _show(rows, untimed, bandwidth)
    return 0


def _timed(
    chosen: Sequence[Trial],
    backends: Sequence[str],
    device: str,
    budget: float,
    threads: int,
    seed: int,
) -> tuple[list[Record], dict[str, str]]:
    rows: list[Record] = []
    untimed: dict[str, str] = {}
    with (
        Fleet(jobs=os.cpu_count() or 1) as fleet,
        lines(threads) as line,
        progress("timing") as advance,
    ):
        for done, one in enumerate(chosen, 1):
            wrong = _not_to_be_timed(one, backends, device, fleet)
            right = [name for name in backends if name not in wrong]
            timed, why = time_trial(
                one, right, line, device=device, budget=budget, seed=seed
            )
            rows += timed
            label = f"{one.problem.op.name} {one.case} {one.problem.dtype}"
            untimed |= {f"{label} {b}": w for b, w in (wrong | why).items()}
            advance(done, len(chosen))
    return rows, untimed


def _not_to_be_timed(
    one: Trial, backends: Sequence[str], device: str, fleet: Fleet
) -> dict[str, str]:
    """Backends without a right gradient here, and why."""
    judged = agree([one], backends, devices=(device,), entries=(), fleet=fleet)
    wrong = dict(judged.missing)
    for record in judged.records:
        if not as_expected(record) or record["verdict"] == "unsupported":
            told = f"{record['verdict']}: {record['message']}"
            wrong.setdefault(record["backend"], told)
    return wrong


def _show(
    rows: Sequence[Record], untimed: dict[str, str], bandwidth: float | None
) -> None:
    console = output()
    for device in sorted({row["device"] for row in rows}):
        console.print(_table([r for r in rows if r["device"] == device], bandwidth))
    doubts = sorted({d for row in rows for d in row["doubts"] if "busy" not in d})
    if any("busy" in doubt for row in rows for doubt in row["doubts"]):
        doubts.append("others were busy on this machine")
    for doubt in doubts[:5]:
        console.print(f"doubtful: {doubt}", style="yellow", markup=False)
    for what, why in untimed.items():
        errors().print(f"not timed: {what}: {why}", style="yellow", markup=False)


def _table(rows: Sequence[Record], bandwidth: float | None) -> Table:
    """Medians by op and size; the fastest in each row in bold."""
    told = f"median microseconds, {rows[0]['device']}, {rows[0]['threads']} thread"
    if bandwidth:
        told += f"; in brackets the share of {bandwidth / 1e9:.1f} GB/s copy bandwidth"
    table = Table(title=told, title_justify="left")
    backends = sorted({row["backend"] for row in rows})
    for heading in ("op", "size", "phase"):
        table.add_column(heading)
    for name in backends:
        table.add_column(name.replace("_", "\n", 1), justify="right")
    keys = dict.fromkeys((r["op"], r["case"], r["dtype"], r["phase"]) for r in rows)
    for key in keys:
        here = {
            r["backend"]: r
            for r in rows
            if (r["op"], r["case"], r["dtype"], r["phase"]) == key
        }
        fastest = min(row["seconds"] for row in here.values())
        cells = (_cell(here.get(name), fastest, bandwidth) for name in backends)
        table.add_row(key[0], f"{key[1]} {key[2]}", key[3], *cells)
    return table


def _cell(row: Record | None, fastest: float, bandwidth: float | None) -> str:
    if row is None:
        return ""
    shown = f"{row['seconds'] * 1e6:,.3g}" if row["seconds"] < 1e-3 else ""
    shown = shown or f"{row['seconds'] * 1e6:,.0f}"
    if row["seconds"] == fastest:
        shown = f"[bold]{shown}[/]"
    if bandwidth:
        shown += f" [dim]({row['bytes'] / row['seconds'] / bandwidth:.0%})[/]"
    return shown
