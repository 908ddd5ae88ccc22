"""Make the figures of docs/selftest.md again.

    python scripts/evidence.py [PART]...

The parts between <!-- name --> and <!-- /name --> are replaced; all other text is kept.
Detection: all ops, seed 0. Calibration: the constant is chosen on every other op of
that run, and confirmed on the remaining ops with seed 1. Regimes: other cotangents and
sizes. It takes an hour on two cores.
"""

from __future__ import annotations

import datetime
import functools
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from gradwatch.harness.commands.selftest import per_cent, summarise
from gradwatch.harness.judging.defects import known
from gradwatch.harness.project.documents import replace_file
from gradwatch.harness.project.machines import machine_name
from gradwatch.harness.project.markdown import table
from gradwatch.harness.project.records import SelftestSummary
from gradwatch.harness.selftest.examine import Alarm, Run
from gradwatch.harness.selftest.rivals import GRADCHECKS
from gradwatch.harness.selftest.run import (
    FULL,
    OTHER,
    OTHERS,
    try_judges,
)
from gradwatch.harness.selftest.scoring import JUDGES, Score, listed
from gradwatch.impls import catalogue
from scripts.studies.calibration import (
    CURVES,
    SHIPPED,
    Excess,
    excess,
)
from scripts.studies.detection import chart_detection

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "selftest.md"
JUDGED = tuple(judge for judge in JUDGES if judge not in GRADCHECKS)
PARTS = ("detection", "calibration", "regimes")
EXTENTS = {"full": FULL, "other": OTHER}
PATIENCE = 600.0  # seconds for one trial, beside whatever else the machine does


@click.command()
@click.argument("parts", nargs=-1, type=click.Choice(PARTS))
@click.option("--jobs", default=2, help="Workers that run at the same time.")
def main(parts: tuple[str, ...], jobs: int) -> None:
    """Make all parts, or those that are named."""
    makers: dict[str, Callable[[], dict[str, str]]] = {
        "detection": lambda: detected(jobs),
        "calibration": lambda: {"calibration": calibrated(jobs)},
        "regimes": lambda: {"regimes": regimes(jobs)},
    }
    made: dict[str, str] = {}
    for name in parts or PARTS:
        made |= makers[name]()
    text = PAGE.read_text(encoding="utf-8")
    for name, part in made.items():
        text = replaced(text, name, f"{part}\n\n{_signed(name)}")
    replace_file(PAGE, text)


def detected(jobs: int) -> dict[str, str]:
    """The table of what is caught, by effect; draws the chart."""
    score, seconds = scored("full", tuple(catalogue.op_names()), 0, jobs)
    summary = summarise(score, FULL, seconds=round(seconds, 1))
    chart_detection(summary, PAGE.with_name("detection.svg"))
    return {"detection": detection(summary)}


def calibrated(jobs: int) -> str:
    """The table of the calibration."""
    entries, names = known.load(), tuple(catalogue.op_names())
    score, _ = scored("full", names, 0, jobs)
    others, _ = scored("full", names[1::2], 1, jobs)
    chosen, confirmed = excess(_of(score, names[::2]), entries), excess(others, entries)
    return calibration(chosen, confirmed)


@functools.cache
def scored(
    name: str, ops: tuple[str, ...], seed: int, jobs: int
) -> tuple[Score, float]:
    """The score of these ops, and the seconds that it took."""
    started = time.monotonic()
    asked: dict[str, Any] = {"ops": ops, "seed": seed, "jobs": jobs}
    score = try_judges(EXTENTS[name], timeout=PATIENCE, **asked)
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
    """Machine, date and command of a part."""
    today = datetime.date.today().isoformat()
    return f"`{machine_name()}`, {today}, `python scripts/evidence.py`: {name}."


def _of(score: Score, ops: Sequence[str]) -> Score:
    return Score(
        [(trial, run) for trial, run in score.runs if trial.op in ops],
        [(trial, alarm) for trial, alarm in score.alarms if trial.op in ops],
    )


# Parts --------------------------------------------------------------------------


def detection(summary: SelftestSummary) -> str:
    """Caught and falsely accused shares of all judges, and what is required."""
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
    """Largest honest ratio and what is caught at some constants, on both sets."""
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


def regimes(jobs: int) -> str:
    """What each judge catches and accuses under other cotangents and sizes."""
    score, _ = scored("other", tuple(catalogue.op_names()), 0, jobs)
    entries = known.load()
    caught, accused = [], []
    for regime in OTHERS:
        runs = [run for trial, run in score.counted if trial.regime == regime]
        alarms = [
            alarm
            for trial, alarm in score.alarms
            if trial.regime == regime and not listed(trial, alarm, entries)
        ]
        caught.append([regime, len(runs), *_by_judge(runs)])
        accused.append([regime, len(alarms), *_by_judge(alarms)])
    return "\n\n".join(
        (
            *("Caught, in per cent:", table(["", "runs", *JUDGED], caught)),
            "Right tensors accused, in per cent:",
            table(["", "tensors", *JUDGED], accused),
        )
    )


def _by_judge(runs: Sequence[Run] | Sequence[Alarm]) -> list[str]:
    """The share of runs that each judge rejects."""
    rejecting = Counter(judge for run in runs for judge in run.accused_by)
    return [per_cent(rejecting[j] / len(runs) if runs else None) for j in JUDGED]


def _shares(shares: dict[str, float]) -> list[str]:
    return [per_cent(shares.get(judge)) for judge in JUDGES]


if __name__ == "__main__":
    main()
