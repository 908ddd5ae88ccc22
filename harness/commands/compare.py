"""`gradwatch compare A B`: compares two backends, commits or versions, in turn."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import click
from rich.table import Table

from gradwatch.harness.agreement.suite import Required
from gradwatch.harness.console import options as options
from gradwatch.harness.console.terminal import keep, output, progress, say
from gradwatch.harness.history.environments import WrongCall
from gradwatch.harness.history.measure import NotMeasured
from gradwatch.harness.history.versions import accuracy, interpreter_with, worst_error
from gradwatch.harness.project import documents as recording
from gradwatch.harness.project.affected import Pair, affected, spread
from gradwatch.harness.project.git import (
    NoCommit,
    checked_out,
    commit_of,
    same_implementation,
)
from gradwatch.harness.project.records import COMPARE, CompareRecord, CompareSummary
from gradwatch.harness.timing.compare import (
    LONGEST,
    PAIRS,
    SAMPLED,
    WITHIN,
    Plan,
    Side,
    WrongGradient,
    compare_sides,
)
from gradwatch.harness.timing.report import compared
from gradwatch.harness.timing.steps import why_not_timed
from gradwatch.harness.timing.trial import PHASES
from gradwatch.harness.workers import integrity
from gradwatch.harness.workers.client import Absent
from gradwatch.harness.workers.worker import Died
from gradwatch.impls.catalogue import backend_names, framework_of, known
from gradwatch.impls.contract import Op

_BUDGETS = {True: 2.0, False: SAMPLED}  # seconds: in one process, and in pairs
_PAIRS = f"pairs: and in brackets as many as bring 95 % of ratios within {WITHIN:.0%}"
_COLOURS = {"slower": "red", "faster": "green", "no difference": "dim"}


@click.command()
@click.argument("a")
@click.argument("b")
@options.op
@options.pages
@options.backend
@click.option("--device", default="cpu", type=click.Choice(options.DEVICES))
@options.dtype
@options.size
@click.option(
    "--phase",
    default="both",
    show_default=True,
    type=click.Choice(["forward", "backward", "both"]),
)
@options.seconds(
    "--budget",
    None,
    "Sampling time of each row of the table, for all pairs of processes together.",
    f"{_BUDGETS[True]:g}, and up to {LONGEST * _BUDGETS[True]:g} while the interval is"
    f" wide; in pairs {_BUDGETS[False]:g}",
)
@click.option(
    "--pairs",
    default=PAIRS,
    show_default=True,
    type=click.IntRange(min=1),
    help="Pairs of fresh processes, if A and B cannot share a process.",
)
@options.threads
@options.seed
@click.option(
    "--affected",
    "most",
    type=click.IntRange(min=1),
    metavar="N",
    help="Two commits: only ops and backends whose files differ, at most N of them.",
)
@options.json_file
@options.markdown_file
def command(
    a: str,
    b: str,
    ops: tuple[str, ...],
    pages: tuple[str, ...],
    backends: tuple[str, ...],
    phase: str,
    budget: float | None,
    most: int | None,
    json_file: str | None,
    markdown_file: str | None,
    **given: Any,
) -> int:
    r"""Compare B with A, two backends, commits or versions, by timing them in turn.

    The ratio is the time of B divided by that of A: above 1, B is slower. It comes with
    a 95 % interval and with the noise, which is each side compared with itself. Two
    backends of one framework share a process. Backends of different frameworks,
    commits, and versions are measured in several pairs of fresh processes. Commits are
    checked out into temporary folders. A version, such as torch==1.12.1, runs in the
    environment of the checkout that has it; of versions the accuracy is compared, too.
    A side whose gradient is wrong is not timed, and the command fails.

    \b
    Examples:
      gradwatch compare torch_autograd torch_custom --op layer_norm --size 256x1024
      gradwatch compare main~3 main --op softmax --backend numpy_manual
      gradwatch compare torch_autograd torch_autograd --op square   the noise floor
      gradwatch compare origin/main HEAD --affected 24 --markdown comparison.md
      gradwatch compare torch==1.12.1 torch==2.13.0 --op gelu --size middle
    Verdicts: faster, slower, no difference, not resolved.
    Exit code: 1 if a gradient is wrong, or nothing could be compared; 3 if what is
    needed for it is missing.
    """
    integrity.remember()  # before any page is read
    if most is not None and _are_versions(a, b):
        raise click.UsageError("--affected needs two commits")
    if why := why_not_timed(given["device"]):
        raise click.UsageError(why)
    sizes, dtypes = given.pop("sizes"), given.pop("dtypes")
    trials = options.sized_trials(
        options.loaded_ops(ops, pages), sizes=sizes, dtypes=dtypes, seed=given["seed"]
    )
    unchanged = _unchanged(a, b, {trial.op for trial in trials})
    trials = [trial for trial in trials if trial.op not in unchanged]
    with _sides(a, b, backends if trials else None) as sides:
        phases = [one for one in PHASES if phase in (one, "both")]
        chosen = None if most is None else _affected(a, b, most)
        plans = [
            (one, other, Plan(t, f, spent, longest=longest, **given))
            for t in trials
            for f in phases
            for one, other in sides
            for spent in [budget or _BUDGETS[one.beside(other)]]
            for longest in [None if budget else LONGEST * spent]
            if chosen is None or (t.problem.op.name, one.backend) in chosen
        ]
        rows, failed = _compared(plans)
    reasons = [_line(why, what) for (_, why), what in failed.items()]
    content = recording.document(rows, _counted(rows, reasons))
    if markdown_file:
        recording.replace_file(Path(markdown_file), compared(content))
    if rows or json_file:
        keep(COMPARE, content, json_file, _combined)
    if json_file != "-" and rows:
        output().print(_table(a, b, rows))
    kinds = {kind for kind, _ in failed}
    for (kind, _), line in zip(failed, reasons, strict=True):
        say(f"not compared: {line}", "bold red" if kind is WrongGradient else "yellow")
    if kinds == {Absent} and not rows:
        raise Required("nothing could be compared")
    return 1 if WrongGradient in kinds or (failed and not rows) else 0


def _combined(
    before: CompareSummary, now: CompareSummary, rows: Sequence[CompareRecord]
) -> CompareSummary:
    return _counted(rows, now.failed)


def _counted(rows: Sequence[CompareRecord], reasons: list[str]) -> CompareSummary:
    counts = Counter(row.verdict.replace(" ", "_") for row in rows)
    return CompareSummary(**counts, failed=reasons)


#: What could not be compared, by the kind of the reason and its message.
Failures = dict[tuple[type[Exception], str], list[str]]


def _compared(
    plans: Sequence[tuple[Side, Side, Plan]],
) -> tuple[list[CompareRecord], Failures]:
    """Records, and what failed; a wrong gradient comes first, what is absent last."""
    rows, failed = list[CompareRecord](), Failures()
    with progress("comparing") as advance:
        for done, (one, other, plan) in enumerate(plans, 1):
            try:
                row = compare_sides(one, other, plan)
                rows.append(_with_accuracy(row, one, other, plan.trial.problem.op))
            except (Died, NotMeasured) as reason:
                what = f"{plan.trial.name} {plan.phase} {one.backend}"
                failed.setdefault((type(reason), str(reason)), []).append(what)
            advance(done, len(plans))
    order: dict[type[Exception], int] = {WrongGradient: 0, Absent: 2}
    return rows, dict(sorted(failed.items(), key=lambda f: order.get(f[0][0], 1)))


def _line(why: str, whats: Sequence[str]) -> str:
    """The first that a reason holds for, and how many more."""
    more = f" and {len(whats) - 1} more" if len(whats) > 1 else ""
    return f"{whats[0]}{more}: {why}"


def _are_versions(a: str, b: str) -> bool:
    """Whether they are versions of a framework, such as torch==2.13.0."""
    return "==" in a + b


def _unchanged(a: str, b: str, names: Collection[str]) -> set[str]:
    """Ops that run the same files at two commits: there is nothing to compare.

    A commit against itself is measured: it shows the noise.
    """
    if a == b or _are_versions(a, b) or {a, b} & set(backend_names()):
        return set()
    same = {name for name in names if same_implementation(a, b, name)}
    if same:
        listed = ", ".join(sorted(same)) if len(same) < 4 else f"{len(same)} ops"
        say(f"{listed}: the same files run at {a} and at {b}")
    return same


def _affected(a: str, b: str, most: int) -> list[Pair]:
    try:
        return spread(affected(a, b), most)
    except NoCommit as error:
        raise click.UsageError(f"--affected needs two commits: {error}") from None


@contextlib.contextmanager
def _sides(
    a: str, b: str, backends: Sequence[str] | None
) -> Iterator[list[tuple[Side, Side]]]:
    """The sides to compare: two backends, or each at two commits or two versions.

    With None there is nothing to compare, and nothing is checked out.
    """
    if backends is None:
        yield []
        return
    if {a, b} & set(backend_names()):
        for name in (a, b):
            known("backend", name, backend_names())
        yield [(Side(a, a), Side(b, b))]
        return
    if _are_versions(a, b):
        yield _versions(a, b, backends)
        return
    one, other = (_commit(name) for name in (a, b))
    with checked_out(one) as tree, checked_out(other) as another:
        yield [
            (Side(a, name, tree), Side(b, name, another))
            for name in options.framework_backends(backends)
        ]


def _versions(a: str, b: str, backends: Sequence[str]) -> list[tuple[Side, Side]]:
    """Each backend of a framework in two versions of it."""
    try:
        one, other = interpreter_with(a), interpreter_with(b)
    except WrongCall as error:
        raise click.UsageError(str(error)) from None
    if one.framework != other.framework:
        raise click.UsageError(f"{a} and {b} are versions of two frameworks")
    every = options.framework_backends(backends)
    names = [name for name in every if framework_of(name) == one.framework]
    if not names:
        raise click.UsageError(f"no backend of {one.framework} is asked for")
    return [(Side(a, n, version=one), Side(b, n, version=other)) for n in names]


def _with_accuracy(row: CompareRecord, one: Side, other: Side, op: Op) -> CompareRecord:
    """The record, with the largest errors of two versions."""
    if one.version and other.version:
        a, b = (
            worst_error(op, row.backend, row.dtype, side)
            for side in (one.version, other.version)
        )
        row.a_radii, row.b_radii, row.accuracy = a.ratio, b.ratio, accuracy(a, b)
    return row


def _commit(name: str) -> str:
    """The hash of a commit.

    Raises:
        UnknownName: The name is neither a commit nor a backend.
    """
    try:
        return commit_of(name)
    except NoCommit:
        return known("backend or commit", name, backend_names())


def _table(a: str, b: str, rows: Sequence[CompareRecord]) -> Table:
    table = Table(title=f"{b} against {a}: time ratio", title_justify="left")
    for heading in ("op", "size", "phase", "backend"):
        table.add_column(heading)
    for heading in ("ratio", "95 % interval", "noise", "µs A", "µs B"):
        table.add_column(heading, justify="right")
    in_pairs = any(row.pairs > 1 for row in rows)
    if in_pairs:
        table.add_column("pairs", justify="right")
        table.caption = _PAIRS
    table.add_column("verdict")
    of_versions = any(row.accuracy for row in rows)
    for heading in ("radii A", "radii B", "accuracy") if of_versions else ():
        table.add_column(heading, justify="right")
    for row in rows:
        verdict = f"[{_COLOURS.get(row.verdict, 'yellow')}]{row.verdict}[/]"
        pairs = f"{row.pairs} ({row.pairs_needed})" if row.pairs > 1 else "1"
        radii = ("" if r is None else f"{r:.2g}" for r in (row.a_radii, row.b_radii))
        table.add_row(
            *(row.op, row.case, row.phase, row.backend),
            f"{row.ratio:.4f}",
            f"{row.low:.4f} to {row.high:.4f}",
            f"{row.noise_low:.4f} to {row.noise_high:.4f}",
            *(f"{seconds * 1e6:.4g}" for seconds in row.medians),
            *([pairs] if in_pairs else []),
            verdict + (f" ({row.short})" if row.short else ""),
            *((*radii, row.accuracy) if of_versions else ()),
        )
    return table
