"""`gradwatch compare A B`: compares two backends or commits, in turn."""

from __future__ import annotations

import contextlib
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gradwatch.harness.console import options as options
from gradwatch.harness.console.terminal import ending, keep, progress, say, show_grouped
from gradwatch.harness.project import documents as recording
from gradwatch.harness.project.git import NoCommit, checked_out, commit_of
from gradwatch.harness.project.records import (
    COMPARE,
    CompareRecord,
    CompareSummary,
    Phase,
)
from gradwatch.harness.project.requested import (
    Required,
    affected,
    dialect_of,
    has_dialect,
)
from gradwatch.harness.timing.compare import (
    LEAST,
    PAIRS,
    PHASES,
    SAMPLED,
    Plan,
    Side,
    WrongGradient,
    compare_phases,
    judging,
    most_pairs,
)
from gradwatch.harness.timing.timers import why_not_timed
from gradwatch.harness.workers import integrity
from gradwatch.harness.workers.evaluate import in_short
from gradwatch.harness.workers.lifetime import Died
from gradwatch.harness.workers.worker import Absent
from gradwatch.impls.catalogue import UnknownName, backend_names, known

_BUDGETS = {True: 2.0, False: SAMPLED}  # seconds: in one process, and in pairs
_COLOURS = {"slower": "red", "faster": "green", "no difference": "dim"}


@click.command()
@click.argument("a")
@click.argument("b")
@options.op
@options.pages
@options.backend
@options.one_device
@options.timed_dtype
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
    f"{_BUDGETS[True]:g}; in pairs {_BUDGETS[False]:g}",
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
    "--least",
    default=LEAST,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="A smaller change, as a share of the time, is none.",
)
@options.seconds(
    "--limit", 100.0, "Time for the timing; what is left is only judged, after it."
)
@options.json_file
def command(
    a: str,
    b: str,
    ops: tuple[str, ...],
    pages: tuple[str, ...],
    backends: tuple[str, ...],
    phase: str,
    budget: float | None,
    limit: float,
    json_file: str | None,
    **given: Any,
) -> int:
    r"""Compare B with A, two backends or commits, by timing them in turn.

    The ratio is the time of B divided by that of A: above 1, B is slower. It comes with
    a 95 % interval; --json also has the noise, each side compared with itself. Two
    backends of one framework share a process. Backends of different frameworks, and
    commits, are measured in several pairs of fresh processes, until the answer is
    clear: faster, slower, no difference, not resolved. Of two commits only what they
    touch is compared. A side whose gradient is wrong is not timed, and the command
    fails.

    \b
    Examples:
      gradwatch compare torch_autograd torch_custom --op layer_norm
      gradwatch compare main~3 main --op softmax --backend numpy_manual
      gradwatch compare torch_autograd torch_autograd --op square   the noise
      gradwatch compare origin/main HEAD --limit 600
    Exit code: 1 if a gradient is wrong, a page cannot be run, or nothing could be
    compared; 3 if what is needed for it is missing.
    """
    integrity.remember()  # before any page is read
    commits = _are_commits(a, b)
    if why := why_not_timed(given["device"]):
        raise click.UsageError(why)
    chosen_by = {"sizes": given.pop("sizes"), "dtypes": given.pop("dtypes")}
    chosen_by["seed"] = given["seed"]
    broken, wanted = Failures(), options.sources(ops, pages)

    def loading(source: str) -> AbstractContextManager[None]:
        return _noted(broken, Path(source).name, Exception if len(wanted) > 1 else Died)

    trials = options.sized(wanted, loading, **chosen_by)
    names = sorted({trial.problem.op.name for trial in trials})
    # A commit is compared with itself, to measure the noise, for all requested ops.
    chosen = affected(a, b, names, backends) if commits and a != b else None
    touched = names if chosen is None else [op for op, _ in chosen]
    if unchanged := [name for name in names if name not in touched]:
        few = ", ".join(unchanged) if len(unchanged) < 4 else f"{len(unchanged)} ops"
        say(f"{few}: the same files run at {a} and at {b}")
    trials = [trial for trial in trials if trial.problem.op.name in touched]
    nothing = contextlib.nullcontext(list[tuple[Side, Side]]())
    with _sides(a, b, commits, backends) if trials else nothing as sides:
        phases = [one for one in PHASES if phase in (one, "both")]
        plans = [
            (one, other, Plan(t, budget or _BUDGETS[one.place == other.place], **given))
            for t in trials
            for one, other in sides
            if chosen is None
            or (
                (t.problem.op.name, one.backend) in chosen
                and (backends or has_dialect(t.problem.op, one.backend))
            )
        ]
        random.Random(given["seed"]).shuffle(plans)  # a sample, if time is short
        rows, failed, left = _compared(plans, phases, limit)
    failed |= broken
    rows.sort(key=lambda row: (row.op, row.case, row.dtype, row.backend))
    reasons = [_line(why, what) for (_, why), what in failed.items()]
    content = recording.document(rows, _counted(rows, reasons))
    if rows or json_file:
        keep(COMPARE, content, json_file, lambda _, now, of: _counted(of, now.failed))
    kinds = {kind for kind, _ in failed}
    if json_file != "-" and (trials or failed):
        _show(a, b, rows, failed, left)
    if kinds == {Absent} and not rows:
        raise Required("nothing could be compared")
    return 1 if WrongGradient in kinds or broken or (failed and not rows) else 0


