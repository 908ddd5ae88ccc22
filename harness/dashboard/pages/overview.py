"""The template variables of a machine's first page."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwatch.harness.dashboard.families import families
from gradwatch.harness.dashboard.machine import (
    FIRST_ORDER,
    MachineResults,
    machine_results,
    runner_of,
)
from gradwatch.harness.dashboard.matrix import Cell, Cells, matrix
from gradwatch.harness.dashboard.op_source import by_group
from gradwatch.harness.dashboard.series import History, moves
from gradwatch.harness.dashboard.sources import Results, Source
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
        "defects": faults([r for r in records if r.listed]),
        "headline": _headline(cells),
        "first_look": here.first_looks(),
        "in_part": here.in_part(),
        "changes": [*_changes(here, cells, history, known)],
        "moves": moves(history)[:MOST_MOVES],
        "versions": sorted({(r.framework, r.framework_version) for r in records}),
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


def _changes(
    here: MachineResults, cells: Cells, history: History, known: Mapping[str, Commit]
) -> Iterator[dict[str, Any]]:
    """What changed since the last commit that was run, and since the last release."""
    releases = {name for name, commit in known.items() if commit.tag}
    last = len(history.commits) - 2
    for title, among, place in (
        ("Since the last commit that was run", None, last if last >= 0 else None),
        ("Since the last release", releases, history.release),
    ):
        base = _base(here, among)
        yield {
            "title": title,
            "base": base,
            "verdicts": _changed(cells, base) if base else (),
            "since": None if place is None else history.commits[place],
            "moves": () if place is None else moves(history, place)[:MOST_MOVES],
        }


def _base(here: MachineResults, among: Collection[str] | None) -> Source | None:
    """The newest `agree` document of a commit before the newest one.

    A first look and a whole run are not compared. `among` restricts the
    choice to these commits, such as releases.
    """
    runs = [source for source in here.sources if source.kind == "agree"]
    for source in runs:
        commit, head = source.environment.commit, runs[0]
        alike = source.summary.first_case == head.summary.first_case
        earlier = commit != head.environment.commit
        if earlier and alike and (among is None or commit in among):
            return source
    return None


def _changed(now: Cells, base: Source) -> list[tuple[Cell, Cell]]:
    """Cells whose verdict or number of unexpected tensors changed, before and after."""
    then = matrix(machine_results(Results([base]), base.machine))
    return [
        (before, after)
        for op, row in now.items()
        for runner, after in row.items()
        if (before := then.get(op, {}).get(runner)) is not None
        and before.verdict not in ("none", "missing")
        and (before.verdict, before.unexpected) != (after.verdict, after.unexpected)
    ]
