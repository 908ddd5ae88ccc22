"""The template variables of a machine's first page and of an op's, and its charts."""

from __future__ import annotations

import ast
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Any

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from gradwatch.harness.agreement.output import grouped, overall
from gradwatch.harness.dashboard import charts
from gradwatch.harness.dashboard.charts import (
    Chart,
    History,
    Looks,
    Series,
    commit_rows,
    moves,
    wrong_since,
)
from gradwatch.harness.dashboard.matrix import (
    FIRST_ORDER,
    Cell,
    Cells,
    MachineResults,
    families,
    family_of,
    flavour_of,
    runner_of,
)
from gradwatch.harness.judging.cases import REGIMES
from gradwatch.harness.judging.defects.known import as_expected, unexpected
from gradwatch.harness.project.git import Commit
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.timing.compare import PHASES
from gradwatch.impls.catalogue import op_names
from gradwatch.impls.catalogue import op_page as file_of

OTHER = "other"  # the group of an op whose file names none
MOST = 5  # rows of each answer; a link leads to the rest
COMMITS = 8  # on this page; the page of changes has all


@dataclass(frozen=True)
class Fault:
    """All records of one op, runner and verdict that fail in the same way.

    `since` is the first commit at which the gradient is wrong in the history.
    """

    first: AgreeRecord
    runner: str
    count: int
    since: Commit | None = None

    @property
    def repro(self) -> str:
        """The command that reproduces the fault."""
        command = f"gradwatch agree --case {shlex.quote(self.first.case)}"
        command += f" --backend {shlex.quote(self.first.backend)}"
        if self.first.order != FIRST_ORDER:
            command += f" --order {shlex.quote(self.first.order)}"
        device = self.first.device
        return command if device == "cpu" else f"{command} --device {device}"


def overview(here: MachineResults, cells: Cells, history: History) -> dict[str, Any]:
    """The variables of the overview template; `cells` are of all ops and backends."""
    shown = dict[str, dict[str, Cell]]()
    for op, row in cells.items():
        ran = {runner: row[runner] for runner in here.ran}
        if any(c.verdict != "none" or c.speed or c.orders for c in ran.values()):
            shown[op] = ran
    versions = {(r.framework, r.framework_version) for r in here.records()}
    return {
        "cells": shown,
        "orders": any(cell.orders for row in shown.values() for cell in row.values()),
        "groups": by_group(shown),
        "families": families(here.ran),
        "unrun": [op for op in cells if op not in shown],
        "ranks": {
            "worst": _ranks(shown, lambda cell: cell.rank),
            "slowest": _ranks(shown, lambda cell: cell.speed or 0.0),
        },
        "fastest": {op: best for op, row in shown.items() if (best := _fastest(row))},
        "right": _right(here, shown, history),
        "fast": _fast(shown, history),
        "commits": commit_rows(history)[:COMMITS],
        "versions": sorted(pair for pair in versions if pair[1]),
        "checked": [r for s in here.sources if s.kind == "check" for r in s.records],
    }


def faults(
    records: Sequence[AgreeRecord], history: History | None = None
) -> list[Fault]:
    """Records grouped by op, runner, order and verdict, each with its worst record."""
    since = wrong_since(history or History())
    groups = grouped(
        records, lambda r: (r.op, runner_of(r.backend, r.device), r.order, r.verdict)
    )
    return [
        Fault(
            group[0],
            runner,
            len(group),
            since.get((op, runner)) if order == FIRST_ORDER else None,
        )
        for (op, runner, order, _), group in groups.items()
    ]


def _right(here: MachineResults, cells: Cells, history: History) -> dict[str, Any]:
    """The variables of the first answer: which ops are not right, and since when."""
    records = here.records()
    wrong = unexpected(records)
    verdicts = {op: {c.verdict for c in row.values()} for op, row in cells.items()}
    bad = {op for op, row in cells.items() for c in row.values() if c.wrong or c.astray}
    found = faults(wrong, history)
    known = {(fault.first.op, fault.runner) for fault in found} | {*here.judged}
    return {
        "judged": sum(of_it != {"none"} for of_it in verdicts.values()),
        "bad": len(bad),
        "tensors": sum(r.verdict != "unsupported" for r in records),
        "wrong": len(wrong),
        "faults": found,
        # The history may know of a wrong gradient that no run here has judged.
        "told": {p: c for p, c in wrong_since(history).items() if p not in known},
        "known": len(faults([r for r in records if r.listed])),
        "gradients": sum(s.metric.startswith("worst") for s in history.series),
    }


def _fast(cells: Cells, history: History) -> dict[str, Any]:
    """The variables of the second answer: slower, faster and fastest backends."""
    timed = [move for move in moves(history) if move.series.is_time]
    sure = [move for move in timed if move.change.state == "confirmed"]
    best = Counter(filter(None, map(_fastest, cells.values())))
    return {
        "slower": [m for m in sure if m.change.worse],
        "faster": [m for m in sure if not m.change.worse],
        "suspected": [m for m in timed if m.change.state == "suspected"],
        "shown": sure[:MOST],
        "best": best.most_common(3),
        "timed": sum(best.values()),
        "series": sum(one.is_time for one in history.series),
        "compared": any(s.is_time and len(s.values) > 1 for s in history.series),
    }


def _fastest(row: Mapping[str, Cell]) -> str:
    timed = {cell.speed: runner for runner, cell in row.items() if cell.speed}
    return timed[min(timed)] if len(timed) > 1 else ""


