"""The dialects of an op page, cut out of its source and highlighted."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from gradwatch.impls.contract import DIALECTS


@dataclass(frozen=True)
class Dialect:
    """One dialect as the page writes it, for one framework, or for all ("")."""

    name: str
    framework: str
    code: Markup
    lines: int


def dialects(source: str) -> tuple[Dialect, ...]:
    """The dialects that a page implements or declares to lack, in `DIALECTS` order.

    A statement belongs to the dialect that its `op.implement("...")` or
    `op.lacks("...")` names.
    """
    lines = source.splitlines()
    named = []
    for statement in ast.parse(source).body:
        for call in _calls(statement):
            name, framework = _named(call)
            if name in DIALECTS:
                first = min(call.lineno, statement.lineno)
                text = lines[first - 1 : statement.end_lineno]
                code = highlighted("\n".join(text))
                named.append(Dialect(name, framework, code, len(text)))
    return tuple(sorted(named, key=lambda d: (DIALECTS.index(d.name), d.framework)))


@cache
def highlighted(code: str) -> Markup:
    """Python code as HTML, with a span for each token; CSS has the colours."""
    return Markup(highlight(code, PythonLexer(), HtmlFormatter(nowrap=True)).rstrip())


def _calls(statement: ast.stmt) -> Iterator[ast.Call]:
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        candidates = statement.decorator_list
    elif isinstance(statement, ast.Expr):
        candidates = [statement.value]
    else:
        return
    for node in candidates:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            yield node


def _named(call: ast.Call) -> tuple[str, str]:
    """The dialect that a call names, and the framework, if it names one."""
    values = [a.value for a in call.args if isinstance(a, ast.Constant)]
    keywords = {k.arg: k.value for k in call.keywords}
    framework = keywords.get("framework")
    named = framework.value if isinstance(framework, ast.Constant) else ""
    return str(values[0]) if values else "", str(named)
