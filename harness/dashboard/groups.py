"""The groups of ops: activation, loss, normalisation, ...; each page states its own.

Pages are read, not imported: a page of a project may need a framework.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from gradwatch.impls import catalogue

OTHER = "other"


@dataclass(frozen=True)
class Summary:
    """What a page says of its op: its group, and the first line of its docstring."""

    group: str = OTHER
    title: str = ""


def summary(op: str) -> Summary:
    """The summary of an op; the default where its page is gone or broken."""
    try:
        return _read(catalogue.op_page(op).read_text(encoding="utf-8"))
    except (LookupError, OSError, SyntaxError, ValueError):
        return Summary()


@cache  # a report has one overview for each machine, all of the same pages
def _read(source: str) -> Summary:
    page = ast.parse(source)
    title = (ast.get_docstring(page) or "").partition("\n")[0]
    return Summary(next(_stated(page), OTHER), title)


def by_group(ops: Iterable[str]) -> dict[str, dict[str, Summary]]:
    """Summaries by group and op, both sorted; `OTHER` comes last."""
    summaries = {op: summary(op) for op in sorted(ops)}
    groups = {one.group for one in summaries.values()}
    return {
        group: {op: one for op, one in summaries.items() if one.group == group}
        for group in sorted(groups, key=lambda name: (name == OTHER, name))
    }


def _stated(page: ast.Module) -> Iterator[str]:
    """The argument `group` of each call of Op."""
    for node in ast.walk(page):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Op"):
            for keyword in node.keywords:
                if keyword.arg == "group" and isinstance(keyword.value, ast.Constant):
                    yield str(keyword.value.value) or OTHER
