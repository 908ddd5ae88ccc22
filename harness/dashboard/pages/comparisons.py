"""Data of the comparison page: times and ratios of any two backends or commits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.dashboard.series import History, Series, brief
from gradwatch.harness.dashboard.standing import Standing, runner_of
from gradwatch.harness.judging.known import as_expected
from gradwatch.harness.project.records import AgreeRecord, CompareRecord

Row = list[Any]

#: Columns of a row of times; the page compares the rows that two runners share.
TIMES = ("op", "case", "dtype", "phase", "runner", "seconds", "low", "high")
#: Columns of a ratio that was measured in turn; its interval is narrower.
RATIOS = ("op", "case", "dtype", "phase", "a", "b", "ratio", "low", "high", "verdict")
#: Columns that identify a figure of a commit.
FIGURES = ("op", "line", "view", "unit")


def comparisons(here: Standing) -> dict[str, Any]:
    """The newest times and ratios, as the comparison page needs them."""
    wrong = {place for place, rs in here.judged.items() if not _right(rs)}
    times = [
        [r.op, r.case, r.dtype, r.phase, runner_of(r.backend, r.device)]
        + [_brief(value) for value in (r.seconds, r.low, r.high)]
        for place, records in here.timed.items()
        if place not in wrong
        for r in records
    ]
    return {"times": times, "ratios": list(_ratios(here.compared))}


def _ratios(records: Iterable[CompareRecord]) -> Iterable[Row]:
    for r in records:
        names = (r.op, r.case, r.dtype, r.phase, r.a, r.b)
        yield [*names, *map(_brief, (r.ratio, r.low, r.high)), r.verdict]


def _right(records: Iterable[AgreeRecord]) -> bool:
    return all(as_expected(r) for r in records)


def figures_of(history: History) -> list[Row]:
    """What each figure of a commit measures, in the order of `at_commits`."""
    return [[s.op, s.line, s.view, s.unit] for s in history.series]


def at_commits(
    history: History, places: Sequence[int]
) -> Iterator[tuple[int, list[Row | None]]]:
    """Value and interval of each series at each of some commits; None if not measured.

    Yields the index of the commit and its rows.
    """
    columns = [list(_rows(series, np.array(places))) for series in history.series]
    for i, place in enumerate(places):
        rows = [column[i] for column in columns]
        yield place, [None if math.isnan(row[0]) else [*row] for row in rows]


def _rows(
    series: Series, places: NDArray[np.int64]
) -> Iterator[tuple[float, float, float]]:
    columns = (series.values, series.low, series.high)
    return zip(*(brief(column[places], 5) for column in columns), strict=True)


def _brief(value: float | None) -> float | None:
    """A value with five digits: more would be noise and double the file's size."""
    return None if value is None else float(f"{value:.5g}")
