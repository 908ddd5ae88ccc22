"""Compares `find_changes` with other change detectors, on the same planted series.

    python -m scripts.studies.changes [--seed N] [--quick] [--markdown FILE]

Every detector runs with its default setting ("by size": with a common one), and with
the most sensitive setting that alarms on at most 5 % of the stable series of a tuning
split. All scores come from a test split with other seeds. A detector whose package is
missing is skipped with the reason. Apache Otava pins an old NumPy, so install it with
`pip install --no-deps --target DIR apache-otava`, and put DIR on PYTHONPATH.
"""

from __future__ import annotations

import datetime
import importlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, TypeVar

import click
import numpy as np

from gradwatch.harness.history.changepoints import Change, find_changes
from gradwatch.harness.project.markdown import table
from gradwatch.harness.timing.compare import LEAST, PAIRS
from gradwatch.harness.timing.samples import LEVEL, Estimate, verdict_on
from gradwatch.harness.watch.search import OFF
from scripts.studies.planted_series import (
    SIZES,
    Begin,
    Detector,
    Planted,
    Report,
    Score,
    Values,
    collection,
    night_by_night,
    score,
    short,
)

T = TypeVar("T")
Setting = tuple[str, Detector]

TUNING_SEED = 2  # the constants of `find_changes` come from this split
NULL_ALARMED = 0.05  # "tuned": at most this share of stable series alarms
OURS, COMPARED = "**find_changes**", "find_changes, each compared live"
MOST_FALSE = {OURS: 3.0, COMPARED: 0.5}  # per 1000 nights
LENGTHS = (5, 8, 12, 20, 35, 500, 1000, 2000)  # runs
SOON = 0.75  # of the 10 % steps, at least, are suspected within 3 nights


@dataclass(frozen=True)
class Candidate:
    """A detector with one setting: `ladder` lists it from loose to strict."""

    name: str
    package: str
    detect: Callable[..., list[Report]]  # of values, with a `setting`
    default: float
    ladder: tuple[float, ...]


def ours(values: Values) -> list[Report]:
    """`find_changes`; it has no setting."""
    return [(c.index, c.relative_change) for c in find_changes(values)]


def confirmed(values: Values) -> list[Report]:
    """The changes that fail without a comparison."""
    found = find_changes(values)
    return [(c.index, c.relative_change) for c in found if not c.suspected]


#: Forty comparisons of a commit with itself by `gradwatch compare` (docs/timing.md), on
#: cpu-2core, beside other work on one core: PyTorch's layer_norm backward. Each that is
#: simulated draws one of them, about the truth.
RECORDED = np.log(
    np.loadtxt(Path(__file__).with_name("compared.csv"), delimiter=",", skiprows=1)
)


class Live:
    """`find_changes` on one series as it grows, as `gradwatch watch --confirm` fails.

    steps: the true steps of the series, which decide its comparisons.
    """

    def __init__(self, steps: Sequence[Report], rng: np.random.Generator) -> None:
        self.steps = steps
        self.rng = rng
        self.kept: dict[int, Estimate] = {}

    def __call__(self, values: Values) -> list[Report]:
        found = find_changes(values)
        return [(c.index, c.relative_change) for c in found if self._fails(c)]

    def _fails(self, change: Change) -> bool:
        if change.index not in self.kept:
            true = math.prod(
                1 + size for at, size in self.steps if abs(at - change.index) <= OFF
            )
            value, low, high = true * np.exp(self.rng.choice(RECORDED))
            self.kept[change.index] = Estimate(value, low, high, PAIRS, LEVEL)
        ratio = self.kept[change.index]
        verdict = verdict_on(ratio, None, same=LEAST)
        if verdict == "not resolved":
            larger = max(ratio.value, 1 / ratio.value)
            return not change.suspected and larger > 1 + LEAST
        return verdict == ("slower" if change.worse else "faster")


def asv_steps(values: Values, setting: float) -> list[Report]:
    """Report each step of asv's piecewise fit that has at least this size."""
    from asv.step_detect import detect_steps

    steps = detect_steps(values.tolist())
    reports = [(b[0], b[2] / a[2] - 1) for a, b in pairwise(steps)]
    return [report for report in reports if abs(report[1]) >= setting]


def _levels(values: Values, cuts: list[int]) -> list[Report]:
    """Turn cuts into reports by the medians of the segments."""
    ends = [0, *cuts, len(values)]
    medians = [np.median(values[a:b]) for a, b in pairwise(ends)]
    return [(cut, medians[i + 1] / medians[i] - 1) for i, cut in enumerate(cuts)]


