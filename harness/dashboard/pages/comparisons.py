"""Data of the comparison page: times and ratios of any two backends or commits.

A side of a comparison is a row of [value, low, high] for each figure, or None.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from gradwatch.harness.dashboard.machine import MachineResults, runner_of
from gradwatch.harness.dashboard.series import History
from gradwatch.harness.judging.defects.known import as_expected
from gradwatch.harness.project.records import AgreeRecord, CompareRecord, TimeRecord

Row = list[Any]
Figure = tuple[str, str, str]  # op, the rest of its name, unit

_TURNED = {"faster": "slower", "slower": "faster"}


def comparisons(here: MachineResults) -> dict[str, Any]:
    """The newest times by backend, and the ratios that were measured in turn."""
    wrong = {place for place, rs in here.judged.items() if not _right(rs)}
    sides: dict[str, dict[Figure, Row]] = defaultdict(dict)
    for place, records in here.timed.items():
        if place not in wrong:
            for r in records:
                runner = runner_of(r.backend, r.device)
                sides[runner][_figure(r)] = _rounded(r.seconds, r.low, r.high)
    turns: dict[tuple[str, str], dict[Figure, Row]] = defaultdict(dict)
    for c in here.compared:
        ends = _inverse(c.ratio), _inverse(c.high), _inverse(c.low)
        turned = _TURNED.get(c.verdict, c.verdict)
        turns[c.a, c.b][_figure(c)] = [*_rounded(c.ratio, c.low, c.high), _in_turn(c)]
        turns[c.b, c.a][_figure(c)] = [*_rounded(*ends), _in_turn(c, turned)]
    figures = sorted({f for side in (*sides.values(), *turns.values()) for f in side})
    return {
        "figures": figures,
        "sides": {name: [side.get(f) for f in figures] for name, side in sides.items()},
        "turns": [[*ab, [turn.get(f) for f in figures]] for ab, turn in turns.items()],
    }


def _figure(record: TimeRecord | CompareRecord) -> Figure:
    return record.op, f"{record.case} {record.dtype} {record.phase}", "seconds"


def _in_turn(record: CompareRecord, verdict: str = "") -> str:
    verdict = verdict or record.verdict
    return f"{'B ' if verdict in _TURNED else ''}{verdict}, in turn"


def _inverse(ratio: float | None) -> float | None:
    return 1 / ratio if ratio else None


def _right(records: Iterable[AgreeRecord]) -> bool:
    return all(as_expected(r) for r in records)


def figures_of(history: History) -> list[Figure]:
    """What each figure of a commit measures, in the order of `figures_at`."""
    return [(s.op, f"{s.line}, {s.view}", s.unit) for s in history.series]


def figures_at(history: History, place: int) -> list[Row | None]:
    """Value and interval of each series at a commit; None if not measured."""
    rows = ([s.values[place], s.low[place], s.high[place]] for s in history.series)
    return [None if math.isnan(row[0]) else _rounded(*row) for row in rows]


def _rounded(*values: float | None) -> Row:
    """Values with five digits: more would be noise and double the file's size."""
    return [
        None if value is None or math.isnan(value) else float(f"{value:.5g}")
        for value in values
    ]
