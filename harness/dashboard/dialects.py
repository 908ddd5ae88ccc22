"""The dialects of an op page, cut out of its source and highlighted."""

from __future__ import annotations

import ast
import contextlib
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


_LEXER, _FORMATTER = PythonLexer(stripnl=False), HtmlFormatter(nowrap=True)


def highlighted(code: str) -> Markup:
    """Python code as HTML, with a span for each token; CSS has the colours.

    The scripts of findings share nine lines of ten: a statement is gone through once.
    """
    return Markup("\n").join(map(_highlighted, _statements(code.strip("\n"))))


@cache
def _highlighted(lines: str) -> Markup:
    return Markup(highlight(f"{lines}\n", _LEXER, _FORMATTER).removesuffix("\n"))


def _statements(code: str) -> Iterator[str]:
    """The code, cut before each statement, where no token goes on from before."""
    starts = {0}
    with contextlib.suppress(SyntaxError, ValueError):
        starts |= {_first_line(s) for s in ast.parse(code).body if not s.col_offset}
    lines = code.split("\n")
    cuts = [0] if "\r" in code else sorted(starts)  # Python counts lines otherwise
    for start, end in zip(cuts, [*cuts[1:], len(lines)], strict=True):
        yield "\n".join(lines[start:end])


def _first_line(statement: ast.stmt) -> int:
    """The index of its first line, which may be a decorator's."""
    decorators = getattr(statement, "decorator_list", ())
    first: int = min(one.lineno for one in (statement, *decorators))
    return first - 1


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