def rbf(values: Values, setting: float = 1.0) -> list[Report]:
    """Cut by ruptures' Gaussian-kernel cost; the penalty is `setting` times ln n."""
    import ruptures

    if len(values) < 6:  # two segments of three, or it raises
        return []
    model = ruptures.KernelCPD(kernel="rbf", min_size=3).fit(values.reshape(-1, 1))
    return _levels(values, model.predict(pen=setting * np.log(len(values)))[:-1])


def otava(values: Values, setting: float) -> list[Report]:
    """Run Apache Otava's E-divisive with Student's t; wants a plain list."""
    from otava.analysis import compute_change_points

    points, _ = compute_change_points(values.tolist(), max_pvalue=setting)
    return [(int(p.index), p.stats.mean_2 / p.stats.mean_1 - 1) for p in points]


def rbf_by_size(values: Values, setting: float) -> list[Report]:
    """The same cuts, of which those count that have at least this size."""
    return [report for report in rbf(values) if abs(report[1]) >= setting]


SIZES_ASKED = (0.0, 0.01, 0.02, 0.03, 0.04, 0.05, 0.07, 0.1, 0.15)
CANDIDATES = (
    Candidate("asv steps", "asv", asv_steps, 0.0, SIZES_ASKED),
    Candidate("ruptures rbf", "ruptures", rbf, 1.0, (1.0, 1.5, 2, 3, 4, 5, 6, 8)),
    Candidate("ruptures rbf by size", "ruptures", rbf_by_size, 0.03, SIZES_ASKED),
    Candidate(
        "Otava", "otava", otava, 1e-3, (1e-3, 1e-5, 1e-7, 1e-9, 1e-11, 1e-13, 1e-16)
    ),
)


def _installed(candidate: Candidate) -> bool:
    try:
        importlib.import_module(candidate.package)
    except ImportError as error:
        click.echo(f"skipped: {candidate.name}: {error}", err=True)
        return False
    return True


def _tuned(candidate: Candidate, stable: list[Planted]) -> float | None:
    """Find the loosest setting that alarms on at most 5 % of the tuning series."""
    for setting in candidate.ladder:
        alarmed = sum(bool(candidate.detect(p.values, setting=setting)) for p in stable)
        if alarmed <= NULL_ALARMED * len(stable):
            return setting
    return None


def _settings(stable: list[Planted]) -> Iterator[Setting]:
    """Name and bind each detector at its settings, ours first."""
    yield OURS, ours
    for candidate in filter(_installed, CANDIDATES):
        name, detect = candidate.name, candidate.detect
        plain = partial(detect, setting=candidate.default)
        yield f"{name}, {candidate.default:g}", plain
        tuned = _tuned(candidate, stable)
        if tuned is not None and tuned != candidate.default:
            yield f"{name}, tuned {tuned:g}", partial(detect, setting=tuned)


def _percent(*shares: float) -> str:
    return "/".join(f"{100 * share:.0f}" for share in shares)


def _row(name: str, result: Score, milliseconds: float) -> tuple[str, ...]:
    return (
        name,
        _percent(result.precision),
        _percent(*result.recall.values()),
        _percent(*list(result.recent.values())[1:]),
        f"{result.place_error:.2f} ({_percent(result.exact)})",
        f"{100 * result.alarmed:.1f}",
        f"{100 * result.alarms:.0f}",
        f"{milliseconds:.1f}",
    )


def _each(
    told: str, work: Callable[..., T], calls: Iterable[tuple[Any, ...]]
) -> list[T]:
    """Run all calls on all cores; print a line for each finished detector."""
    with ProcessPoolExecutor() as pool:
        asked = {pool.submit(work, *call): call[0] for call in calls}
        for done in as_completed(asked):
            click.echo(f"{told}: {asked[done]}", err=True)
    return [done.result() for done in asked]


def _scored(
    name: str, detector: Detector, series: list[Planted]
) -> tuple[tuple[str, ...], Score]:
    """A detector's row in the table of complete histories."""
    began = time.process_time()
    result = score(detector, series)
    elapsed = 1000 * (time.process_time() - began) / len(series)
    return _row(name, result, elapsed), result


