"""Make the figures of docs/selftest.md again.

    python scripts/evidence.py [PART]...

The parts between <!-- name --> and <!-- /name --> are replaced; all other text is kept.
Detection: all ops, seed 0. Calibration: the constant is chosen on every other op of
that run, and confirmed on the remaining ops with seed 1. It takes an hour on two cores.
"""

from __future__ import annotations

import datetime
import functools
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.commands.selftest import FULL, per_cent, summarise, try_judges
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.orders import ORDERS
from gradwatch.harness.judging.rounding.analysis import limit_for
from gradwatch.harness.project.documents import replace_file
from gradwatch.harness.project.machines import machine_name
from gradwatch.harness.project.markdown import table
from gradwatch.harness.project.records import SelftestSummary
from gradwatch.harness.selftest.examine import JUDGE
from gradwatch.harness.selftest.scoring import GOALS, JUDGES, Score, listed
from gradwatch.impls import catalogue
from scripts.studies.detection import chart_detection

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "selftest.md"
PARTS = ("detection", "calibration")
#: A ratio beyond c + sqrt(n)/2 is a wrong gradient: `limit_for`, with the shipped c.
SHIPPED = limit_for(0)
#: The bands in which a larger constant could catch fewer errors.
CURVES = tuple(goal for goal in GOALS if goal.dtype in ("float64", "float32"))
PATIENCE = 600.0  # seconds for one trial, also on a busy machine


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(PARTS))
@click.option("--jobs", default=2, help="Workers that run at the same time.")
def main(parts: tuple[str, ...], jobs: int) -> None:
    """Make all parts, or those that are named."""
    makers = {"detection": detected, "calibration": calibrated}
    text = PAGE.read_text(encoding="utf-8")
    for name in parts or PARTS:
        text = replaced(text, name, f"{makers[name](jobs)}\n\n{_signed(name)}")
    replace_file(PAGE, text)


def detected(jobs: int) -> str:
    """Draw the chart, and return the table of caught errors by effect."""
    score, seconds = scored(tuple(catalogue.op_names()), 0, jobs)
    summary = summarise(score, FULL, seconds=round(seconds, 1))
    chart_detection(summary, PAGE.with_name("detection.svg"))
    return detection(summary)


@dataclass(frozen=True)
class Excess:
    """Ratios less their allowance for the length of sums, sqrt(n)/2.

    `right` holds those of right tensors; `wrong[i]` those of the planted errors in the
    band `CURVES[i]`.
    """

    right: NDArray[np.float64]
    wrong: Sequence[NDArray[np.float64]]

    @property
    def largest_right(self) -> float:
        """The smallest constant that accuses no right tensor."""
        return float(self.right.max(initial=0.0))


def excess(score: Score, entries: Sequence[known.Known]) -> Excess:
    """The ratios of a selftest, without listed framework defects.

    An `imprecise` tensor is excused by another rule, whatever its ratio, and left out.
    """
    right = [
        alarm.ratio - (alarm.limit - SHIPPED)
        for trial, alarm in score.alarms
        if JUDGE in alarm.asked
        and alarm.verdict != "imprecise"
        and not listed(trial, alarm, entries)
    ]
    wrong = [
        [
            run.ratio - (run.limit - SHIPPED)
            for trial, run in score.counted
            if trial.problem.dtype == wanted.dtype and wanted.speaks_of(run)
        ]
        for wanted in CURVES
    ]
    return Excess(np.array([r for r in right if r == r]), [*map(np.array, wrong)])


def calibrated(jobs: int) -> str:
    """The table of the calibration."""
    entries, names = known.load(), tuple(catalogue.op_names())
    runs = (names, 0), (names[1::2], 1)
    score, others = (scored(ops, seed, jobs)[0].of(ORDERS[0]) for ops, seed in runs)
    chosen, confirmed = excess(_of(score, names[::2]), entries), excess(others, entries)
    return calibration(chosen, confirmed)


@functools.cache
def scored(ops: tuple[str, ...], seed: int, jobs: int) -> tuple[Score, float]:
    """The score of some ops, and the seconds of its self-test."""
    started = time.monotonic()
    asked: dict[str, Any] = {"ops": ops, "seed": seed, "jobs": jobs}
    score = try_judges(FULL, timeout=PATIENCE, **asked)
    return score, time.monotonic() - started


def replaced(text: str, name: str, part: str) -> str:
    """The page with the part between the marks of that name replaced.

    Raises:
        ValueError: The page has no such marks.
    """
    marks = re.compile(f"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.S)
    if not marks.search(text):
        raise ValueError(f"no <!-- {name} --> in the page")
    return marks.sub(lambda match: f"{match[1]}\n{part}\n\n{match[2]}", text)


def _signed(name: str) -> str:
    """The line with machine, date and command of a part."""
    today = datetime.date.today().isoformat()
    return f"`{machine_name()}`, {today}, `python scripts/evidence.py`: {name}."


def _of(score: Score, ops: Sequence[str]) -> Score:
    return Score(
        [(trial, run) for trial, run in score.runs if trial.op in ops],
        [(trial, alarm) for trial, alarm in score.alarms if trial.op in ops],
    )


# Parts --------------------------------------------------------------------------


def detection(summary: SelftestSummary) -> str:
    """The tables of caught and falsely accused shares, and the requirements."""
    head = ["precision", "effect", "runs", *JUDGES]
    caught = [
        [r.dtype, r.effect, r.runs, *_shares(r.caught)] for r in summary.detection
    ]
    accused = [
        [r.dtype, "right tensors", r.tensors, *_shares(r.accused)]
        for r in summary.false_alarms
    ]
    required = [
        f"- {r.required}: {r.found}{'' if r.met else ' (not met)'}"
        for r in summary.requirements
    ]
    counts = (
        f"{summary.planted} planted errors over {summary.ops} ops, "
        f"{summary.runs} runs of which {summary.counted} count; "
        f"{summary.seconds} s."
    )
    blocks = (
        *("Caught, in per cent:", table(head, caught)),
        *("Right tensors accused, in per cent:", table(head, accused)),
        *("What is required of the judge:", "\n".join(required), counts),
    )
    return "\n\n".join(blocks)


def calibration(chosen: Excess, confirmed: Excess) -> str:
    """The table of the largest right ratio and the caught shares at some constants."""
    constants = [SHIPPED / 4, SHIPPED / 2, SHIPPED, SHIPPED * 2, SHIPPED * 16]
    head = ["set", "right tensors", "largest c that accuses one", "planted errors"]
    rows = []
    for name, ratios in (("chosen on", chosen), ("confirmed on", confirmed)):
        for i, wanted in enumerate(CURVES):
            shares = [per_cent((ratios.wrong[i] > c).mean()) for c in constants]
            what = str(wanted).partition(":")[0]
            largest = f"{ratios.largest_right:.1f}"
            rows.append([name, ratios.right.size, largest, what, *shares])
    return table([*head, *(f"caught at c = {c:g}, %" for c in constants)], rows)


def _shares(shares: dict[str, float]) -> list[str]:
    return [per_cent(shares.get(judge)) for judge in JUDGES]


if __name__ == "__main__":
    main()