def _counted(rows: Sequence[CompareRecord], reasons: list[str]) -> CompareSummary:
    counts = Counter(row.verdict.replace(" ", "_") for row in rows)
    return CompareSummary(**counts, failed=reasons)


#: Names of failed comparisons, by the class of the exception and its message.
Failures = dict[tuple[type[Exception], str], list[str]]


@contextlib.contextmanager
def _noted(failed: Failures, what: str, kind: type[Exception] = Died) -> Iterator[None]:
    """Note an exception in this block under a name, so that the others go on."""
    try:
        yield
    except kind as error:
        why = str(error) if kind is Died else in_short(error)
        failed.setdefault((type(error), why), []).append(what)


def _compared(
    plans: Sequence[tuple[Side, Side, Plan]], phases: Sequence[Phase], limit: float
) -> tuple[list[CompareRecord], Failures, str]:
    """The records; failures, wrong gradients first, absent last; a note on the rest."""
    rows, failed, started = list[CompareRecord](), Failures(), time.monotonic()
    # Kernels come before the formulas that define them: not all may be timed.
    order = sorted(plans, key=lambda plan: dialect_of(plan[0].backend) == "formula")
    pairs = [most_pairs(*plan) for plan in order]
    timed, spent = 0, 0.0
    with progress("timing", limit) as advance:
        while timed < len(order) and spent <= limit:
            one, other, plan = order[timed]
            end = spent + (limit - spent) / (len(order) - timed)
            begun = sum(pairs[:timed])

            def enough(count: int, begun: int = begun, end: float = end) -> bool:
                advance(begun + count, sum(pairs))
                return time.monotonic() - started > end

            enough(0)
            with _noted(failed, f"{plan.trial.name} {one.backend}"):
                rows += compare_phases(one, other, replace(plan, enough=enough), phases)
            timed, spent = timed + 1, time.monotonic() - started
    rest = len(order) - timed
    with progress("judging what was not timed") as advance, judging() as judge:
        for done, (one, other, plan) in enumerate(order[timed:]):
            advance(done, rest)
            with _noted(failed, f"{plan.trial.name} {one.backend}"):
                judge(one, other, plan)
    ranks: dict[type[Exception], int] = {WrongGradient: 0, Absent: 2}
    in_order = dict(sorted(failed.items(), key=lambda f: ranks.get(f[0][0], 1)))
    more = rest * spent / max(timed, 1)
    left = f"{rest} only judged: timing takes {more:.0f} s; --limit {spent + more:.0f}"
    return rows, in_order, left if rest else ""