def _complete(settings: list[Setting], series: list[Planted]) -> tuple[str, Score]:
    """Score everything on complete histories."""
    calls = [(name, detector, series) for name, detector in settings]
    rows, scores = zip(*_each("complete", _scored, calls), strict=True)
    head = (
        "detector, setting",
        "precision %",
        "recall 2/5/10/20 % steps",
        "recent 5/10/20 %",
        "mean place error, runs (exact %)",
        "stable series alarmed %",
        "alarms per 100 stable",
        "CPU ms a series",
    )
    return "## Complete histories\n\n" + table(head, rows) + "\n", scores[0]


def _of_nights(
    name: str, begin: Begin, seed: int, repeats: int
) -> tuple[tuple[str, ...], list[str]]:
    """A detector's row, and the targets that it misses."""
    false, found = night_by_night(begin, seed, repeats)
    shares = (_percent(*(found[s][n] for s in SIZES[1:])) for n in (3, 7, 15))
    missed = []
    if false > MOST_FALSE.get(name, math.inf):
        missed.append(f"{name}: {MOST_FALSE[name]:g} false alerts per 1000 nights")
    if name == OURS and found[0.10][3] < SOON:
        missed.append(f"{SOON:.0%} of 10 % steps within 3 nights")
    return (name, f"{false:.1f}", *shares), missed


def _nightly(settings: list[Setting], seed: int, repeats: int) -> tuple[str, list[str]]:
    """The table, and the missed targets."""
    begins: dict[str, Begin] = {
        name: partial(_always, detector) for name, detector in settings
    }
    begins["find_changes, not suspected only"] = partial(_always, confirmed)
    begins[COMPARED] = partial(Live, rng=np.random.default_rng(seed))
    calls = [(name, begin, seed, repeats) for name, begin in begins.items()]
    rows, missed = zip(*_each("nights", _of_nights, calls), strict=True)
    head = (
        "detector, setting",
        "false alerts per 1000 nights",
        "5/10/20 % steps within 3 nights",
        "within 7",
        "within 15",
    )
    return "\n## Night by night\n\n" + table(head, rows) + "\n", [*chain(*missed)]


def _always(detector: Detector, steps: Sequence[Report]) -> Detector:
    return detector


def _of_lengths(
    name: str, detector: Detector, lengths: Sequence[int], seed: int, repeats: int
) -> tuple[str, ...]:
    """A detector's row: the share that it finds in series of each length."""
    cells = []
    for n in lengths:
        alarmed, found = short(detector, n, seed, repeats)
        cells.append(f"{_percent(*found.values())} ({_percent(alarmed)})")
    return (name, *cells)


def _lengths(
    settings: list[Setting], lengths: Sequence[int], seed: int, repeats: int
) -> str:
    calls = [(n, d, lengths, seed, repeats) for n, d in settings]
    rows = _each("short", _of_lengths, calls)
    head = ("detector, setting", *(f"{n} runs" for n in lengths))
    told = "\n## Short: 5/10/20 % steps found (stable series alarmed), %\n\n"
    return told + table(head, rows) + "\n"


@click.command()
@click.option("--seed", default=101, show_default=True, help="of the test split")
@click.option(
    "--quick", is_flag=True, help="a tenth of the series, too few for the targets"
)
@click.option("--machine", default="this machine", help="its name in the table")
@click.option(
    "--markdown", type=click.Path(path_type=Path), help="write the table here"
)
def main(seed: int, quick: bool, machine: str, markdown: Path | None) -> None:
    """Score change detectors on planted series; exit 1 if a target is missed."""
    if seed == TUNING_SEED:
        raise click.UsageError(f"seed {seed} is the tuning split")
    repeats, nulls = (1, 10) if quick else (10, 100)
    tuning = [p for p in collection(TUNING_SEED, 0, nulls) if p.kind == "null"]
    settings = list(_settings(tuning))
    series = collection(seed, repeats, nulls)
    complete, result = _complete(settings, series)
    nightly, loud = _nightly(settings, seed + 1, 1 if quick else 16)
    missed = [*result.shortfalls, *loud]
    text = (
        f"Machine `{machine}`, {datetime.date.today()}, seed {seed}, "
        f"{len(series)} series of 60 to 300 runs.\n\n{complete}"
        + nightly
        + _lengths(settings, LENGTHS, seed + 2, 10 if quick else 50)
    )
    text += f"\nTargets that find_changes misses: {', '.join(missed) or 'none'}.\n"
    click.echo(text)
    if markdown:
        markdown.write_text(text, encoding="utf-8")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
