"""`gradwatch selftest`: tests the judge, and other judges, with planted errors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from harness.console import options as options
from harness.console.terminal import output, progress
from harness.judging import known
from harness.project import documents as recording
from harness.project.records import Accused, Requirement, SelftestSummary, finite
from harness.selftest import scoring
from harness.selftest.run import FULL, QUICK, try_judges
from harness.selftest.scoring import JUDGES, Score

MISSES_SHOWN = 8  # the JSON has all of them


@click.command()
@options.op
@click.option("--quick", is_flag=True, help="One case of each op, no gradcheck.")
@options.seed
@options.jobs
@options.json_file
@click.option(
    "--picture",
    metavar="F.svg",
    type=click.Path(dir_okay=False),
    help="Draw the share that each judge catches and falsely rejects; .svg or .png.",
)
def command(
    ops: tuple[str, ...],
    quick: bool,
    seed: int,
    jobs: int,
    json_file: str | None,
    picture: str | None,
) -> int:
    r"""Plant every known wrong backward and count which judges reject it.

    Compares our judge with numpy.allclose, assert_close, OneFlow's tolerances and
    gradcheck: the share of planted errors that each one catches, by the size of the
    error, and the share of right gradients that each one rejects.

    \b
    Examples:
      gradwatch selftest --quick
      gradwatch selftest --picture detection.svg --json selftest.json
    Exit code: 0 if our judge meets all requirements, else 1.
    """
    started = time.monotonic()
    with progress("trying the judges") as advance:
        extent = QUICK if quick else FULL
        score = try_judges(extent, ops=ops, seed=seed, jobs=jobs, progress=advance)
    seconds = time.monotonic() - started
    least = 1 if ops else extent.tensors
    summary = summarise(score, least, seconds=round(seconds, 1), seed=seed)
    if json_file != "-":
        show(score, summary)
    if picture:
        from harness.selftest.charts import chart_detection  # half a second

        chart_detection(summary, Path(picture))
    if json_file:
        content = recording.document(scoring.records(score), summary)
        recording.write(content, json_file)
    return 0 if all(r.met for r in summary.requirements) else 1


def summarise(
    score: Score, tensors: int, *, seconds: float | None = None, seed: int | None = None
) -> SelftestSummary:
    """The summary of a self-test, as the JSON document has it."""
    entries = known.load()
    required = scoring.requirements(score, entries, tensors=tensors)
    return SelftestSummary(
        planted=len({(t.op, run.mistake) for t, run in score.runs}),
        ops=len({t.op for t, _ in score.runs}),
        runs=len(score.runs),
        counted=len(score.counted),
        detection=scoring.detection(score),
        false_alarms=scoring.accusations(score, entries),
        accused=[
            Accused(
                case=t.name, backend=a.backend, tensor=a.tensor, ratio=finite(a.ratio)
            )
            for t, a in score.false_alarms(entries)
        ],
        requirements=[
            Requirement(required=goal, found=measured, met=met)
            for goal, measured, met in required
        ],
        missing=score.missing,
        seconds=seconds,
        seed=seed,
    )


def show(score: Score, summary: SelftestSummary) -> None:
    """Print the shares caught and falsely rejected, requirements and misses."""
    console = output()
    caught = [(r.dtype, r.effect, r.runs, r.caught) for r in summary.detection]
    console.print(_table("planted errors caught, %", "effect", "runs", caught))
    accused = [(r.dtype, "right", r.tensors, r.accused) for r in summary.false_alarms]
    console.print(_table("right tensors accused, %", "", "tensors", accused))
    for requirement in summary.requirements:
        sign, colour = ("✓", "green") if requirement.met else ("✗", "bold red")
        line = f"{sign} {requirement.required}: {requirement.found}"
        console.print(line, style=colour, markup=False)
    for record in summary.accused[:MISSES_SHOWN]:
        line = f"accused: {record.case} {record.backend} {record.tensor}"
        console.print(f"{line}, ratio {_ratio(record)}", style="red", markup=False)
    for trial, run in sorted(score.missed, key=lambda m: -m[1].effect)[:MISSES_SHOWN]:
        line = f"missed: {trial.name} {run.mistake}, effect {run.effect:.2g}"
        console.print(f"{line}: {scoring.why_missed(run)}", style="dim", markup=False)
    for backend, why in sorted(score.missing.items()):
        console.print(f"not run: {backend}: {why}", style="yellow", markup=False)
    console.print(
        f"{summary.planted} planted errors over {summary.ops} ops: "
        f"{summary.runs} runs, of which {summary.counted} are visible in their "
        f"precision and {len(score.missed)} were missed; {summary.seconds} s"
    )


def _ratio(accused: Accused) -> str:
    return "not finite" if accused.ratio is None else f"{accused.ratio:.3g}"


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
    """One decimal; 100.0 only for a share of exactly 1, and 0.0 only for exactly 0."""
    if share is None:
        return ""
    cut = max(min(share * 100, 99.9), 0.1) if 0 < share < 1 else share * 100
    return f"{cut:.1f}"
