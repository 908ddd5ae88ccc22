"""The template variables of an op's page, and the data of its charts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import Any

from gradwatch.harness.dashboard import charts
from gradwatch.harness.dashboard.charts import Chart, Looks
from gradwatch.harness.dashboard.dialects import Dialect, dialects, highlighted
from gradwatch.harness.dashboard.families import families
from gradwatch.harness.dashboard.machine import MachineResults
from gradwatch.harness.dashboard.matrix import Cell, short
from gradwatch.harness.dashboard.pages.overview import faults
from gradwatch.harness.dashboard.series import History, Series
from gradwatch.harness.dashboard.sources import Finding
from gradwatch.harness.judging.cases import REGIMES
from gradwatch.harness.judging.defects.known import as_expected
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.project.verdicts import SIGNS
from gradwatch.impls import catalogue
from gradwatch.impls.catalogue import op_names

#: Charts of times: one for each pass and precision.
PHASES = ("forward", "backward")


def op_page(
    op: str, row: Mapping[str, Cell], here: MachineResults, history: History
) -> dict[str, Any]:
    """The variables of the op template."""
    exists = op in op_names()
    series = history.by_op.get(op, [])
    return {
        "op": op,
        "row": row,
        "families": families(row),
        "exists": exists,
        **_verdicts(op, row, here),
        **_times(op, row, here),
        "series": series,
        "views": _views(series),
        "steps": [(s, c) for s in series for c in s.changes],
        "findings": [_shown(f) for f in here.findings if f.op == op],
        **(_source(op) if exists else {"title": "", "source": ""}),
    }


def _verdicts(op: str, row: Mapping[str, Cell], here: MachineResults) -> dict[str, Any]:
    judged = {r: here.judged[op, r] for r in row if (op, r) in here.judged}
    return {
        "judged": judged,
        "first_look": here.first_look(op),
        "in_part": here.in_part(op),
        "tables": _agreement_tables(judged),
        "pairs": _pair_matrix(here.pairs(op)),
        "faults": faults([r for r in here.of_all_orders(op) if not as_expected(r)]),
    }


def _times(op: str, row: Mapping[str, Cell], here: MachineResults) -> dict[str, Any]:
    """The times of right gradients; those of `hidden` cells are left out."""
    cells = {r: cell for r, cell in row.items() if (op, r) in here.timed}
    timed = {r: here.timed[op, r] for r, cell in cells.items() if not cell.wrong}
    times = list(chain(*timed.values()))
    return {
        "timed": timed,
        "times": times,
        "untimed": here.untimed(op),
        "threads": sorted({r.threads for r in times if r.threads is not None}),
        "hidden": [cell for cell in cells.values() if cell.wrong],
    }


@cache
def _source(op: str) -> dict[str, Any]:
    """Title, formulas and dialects of a page of the catalogue."""
    source = catalogue.op_page(op).read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    return {
        "title": docstring.partition("\n")[0],
        "paragraphs": _paragraphs(docstring),
        "dialects": _by_name(dialects(source)),
        "source": highlighted(source),
    }


def _paragraphs(docstring: str) -> list[str]:
    """The paragraphs after the first line; those of formulas are indented."""
    return re.split(r"\n\s*\n", docstring.rstrip())[1:]


def _by_name(several: Iterable[Dialect]) -> dict[str, list[Dialect]]:
    """The variants of each dialect: for all frameworks, and for single ones."""
    variants: dict[str, list[Dialect]] = {}
    for dialect in several:
        variants.setdefault(dialect.name, []).append(dialect)
    return variants


def _shown(finding: Finding) -> dict[str, Any]:
    return {
        "id": finding.id,
        "about": finding.about,
        "repro": highlighted(finding.repro) if finding.repro else "",
    }


def _pair_matrix(pairs: Mapping[str, Mapping[str, float | None]]) -> dict[str, Any]:
    """Both halves of the matrix: rows and columns in the same order."""
    grouped = families({*pairs, *(b for row in pairs.values() for b in row)})
    names = [name for family in grouped for name in family.runners]
    both: dict[str, dict[str, float]] = {name: {} for name in names}
    for a, row in pairs.items():
        for b, ratio in row.items():
            far = float("inf") if ratio is None else float(ratio)
            both[a][b] = both[b][a] = far
    return {"names": names, "families": grouped, "ratios": both}


def _agreement_tables(
    judged: Mapping[str, Sequence[AgreeRecord]],
) -> list[dict[str, Any]]:
    """For each dtype, the worst verdicts by regime and runner, as a table."""
    dtypes = sorted({r.dtype for several in judged.values() for r in several})
    return [_agreement_table(judged, dtype) for dtype in dtypes]


def _agreement_table(
    judged: Mapping[str, Sequence[AgreeRecord]], dtype: str
) -> dict[str, Any]:
    worst: dict[str, dict[str, AgreeRecord]] = {name: {} for name in REGIMES}
    for runner, records in judged.items():
        for record in records:
            if record.dtype == dtype:
                row = worst.setdefault(record.regime, {})
                row[runner] = max(row.get(runner, record), record, key=_badness)
    rows = [
        (regime, [_entry(row.get(runner)) for runner in judged])
        for regime, row in worst.items()
        if row
    ]
    return {"dtype": dtype, "runners": list(judged), "rows": rows}


def _badness(record: AgreeRecord) -> tuple[bool, float]:
    return not as_expected(record), record.distance or 0.0


def _entry(record: AgreeRecord | None) -> tuple[str, str, str]:
    """Verdict, sign and ratio of a cell."""
    if record is None:
        return "none", "·", ""
    return record.verdict, SIGNS[record.verdict][0], short(record.distance)


# Charts -------------------------------------------------------------------------


def _views(several: Sequence[Series]) -> dict[str, list[Series]]:
    """The series of each chart of the history; the first is of the backward pass."""
    views: dict[str, list[Series]] = {}
    for one in several:
        views.setdefault(one.view, []).append(one)
    names = sorted(views, key=lambda view: (not view.startswith("backward"), view))
    return {name: views[name] for name in names}


def drawn(
    page: Mapping[str, Any], here: MachineResults, history: History, looks: Looks
) -> dict[str, Chart]:
    """The charts of a page, by the name of their place on it.

    `looks` are the styles of the runners, and of the lines of the history.
    """
    made: dict[str, Chart | None] = {}
    for table in page["tables"]:
        judged, dtype = page["judged"], table["dtype"]
        chart = charts.agreement(judged, dtype, here.regimes, looks)
        made[f"agreement-{dtype}"] = chart
    for dtype in sorted({r.dtype for r in page["times"]}):
        for phase in PHASES:
            chart = charts.times(page["timed"], dtype, phase, here.bandwidth(), looks)
            made[f"times-{dtype}-{phase}"] = chart
    for number, several in enumerate(page["views"].values()):
        made[f"history-{number}"] = charts.history(several, history.commits, looks)
    return {name: chart for name, chart in made.items() if chart is not None}
