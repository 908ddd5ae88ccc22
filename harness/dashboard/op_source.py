"""Reads the file of an op: its title, group, formulas and code, highlighted.

It is read, not imported: a page of a project may need a framework.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from gradwatch.impls import catalogue

OTHER = "other"


@dataclass(frozen=True)
class OpSource:
    """The parts of the file.

    `title` is the first line of its docstring, and `paragraphs` are the others: those
    of formulas are indented.
    """

    title: str = ""
    group: str = OTHER
    paragraphs: tuple[str, ...] = ()
    code: str = ""


def op_source(op: str) -> OpSource:
    """Return the parts of an op's file; none where it is gone or broken."""
    try:
        return parse_source(catalogue.op_page(op).read_text(encoding="utf-8"))
    except (LookupError, OSError, SyntaxError, ValueError):
        return OpSource()


@cache  # a report has pages for each machine, all of the same files
def parse_source(source: str) -> OpSource:
    """Return the parts of a file with this text."""
    tree = ast.parse(source)
    title, *paragraphs = re.split(r"\n\s*\n", ast.get_docstring(tree) or "")
    groups = (
        str(keyword.value.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Op")
        for keyword in node.keywords
        if keyword.arg == "group" and isinstance(keyword.value, ast.Constant)
    )
    group, code = next(filter(None, groups), OTHER), highlighted(source)
    return OpSource(title.partition("\n")[0], group, tuple(paragraphs), code)


def by_group(ops: Iterable[str]) -> dict[str, dict[str, OpSource]]:
    """Return sources by group and op, both sorted; `OTHER` comes last."""
    groups: dict[str, dict[str, OpSource]] = {}
    for op in sorted(ops):
        one = op_source(op)
        groups.setdefault(one.group, {})[op] = one
    return {n: groups[n] for n in sorted(groups, key=lambda n: (n == OTHER, n))}


@cache
def highlighted(code: str) -> Markup:
    """Return Python code as HTML, with a span for each token; CSS has the colours."""
    return Markup(highlight(code, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip())