def _line(why: str, whats: Sequence[str]) -> str:
    """The first name that a reason holds for, the number of others, and the reason."""
    more = f" and {len(whats) - 1} more" if len(whats) > 1 else ""
    return f"{whats[0]}{more}: {why}"


def _are_commits(a: str, b: str) -> bool:
    """Whether both names are commits, rather than backends; UnknownName for others."""
    backends = backend_names()
    if {a, b} & {*backends}:
        for name in (a, b):
            known("backend", name, backends)
        return False
    for name in (a, b):
        try:
            commit_of(name)
        except NoCommit:
            raise UnknownName(
                f"{name!r} is neither a commit (git rev-parse {name}) nor a backend"
                " (gradwatch list backends)"
            ) from None
    return True


@contextlib.contextmanager
def _sides(
    a: str, b: str, commits: bool, backends: Sequence[str]
) -> Iterator[list[tuple[Side, Side]]]:
    """The sides to compare: two backends, or each at two commits."""
    if not commits:
        yield [(Side(a, a), Side(b, b))]
        return
    with checked_out(a) as tree, checked_out(b) as another:
        yield [
            (Side(a, name, tree), Side(b, name, another))
            for name in options.framework_backends(backends)
        ]


def _show(
    a: str, b: str, rows: Sequence[CompareRecord], failed: Failures, left: str
) -> None:
    """Print wrong gradients and failures, the table, and the last lines."""
    for (kind, why), what in failed.items():
        marks = ("✗", "bold red"), ("not compared:", "yellow")
        sign, style = marks[kind is not WrongGradient]
        say(f"{sign} {_line(why, what).partition(';')[0]}", style)
    if rows:
        _show_ratios(a, b, rows)
    wrong = sum(len(w) for (kind, _), w in failed.items() if kind is WrongGradient)
    counts = Counter(row.verdict for row in rows)
    found = [f"{wrong} with a wrong gradient"] if wrong else []
    if slower := counts["slower"]:
        worst = max(rows, key=lambda row: (row.verdict == "slower", row.ratio))
        name = f"{worst.op} {worst.phase} {worst.backend}".strip()
        found.append(f"{slower} slower, most {name}: {worst.ratio:.2f} times")
    rest = ("faster", "no difference", "not resolved")
    found += [f"{counts[verdict]} {verdict}" for verdict in rest if counts[verdict]]
    next_step, unclear = "", counts["not resolved"]
    if wrong:
        next_step = f"gradwatch agree at {b} shows the elements"
    elif unclear:
        next_step = "--budget and --pairs measure longer"
    ending(
        f"{b} against {a}: {', '.join(found) or 'nothing was compared'}",
        "red" if wrong or not rows else "yellow" if slower or unclear else "green",
        absent=left,
        next_step=next_step,
    )


def _show_ratios(a: str, b: str, rows: Sequence[CompareRecord]) -> None:
    """Print a row for each phase; the document has noise and pairs, too."""
    groups = defaultdict[str, list[list[str]]](list)
    for row in rows:
        cells = [
            row.phase,
            f"[{_COLOURS.get(row.verdict, 'yellow')}]{row.verdict}[/]",
            f"{row.ratio:.3f}",
            f"{row.low:.3f} to {row.high:.3f}",
            *(f"{1e6 * (s or math.nan):.4g}" for s in (row.a_seconds, row.b_seconds)),
        ]
        groups[f"{row.op} {row.case} {row.dtype} {row.backend}".strip()].append(cells)
    headings = ["", "verdict", "ratio", "95 % interval", "A µs", "B µs"]
    show_grouped(f"time of {b} over that of {a}", headings, groups)
