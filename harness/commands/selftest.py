"""`gradwatch selftest`: tests the judge, and other judges, with planted errors."""

from __future__ import annotations

import itertools
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
from rich.table import Table

from gradwatch.harness.console import options as options
from gradwatch.harness.console.terminal import many, output, progress
from gradwatch.harness.judging.cases import REGIMES, Trial, of_order, trial
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.orders import ORDERS, SECOND
from gradwatch.harness.project import documents as recording
from gradwatch.harness.project import records
from gradwatch.harness.project.requested import by_default
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.selftest import scoring
from gradwatch.harness.selftest.examine import read
from gradwatch.harness.selftest.mutants import PLANTED, read_mistakes
from gradwatch.harness.selftest.scoring import JUDGES, Score
from gradwatch.harness.workers.interpreters import interpreter_of, on_request
from gradwatch.harness.workers.pool import Fleet, Outcome, Task
from gradwatch.impls import catalogue
from gradwatch.impls.contract import Op


@dataclass(frozen=True)
class Extent:
    """The extent of a self-test: its regimes, by precision.

    tensors: the least number of right tensors, in float64 and in float32.
    """

    planted: dict[str, Sequence[str]]
    gradcheck: Sequence[str]
    right: dict[str, Sequence[str]]
    tensors: int
    second: dict[str, Sequence[str]]  # of the second order
    second_tensors: int


_USUAL = *("normal", "shifted", "large", "tiny", "mixed", "ties", "constant"), "dy_ones"
# Without "infnan": allclose counts two NaNs as different.
_FINITE = tuple(name for name in REGIMES if name != "infnan")
# Without memory layouts, which change no number; that leaves 20,000 tensors.
_PLAIN = tuple(
    name
    for name in _FINITE
    if {REGIMES[name].layout, REGIMES[name].cotangent_layout} == {"contiguous"}
)
_WIDE, _HALF = ("float64", "float32"), ("float16", "bfloat16")
_IN_HALF = dict.fromkeys(_HALF, ("normal", "tiny", "mixed", "dy_ones"))
FULL = Extent(
    planted={**dict.fromkeys(_WIDE, _USUAL), **_IN_HALF},
    gradcheck=("normal",),  # its users take torch.randn
    right={**dict.fromkeys(_WIDE, _FINITE), **_IN_HALF},
    tensors=10_000,
    second=dict.fromkeys(_WIDE, _PLAIN),
    second_tensors=20_000,
)
QUICK = Extent(
    planted=dict.fromkeys(FULL.planted, ("normal",)),
    gradcheck=(),
    right=dict.fromkeys(FULL.right, ("normal", "mixed")),
    tensors=100,
    second=dict.fromkeys(_WIDE, ("normal",)),
    second_tensors=1_000,
)


def chosen(
    extent: Extent, ops: Sequence[str], seed: int, orders: Sequence[str] = ORDERS
) -> Iterator[Trial]:
    """The trials of some ops that an extent includes."""
    second = [order for order in orders if order in SECOND]
    for op in map(catalogue.load_op, ops):
        if ORDERS[0] in orders:
            yield from _turns(extent.right, op, seed)
        for one in _turns(extent.second, op, seed) if second else ():
            yield from (of_order(one, order, seed) for order in second)


def _turns(regimes: Mapping[str, Sequence[str]], op: Op, seed: int) -> Iterator[Trial]:
    """Trials of one case for each precision and regime, in turn: all take an hour."""
    turns = itertools.cycle(op.cases.values())
    for dtype, names in regimes.items():
        for name, case in zip(names, turns, strict=False):
            if case in (regime := REGIMES[name]).cases(op):
                yield trial(op, case, regime, dtype, seed)


def try_judges(
    extent: Extent = FULL,
    *,
    ops: Sequence[str] = (),
    orders: Sequence[str] = ORDERS,
    seed: int = 0,
    jobs: int = 2,
    timeout: float = 60.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Score:
    """Count which planted errors each judge rejects, and its false alarms.

    By default, `ops` are all; `timeout` is in seconds, for one trial.
    """
    there = not interpreter_of("torch").why_missing
    frameworks = set(map(catalogue.framework_of, examined()))
    leader = "torch" if there and "torch" in frameworks else "numpy"
    asked = {
        (one.name, task.backend): task
        for one in chosen(extent, ops or catalogue.op_names(), seed, orders)
        for task in tasks(one, extent, leader)
    }
    outcome_of = dict[tuple[str, str], Outcome]()
    with Fleet(jobs=jobs) as fleet:
        outcomes = fleet.run([*asked.values()], timeout=timeout)
        for done, outcome in enumerate(outcomes, 1):
            outcome_of[outcome.task.trial.name, outcome.task.backend] = outcome
            progress(done, len(asked))
    score, lost = Score(), defaultdict[str, list[str]](list)
    for place, task in asked.items():  # in the order of the tasks, not of the answers
        outcome = outcome_of[place]
        if outcome.kind == "result":
            score.add(task.trial, *read(outcome.reply))
        else:
            lost[task.backend].append(f"{outcome.kind}: {outcome.message}")
    for backend, whats in lost.items():
        more = f"; and {len(whats) - 1} more trials" if len(whats) > 1 else ""
        score.missing[backend] = whats[0] + more
    return score


def examined() -> list[str]:
    """The backends that take part.

    They exclude compilers, which need half an hour for all of these trials, and those
    made on request.
    """
    return [
        name
        for name in sorted(by_default())
        if not (traits_of(name).compiles or on_request(catalogue.framework_of(name)))
    ]


def tasks(trial: Trial, extent: Extent, leader: str) -> Iterator[Task]:
    """The tasks of one trial, one for each framework that takes part.

    `leader` is the framework whose worker plants the errors.
    """
    problem = trial.problem
    second = trial.order in SECOND
    plants = trial.regime in extent.planted[problem.dtype]
    if second:
        planted = problem.dtype == PLANTED[0] and trial.regime in PLANTED[1]
        plants = trial.order == "hvp" and planted
    hosts = defaultdict[str, list[str]](list)
    for name in examined():  # the leader also runs NumPy's
        framework = catalogue.framework_of(name)
        hosts[leader if framework == "numpy" else framework].append(name)
    for framework, own in hosts.items():
        leads = framework == leader
        if second and not traits_of(framework).second_order:
            continue
        if problem.dtype in _HALF and not traits_of(framework).half:
            continue
        options: dict[str, Any] = {"backends": own, "planted": leads and plants}
        if second:
            options["seed"] = zlib.crc32(trial.name.encode())
        else:
            options["gradcheck"] = leads and trial.regime in extent.gradcheck
            if options["planted"]:
                options["edits"] = read_mistakes().get(problem.op.name, ())
                asked = (problem.dtype, trial.regime)
                options["diagnosed"] = asked == ("float32", "normal")
        first = next(b for b in own if catalogue.framework_of(b) == framework)
        # The first by name is the framework's autograd.
        yield Task(trial, first, request="examine", options=options)


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
        recording.write(recording.document(scoring.records(score), summary), json_file)
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
    for planted, run in sorted(missed, key=lambda m: -m[1].effect)[:MISSES_SHOWN]:
        what = f"missed: {planted.name} {run.mistake}, effect {run.effect:.2g}"
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
