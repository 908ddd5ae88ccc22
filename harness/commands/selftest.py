"""`gradwatch selftest`: tests the judge, and other judges, with planted errors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import click
from rich.table import Table

from gradwatch.harness.console import options as options
from gradwatch.harness.console.terminal import many, output, progress
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.orders import ORDERS, SECOND
from gradwatch.harness.project import documents as recording
from gradwatch.harness.project import records
from gradwatch.harness.selftest import scoring
from gradwatch.harness.selftest.run import FULL, QUICK, Extent, try_judges
from gradwatch.harness.selftest.scoring import JUDGES, Score

MISSES_SHOWN = 8  # the JSON counts all of them


@click.command()
@options.op
@options.every_order
@click.option("--quick", is_flag=True, help="One case of each op, no gradcheck.")
@options.seed
@options.jobs
@options.json_file
def command(
    ops: tuple[str, ...],
    orders: tuple[str, ...],
    quick: bool,
    seed: int,
    jobs: int,
    json_file: str | None,
) -> int:
    r"""Plant every known wrong backward and count which judges reject it.

    Compares our judge with numpy.allclose, assert_close, OneFlow's tolerances and
    gradcheck: the share of planted errors that each one catches, by the size of the
    error, and the share of right gradients that each one rejects. In double backwards
    it plants a lost or wrong term and values that are saved without their history.

    \b
    Examples:
      gradwatch selftest --quick
      gradwatch selftest --order jvp,hvp
      gradwatch selftest --op softmax --json selftest.json
    Exit code: 0 if our judge meets all requirements, else 1.
    """
    started = time.monotonic()
    extent = QUICK if quick else FULL
    asked: dict[str, Any] = {"ops": ops, "orders": orders, "seed": seed}
    with progress("trying the judges") as advance:
        score = try_judges(extent, jobs=jobs, progress=advance, **asked)
    asked["seconds"] = round(time.monotonic() - started, 1)
    summary = summarise(score, extent, **asked)
    if json_file != "-":
        show(score, summary)
    if json_file:
        content = recording.document(scoring.records(score), summary)
        recording.write(content, json_file)
    return 0 if all(r.met for r in summary.requirements) else 1


def summarise(
    score: Score,
    extent: Extent = FULL,
    *,
    ops: Sequence[str] = (),
    orders: Sequence[str] = ORDERS,
    seconds: float | None = None,
    seed: int | None = None,
) -> records.SelftestSummary:
    """The summary of a self-test of the requested `ops` and `orders`.

    The requirements depend on them; for some ops, one tensor is enough.
    """
    entries, required = known.load(), list[records.Requirement]()
    first, second = score.of(ORDERS[0]), score.of(*SECOND)
    least, fewest = (1, 1) if ops else (extent.tensors, extent.second_tensors)
    if ORDERS[0] in orders:
        required += scoring.requirements(first, entries, tensors=least, some=bool(ops))
    if not {*SECOND}.isdisjoint(orders):
        required += scoring.second_requirements(
            second, entries, tensors=fewest, planted="hvp" in orders
        )
    runs = score.runs
    return records.SelftestSummary(
        planted=len({(t.op, run.mistake) for t, run in runs}),
        ops=len({t.op for t, _ in runs}),
        runs=len(runs),
        counted=len(score.counted),
        detection=scoring.detection(first),
        second_order=scoring.by_mistake(second),
        named=scoring.by_label(score),
        false_alarms=scoring.accusations(first, entries),
        accused=[
            records.Accused(
                case=t.name,
                backend=a.backend,
                tensor=a.tensor,
                ratio=records.finite(a.ratio),
            )
            for t, a in score.false_alarms(entries)
        ],
        requirements=required,
        missing=score.missing,
        seconds=seconds,
        seed=seed,
    )


def show(score: Score, summary: records.SelftestSummary) -> None:
    """Print the shares caught and falsely rejected, requirements and misses."""
    console = output()
    line = partial(console.print, markup=False)
    if summary.detection or summary.false_alarms:
        caught = [(r.dtype, r.effect, r.runs, r.caught) for r in summary.detection]
        console.print(_table("planted errors caught, %", "effect", "runs", caught))
        right = [(r.dtype, "right", r.tensors, r.accused) for r in summary.false_alarms]
        console.print(_table("right tensors accused, %", "", "tensors", right))
    for one in summary.second_order:
        line(f"{one.mistake}: {one.caught} of {one.runs} caught")
    if summary.named:
        rightly = sum(kind.caught for kind in summary.named)
        said = sum(kind.runs for kind in summary.named)
        kinds = ", ".join(f"{n.mistake} {n.caught}/{n.runs}" for n in summary.named)
        line(f"named rightly by the diagnosis: {rightly} of {said} ({kinds})")
    for goal in summary.requirements:
        sign, colour = ("✓", "green") if goal.met else ("✗", "bold red")
        line(f"{sign} {goal.required}: {goal.found}", style=colour)
    for a in summary.accused[:MISSES_SHOWN]:
        ratio = "not finite" if a.ratio is None else f"{a.ratio:.3g}"
        line(f"accused: {a.case} {a.backend} {a.tensor}, ratio {ratio}", style="red")
    missed = score.missed
    for trial, run in sorted(missed, key=lambda m: -m[1].effect)[:MISSES_SHOWN]:
        what = f"missed: {trial.name} {run.mistake}, effect {run.effect:.2g}"
        line(f"{what}: ratio {run.ratio:.3g}, limit {run.limit:.3g}", style="dim")
    for backend, why in sorted(score.missing.items()):
        line(f"not run: {backend}: {why}", style="yellow")
    console.print(
        f"{many(summary.planted, 'planted error')} over {many(summary.ops, 'op')}: "
        f"{summary.runs} runs, of which {summary.counted} are visible in their "
        f"precision and {len(missed)} were missed; {summary.seconds} s"
    )


def _table(
    title: str,
    what: str,
    count: str,
    rows: Sequence[tuple[str, str, int, dict[str, float]]],
) -> Table:
    table = Table(title=title, title_justify="left")
    for name in ("precision", what):
        table.add_column(name)
    for name in (count, *JUDGES):
        table.add_column(name.replace(", ", "\n"), justify="right")
    for dtype, effect, number, shares in rows:
        cells = (per_cent(shares.get(judge)) for judge in JUDGES)
        table.add_row(dtype, effect, str(number), *cells)
    return table


def per_cent(share: float | None) -> str:
    """A share in per cent with one decimal; 100.0 and 0.0 only if it is exact."""
    if share is None:
        return ""
    cut = max(min(share * 100, 99.9), 0.1) if 0 < share < 1 else share * 100
    return f"{cut:.1f}"
