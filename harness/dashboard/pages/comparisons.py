"""Data of the comparison page: times and ratios of any two backends or commits.

A side of a comparison is a row of [value, low, high] for each figure, or None.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

from gradwatch.harness.dashboard.machine import MachineResults, runner_of
from gradwatch.harness.dashboard.series import History
from gradwatch.harness.judging.defects.known import as_expected
from gradwatch.harness.project.records import CompareRecord, TimeRecord

Row = list[Any]
Figure = tuple[str, str, str]  # op, the rest of its name, unit

_TURNED = {"faster": "slower", "slower": "faster"}


def comparisons(here: MachineResults) -> dict[str, Any]:
    """The newest times by backend, and the ratios that were measured in turn."""
    sides: dict[str, dict[Figure, Row]] = defaultdict(dict)
    for place, records in here.timed.items():
        if all(map(as_expected, here.judged.get(place, ()))):
            for r in records:
                side = sides[runner_of(r.backend, r.device)]
                side[_figure(r)] = _rounded(r.seconds, r.low, r.high)
    turns: dict[tuple[str, str], dict[Figure, Row]] = defaultdict(dict)
    for c in here.compared:
        ends = (c.ratio, c.low, c.high)
        inverse = (1 / end if end else None for end in (c.ratio, c.high, c.low))
        turned = _TURNED.get(c.verdict, c.verdict)
        turns[c.a, c.b][_figure(c)] = [*_rounded(*ends), _in_turn(c.verdict)]
        turns[c.b, c.a][_figure(c)] = [*_rounded(*inverse), _in_turn(turned)]
    figures = sorted({f for side in (*sides.values(), *turns.values()) for f in side})
    return {
        "figures": figures,
        "sides": {name: [side.get(f) for f in figures] for name, side in sides.items()},
        "turns": [[*ab, [turn.get(f) for f in figures]] for ab, turn in turns.items()],
    }


def _figure(record: TimeRecord | CompareRecord) -> Figure:
    return record.op, f"{record.case} {record.dtype} {record.phase}", "seconds"


def _in_turn(verdict: str) -> str:
    return f"{'B ' if verdict in _TURNED else ''}{verdict}, in turn"


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
