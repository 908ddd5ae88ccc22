"""Ratios of the times of any two backends, with their intervals."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.dashboard.series import History
from harness.dashboard.sources import Record
from harness.dashboard.standing import Standing, runner_of
from harness.judging.known import as_expected

Row = list[Any]

#: Columns of a row of times; a page compares two runners by what the rows share.
TIMES = ("op", "case", "dtype", "phase", "runner", "seconds", "low", "high")
#: Columns of a ratio that was measured in turn, which is narrower than two times.
RATIOS = ("op", "case", "dtype", "phase", "a", "b", "ratio", "low", "high", "verdict")
#: Columns of what a commit's figures are of.
FIGURES = ("op", "line", "view", "unit")


def comparisons(here: Standing) -> dict[str, Any]:
    """What the comparison page needs of the newest times and ratios."""
    wrong = {place for place, rs in here.judged.items() if not _right(rs)}
    times = [
        [r["op"], r["case"], r["dtype"], r["phase"], runner_of(r)]
        + [_brief(r[name]) for name in ("seconds", "low", "high")]
        for place, records in here.timed.items()
        if place not in wrong
        for r in records
    ]
    return {"times": times, "ratios": list(_ratios(here.compared))}


def _ratios(records: Iterable[Record]) -> Iterable[Row]:
    for r in records:
        names = [r[name] for name in ("op", "case", "dtype", "phase", "a", "b")]
        yield [*names, *(_brief(r[n]) for n in ("ratio", "low", "high")), r["verdict"]]


def _right(records: Iterable[Record]) -> bool:
    return all(as_expected(r) for r in records)


def figures_of(history: History) -> list[Row]:
    """What each figure of a commit is of, in the order of `at_commit`."""
    return [[s.op, s.line, s.view, s.unit] for s in history.series]


def at_commit(history: History, place: int) -> list[Row | None]:
    """Value and interval of each series at a commit; None where not measured."""
    return [
        None
        if s.values[place] is None
        else [_brief(s.values[place]), _brief(s.low[place]), _brief(s.high[place])]
        for s in history.series
    ]


def _brief(value: float | None) -> float | None:
    """Five digits: more are noise, and would double the size of the file."""
    return None if value is None else float(f"{value:.5g}")
