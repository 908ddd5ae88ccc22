"""The template variables of a machine's first page."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwatch.harness.dashboard.families import families
from gradwatch.harness.dashboard.groups import by_group
from gradwatch.harness.dashboard.machine import FIRST_ORDER, MachineResults, runner_of
from gradwatch.harness.dashboard.matrix import Cells
from gradwatch.harness.dashboard.pages.changed import base_of, changed
from gradwatch.harness.dashboard.series import History, moves
from gradwatch.harness.judging.defects.known import unexpected
from gradwatch.harness.project.git import Commit
from gradwatch.harness.project.records import AgreeRecord

MOST_MOVES = 30  # on this page; the pages of the ops show all


@dataclass(frozen=True)
class Fault:
    """All records of one op, runner and verdict that fail in the same way."""

    first: AgreeRecord
    runner: str
    count: int

    @property
    def repro(self) -> str:
        """The command that reproduces it."""
        command = f"gradwatch agree --case {shlex.quote(self.first.case)}"
        command += f" --backend {shlex.quote(self.first.backend)}"
        if self.first.order != FIRST_ORDER:
            command += f" --order {shlex.quote(self.first.order)}"
        device = self.first.device
        return command if device == "cpu" else f"{command} --device {device}"


def overview(
    here: MachineResults, cells: Cells, history: History, known: Mapping[str, Commit]
) -> dict[str, Any]:
    """The variables of the overview template."""
    records = here.of_all_orders()
    wrong = unexpected(records)
    listed = [r for r in records if r.listed]
    verdicts = Counter(r.verdict for r in records)
    compared = sum(r.distance is not None for r in records)
    return {
        "cells": cells,
        "orders": any(cell.orders for row in cells.values() for cell in row.values()),
        "groups": by_group(cells),
        "families": families(next(iter(cells.values()), {})),
        "tensors": len(records),
        "compared": compared,
        "vacuous": verdicts["vacuous"] / compared if compared else 0.0,
        "verdicts": verdicts,
        "faults": faults(wrong),
        "wrong": len(wrong),
        "defects": faults(listed),
        "headline": _headline(cells),
        "first_look": here.first_look(),
        "in_part": here.in_part(),
        "changes": _changes(here, cells, history, known),
        "moves": moves(history)[:MOST_MOVES],
        "versions": _versions(records),
        "trial": _trial(here),
    }


def faults(records: Sequence[AgreeRecord]) -> list[Fault]:
    """Records grouped by op, runner, order and verdict, each with its worst record."""
    groups: dict[tuple[str, str, str, str], list[AgreeRecord]] = {}
    for record in records:
        runner = runner_of(record.backend, record.device)
        key = (record.op, runner, record.order, record.verdict)
        groups.setdefault(key, []).append(record)
    return [
        Fault(max(group, key=lambda r: r.distance or 0.0), runner, len(group))
        for (_, runner, *_), group in groups.items()
    ]


def _headline(cells: Cells) -> dict[str, int]:
    """Counts of ops: right on every backend that ran, judged, and all."""
    judged = {
        op: [c for c in row.values() if c.verdict not in ("none", "missing")]
        for op, row in cells.items()
    }
    judged = {op: row for op, row in judged.items() if row}
    right = sum(not any(c.wrong or c.astray for c in row) for row in judged.values())
    return {"right": right, "judged": len(judged), "all": len(cells)}


def _trial(here: MachineResults) -> dict[str, Any] | None:
    """The summary of the newest `gradwatch selftest`, and the judges in it."""
    source = here.newest("selftest")
    if source is None or not source.summary.detection:
        return None
    caught = [r.caught for r in source.summary.detection]
    accused = [r.accused for r in source.summary.false_alarms]
    judges = dict.fromkeys(judge for shares in (*caught, *accused) for judge in shares)
    return {"summary": source.summary, "judges": list(judges)}


def _versions(records: Sequence[AgreeRecord]) -> list[tuple[str, str]]:
    """Frameworks and their versions, as the records name them."""
    return sorted({(r.framework, r.framework_version) for r in records})


def _changes(
    here: MachineResults,
    cells: Cells,
    history: History,
    known: Mapping[str, Commit],
) -> list[dict[str, Any]]:
    """What changed since the last commit that was run, and since the last release."""
    releases = {name for name, commit in known.items() if commit.tag}
    place = history.release
    last = len(history.commits) - 2
    return [
        {
            "title": "Since the last commit that was run",
            "base": (base := base_of(here)),
            "verdicts": changed(cells, base) if base else (),
            "since": history.commits[last] if last >= 0 else None,
            "moves": moves(history, last)[:MOST_MOVES] if last >= 0 else (),
        },
        {
            "title": "Since the last release",
            "base": (base := base_of(here, releases)),
            "verdicts": changed(cells, base) if base else (),
            "since": history.commits[place] if place is not None else None,
            "moves": moves(history, place)[:MOST_MOVES] if place is not None else (),
        },
    ]