def _ranks(cells: Cells, key: Callable[[Cell], Any]) -> dict[str, int]:
    """The rank of each op by its largest key, the largest first."""
    keys = {op: max(map(key, row.values())) for op, row in cells.items()}
    ordered = sorted(keys, key=keys.__getitem__, reverse=True)
    return {op: place for place, op in enumerate(ordered)}


# An op --------------------------------------------------------------------------


def op_page(
    op: str, row: Mapping[str, Cell], here: MachineResults, history: History
) -> dict[str, Any]:
    """The variables of the op template; it shows no times of `hidden` cells."""
    row = {runner: cell for runner, cell in row.items() if runner in here.ran}
    records = here.records(op)
    by_order = grouped(records, lambda r: (runner_of(r.backend, r.device), r.order))
    judged = {r: by_order[r, FIRST_ORDER] for r in row if (r, FIRST_ORDER) in by_order}
    cells = {r: cell for r, cell in row.items() if (op, r) in here.timed}
    timed = {r: here.timed[op, r] for r, cell in cells.items() if not cell.wrong}
    times = list(chain(*timed.values()))
    series = [one for one in history.series if one.op == op]
    views: dict[str, list[Series]] = {}  # the backward pass first
    for one in sorted(series, key=lambda s: (s.view[:8] != "backward", s.view)):
        views.setdefault(one.view, []).append(one)
    lines = [one.line for one in series]
    torch = [line for line in lines if family_of(line).startswith("torch")]
    own = [one for one in torch if flavour_of(one).startswith(("autograd", "custom"))]
    return {
        "op": op,
        "row": row,
        "families": families(row),
        "exists": op in op_names(),
        "judged": judged,
        "tables": _agreement_tables(judged),
        "pairs": _pair_matrix(here.pairs(op)),
        "faults": faults([r for r in records if not as_expected(r)], history),
        "defects": faults([r for r in records if r.listed]),
        "timed": timed,
        "times": times,
        "threads": sorted({r.threads for r in times if r.threads is not None}),
        "hidden": [cell for cell in cells.values() if cell.wrong],
        "series": series,
        "views": views,
        # At first PyTorch's own gradient and the project's are shown.
        "default": own if len(own) > 1 else torch or lines,
        "steps": [m for m in moves(history) if m.series.op == op],
        "findings": [one for one in here.findings if one[0].record.op == op],
        "source": op_source(op),
    }


def _pair_matrix(pairs: Mapping[str, Mapping[str, float | None]]) -> dict[str, Any]:
    """Both halves of the matrix of pairs, rows and columns in the same order."""
    both: dict[str, dict[str, float]] = defaultdict(dict)
    for a, row in pairs.items():
        for b, ratio in row.items():
            both[a][b] = both[b][a] = float("inf") if ratio is None else float(ratio)
    of_each = families(both)
    names = [name for family in of_each for name in family.runners]
    return {"names": names, "families": of_each, "ratios": both}


def _agreement_tables(
    judged: Mapping[str, Sequence[AgreeRecord]],
) -> dict[str, dict[str, list[AgreeRecord | None]]]:
    """The worst record of each runner, by dtype and regime."""
    places = grouped(chain(*judged.values()), lambda r: (r.dtype, r.regime))
    tables = defaultdict[str, dict[str, list[AgreeRecord | None]]](dict)
    known = {name: place for place, name in enumerate(REGIMES)}
    in_order = sorted(places, key=lambda p: (p[0], known.get(p[1], len(known)), p[1]))
    for dtype, regime in in_order:
        row = grouped(places[dtype, regime], lambda r: runner_of(r.backend, r.device))
        worst = {runner: overall(several).worst for runner, several in row.items()}
        tables[dtype][regime] = [worst.get(runner) for runner in judged]
    return tables


def drawn(page: Mapping[str, Any], history: History, looks: Looks) -> dict[str, Chart]:
    """The charts of a page, by the name of their element.

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


# The file of an op ---------------------------------------------------------------


@dataclass(frozen=True)
class OpSource:
    """The parts of the file of an op.

    `title` is the first line of its docstring, and `paragraphs` are the others;
    formulas are indented.
    """

    title: str = ""
    group: str = OTHER
    paragraphs: tuple[str, ...] = ()
    code: str = ""


def op_source(op: str) -> OpSource:
    """The parts of an op's file, which is read, not imported: it may need a framework.

    They are empty if the file is missing or broken.
    """
    try:
        source = file_of(op).read_text(encoding="utf-8")
        docstring = ast.get_docstring(ast.parse(source)) or ""
    except (LookupError, OSError, SyntaxError, ValueError):
        return OpSource()
    title, *paragraphs = re.split(r"\n\s*\n", docstring)
    stated = re.search(r"""\bgroup=["']([^"']+)""", source)
    group = stated[1] if stated else OTHER
    code = highlighted(source)
    return OpSource(title.partition("\n")[0], group, tuple(paragraphs), code)


def by_group(ops: Iterable[str]) -> dict[str, dict[str, OpSource]]:
    """Sources by group and op, both sorted; `OTHER` comes last."""
    groups: dict[str, dict[str, OpSource]] = {}
    for op in sorted(ops):
        one = op_source(op)
        groups.setdefault(one.group, {})[op] = one
    return {n: groups[n] for n in sorted(groups, key=lambda n: (n == OTHER, n))}


@cache  # a report has pages for each machine, all of the same files
def highlighted(code: str) -> Markup:
    """Python code as HTML, with a span for each token; CSS has the colours."""
    return Markup(highlight(code, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip())
