"""The template variables of an op's page, and the data of its charts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from gradwatch.harness.agreement.overall import grouped, overall
from gradwatch.harness.dashboard import charts
from gradwatch.harness.dashboard.charts import Chart, Looks
from gradwatch.harness.dashboard.families import dialect_of, families, family_of
from gradwatch.harness.dashboard.machine import FIRST_ORDER as VJP
from gradwatch.harness.dashboard.machine import MachineResults, runner_of
from gradwatch.harness.dashboard.matrix import Cell
from gradwatch.harness.dashboard.op_source import op_source
from gradwatch.harness.dashboard.pages.overview import faults
from gradwatch.harness.dashboard.series import History, Series, moves
from gradwatch.harness.judging.defects.known import as_expected
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.timing.trial import PHASES
from gradwatch.impls.catalogue import op_names


def op_page(
    op: str, row: Mapping[str, Cell], here: MachineResults, history: History
) -> dict[str, Any]:
    """The variables of the op template; no time is shown of the `hidden` cells."""
    row = {runner: cell for runner, cell in row.items() if runner in here.ran}
    records = here.records(op)
    judged = {
        runner: first
        for runner in row
        if (first := [r for r in here.judged.get((op, runner), ()) if r.order == VJP])
    }
    cells = {r: cell for r, cell in row.items() if (op, r) in here.timed}
    timed = {r: here.timed[op, r] for r, cell in cells.items() if not cell.wrong}
    times = list(chain(*timed.values()))
    series = [one for one in history.series if one.op == op]
    views: dict[str, list[Series]] = {}  # those of the backward pass first
    for one in sorted(series, key=lambda s: (s.view[:8] != "backward", s.view)):
        views.setdefault(one.view, []).append(one)
    return {
        "op": op,
        "row": row,
        "families": families(row),
        "exists": op in op_names(),
        "judged": judged,
        "tables": _agreement_tables(judged, here.regimes),
        "pairs": _pair_matrix(here.pairs(op)),
        "faults": faults([r for r in records if not as_expected(r)], history),
        "defects": faults([r for r in records if r.listed]),
        "timed": timed,
        "times": times,
        "threads": sorted({r.threads for r in times if r.threads is not None}),
        "hidden": [cell for cell in cells.values() if cell.wrong],
        "series": series,
        "views": views,
        "default": _default([one.line for one in series]),
        "steps": [m for m in moves(history) if m.series.op == op],
        "findings": [found for found in here.findings if found.about.record.op == op],
        "source": op_source(op),
    }


def _default(lines: Sequence[str]) -> list[str]:
    """What a history shows at first: PyTorch's own gradient, and the project's."""
    torch = [line for line in lines if family_of(line).startswith("torch")]
    own = [one for one in torch if dialect_of(one).startswith(("autograd", "custom"))]
    return own if len(own) > 1 else torch or list(lines)


def _pair_matrix(pairs: Mapping[str, Mapping[str, float | None]]) -> dict[str, Any]:
    """Both halves of the matrix: rows and columns in the same order."""
    both: dict[str, dict[str, float]] = defaultdict(dict)
    for a, row in pairs.items():
        for b, ratio in row.items():
            both[a][b] = both[b][a] = float("inf") if ratio is None else float(ratio)
    grouped = families(both)
    names = [name for family in grouped for name in family.runners]
    return {"names": names, "families": grouped, "ratios": both}


def _agreement_tables(
    judged: Mapping[str, Sequence[AgreeRecord]], regimes: Sequence[str]
) -> dict[str, dict[str, list[AgreeRecord | None]]]:
    """By dtype and regime, the worst record of each runner."""
    places = grouped(chain(*judged.values()), lambda r: (r.dtype, r.regime))
    tables = defaultdict[str, dict[str, list[AgreeRecord | None]]](dict)
    for dtype, regime in sorted(places, key=lambda p: (p[0], regimes.index(p[1]))):
        row = grouped(places[dtype, regime], lambda r: runner_of(r.backend, r.device))
        worst = {runner: overall(several).worst for runner, several in row.items()}
        tables[dtype][regime] = [worst.get(runner) for runner in judged]
    return tables


def drawn(page: Mapping[str, Any], history: History, looks: Looks) -> dict[str, Chart]:
    """The charts of a page, by the name of their place on it.

    `looks` are the styles of the runners, and of the lines of the history.
    """
    made: dict[str, Chart | None] = {}
    for dtype in sorted({r.dtype for r in page["times"]}):
        for phase in PHASES:
            chart = charts.times(page["timed"], dtype, phase, looks)
            made[f"times-{dtype}-{phase}"] = chart
    for number, several in enumerate(page["views"].values()):
        made[f"history-{number}"] = charts.history(several, history.commits, looks)
    return {name: chart for name, chart in made.items() if chart is not None}
