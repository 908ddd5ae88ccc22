"""Turns an op page's docstring into HTML: prose as text, formulas as MathML.

A formula is an indented line. It is nearly Python, so Python's own parser reads it;
`b^T`, `s'` and `sum_k a[...]` are translated to Python first. Parts that do not parse
("summed over the leading axes") are shown as text. Every browser since 2023 draws
MathML Core itself, without a script or a font from the network.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass

from markupsafe import Markup, escape

_GREEK = {"eps": "ε", "sigma": "σ", "mu": "μ", "gamma": "γ", "beta": "β", "pi": "π"}
_TRANSPOSED, _PRIME = "\u22a4", "\u2032"
_BIG = {"sum": "∑", "prod": "∏"}
_SIGNS: dict[type[ast.operator], str] = {ast.Add: "+", ast.Sub: "−", ast.Mult: "·"}
# Three groups: the d of a gradient (before one letter or a tensor's name), name, index.
_NAME = re.compile(r"(d(?=[a-z]\d*$|weight|bias|values|loss))?(\D+?)_?(\d*)")
_LOOSE, _TIGHT, _POWER, _ATOM = range(4)  # precedence of a term


@dataclass(frozen=True)
class Paragraph:
    """A part of the docstring: prose, or lines of formulas in MathML."""

    prose: str = ""
    formulas: tuple[Markup, ...] = ()


def paragraphs(docstring: str) -> tuple[Paragraph, ...]:
    """The docstring after its first line, in order."""
    # A page's docstring starts at column 0, so its indentation is meant as such.
    blocks = re.split(r"\n\s*\n", docstring.rstrip())[1:]
    return tuple(_paragraph(block) for block in blocks)


def _paragraph(block: str) -> Paragraph:
    if not block.startswith("    "):
        return Paragraph(prose=" ".join(block.split()))
    parts = (part for line in block.splitlines() for part in _parts(line))
    return Paragraph(formulas=tuple(_math(part) for part in parts))


def _parts(line: str) -> Iterable[str]:
    """The formulas of a line; two or more blanks separate them."""
    return (p.strip().rstrip(",") for p in re.split(r"\s{2,}", line) if p.strip())


def _math(text: str) -> Markup:
    return Markup('<math display="block">{}</math>').format(_row(text))


def _row(text: str) -> Markup:
    """A formula; an end that does not parse is shown as text."""
    for end in (len(text), *(m.start() for m in re.finditer(r",? ", text))):
        sides = [_parsed(side) for side in text[:end].split(" = ")]
        sound = [side for side in sides if side is not None]
        if len(sides) == len(sound) > 1:
            formula = Markup("<mo>=</mo>").join(_set(side, _LOOSE) for side in sound)
            return formula + (_words(text[end:]) if text[end:] else Markup(""))
    return _words(text)


def _words(text: str) -> Markup:
    return Markup("<mtext>{}</mtext>").format(text.replace(" ", "\u00a0"))


def _parsed(text: str) -> ast.expr | None:
    text = re.sub(r"(\w)\^T", r"\1.T", text)
    text = re.sub(r"(\w)'", r"\1_prime", text)
    text = re.sub(r"\b(ln) (\w+)", r"\1(\2)", text)
    text = re.sub(r"\b((?:sum|prod)_\w+) (.+)$", r"\1(\2)", text)
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError):
        return None


def _set(node: ast.expr, within: int) -> Markup:
    """A term, in parentheses if the operator around it has a higher precedence."""
    markup, holds = _term(node)
    return _fenced(markup) if holds < within else markup


def _term(node: ast.expr) -> tuple[Markup, int]:
    if isinstance(node, ast.BinOp):
        return _binary(node)
    if isinstance(node, ast.UnaryOp):
        return _operator("−") + _set(node.operand, _TIGHT), _LOOSE
    if isinstance(node, ast.Name):
        return name(node.id), _ATOM
    if isinstance(node, ast.Call):
        return _call(node), _TIGHT
    if isinstance(node, ast.Subscript):
        return _tag("msub", _set(node.value, _ATOM), _listed(node.slice)), _ATOM
    if isinstance(node, ast.Attribute):
        return _tag("msup", _set(node.value, _ATOM), _identifier(_TRANSPOSED)), _ATOM
    if isinstance(node, (ast.List, ast.Tuple)):
        inner = _listed(node)
        return _fenced(inner, "[]") if isinstance(node, ast.List) else inner, _ATOM
    return Markup("<mn>{}</mn>").format(_number(node)), _ATOM


def _number(node: ast.expr) -> str:
    shown = ast.unparse(node)
    return "…" if shown == "..." else shown


def _binary(node: ast.BinOp) -> tuple[Markup, int]:
    left, right = node.left, node.right
    if isinstance(node.op, ast.Div):
        return _tag("mfrac", _set(left, _LOOSE), _set(right, _LOOSE)), _TIGHT
    if isinstance(node.op, ast.Pow):
        return _tag("msup", _set(left, _ATOM), _set(right, _LOOSE)), _POWER
    if isinstance(node.op, ast.MatMult):
        space = Markup('<mspace width="0.25em"></mspace>')
        return _set(left, _TIGHT) + space + _set(right, _TIGHT), _TIGHT
    level = _TIGHT if isinstance(node.op, ast.Mult) else _LOOSE
    after = _POWER if isinstance(node.op, ast.Sub) and _is_sum(right) else level
    sign = _operator(_SIGNS.get(type(node.op), "?"))
    return _set(left, level) + sign + _set(right, after), level


def _is_sum(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub))


def _call(node: ast.Call) -> Markup:
    inner = Markup("<mo>,</mo>").join(_set(a, _LOOSE) for a in node.args)
    function = ast.unparse(node.func)
    if function == "sqrt":
        return _tag("msqrt", inner)
    word, _, index = function.partition("_")
    if word in _BIG and index not in ("", "prime"):
        return _tag("munder", _operator(_BIG[word]), name(index)) + inner
    head = _operator(_BIG[word]) if word in _BIG else name(function)
    return head + Markup("<mo>&#x2061;</mo>") + _fenced(inner)


def _listed(node: ast.expr) -> Markup:
    parts = node.elts if isinstance(node, (ast.List, ast.Tuple)) else [node]
    comma = Markup('<mo separator="true">,</mo>')
    return _tag("mrow", comma.join(_set(part, _LOOSE) for part in parts))


def name(word: str) -> Markup:
    """A name: dx as d and x, x1 with an index, eps as ε, s' with a prime."""
    bare, prime = word.removesuffix("_prime"), word.endswith("_prime")
    match = _NAME.fullmatch(bare)
    if match is None:
        return _identifier(bare)
    d, stem, index = match.groups()
    shown = _identifier(_GREEK.get(stem, stem))
    if index:
        shown = _tag("msub", shown, Markup("<mn>{}</mn>").format(index))
    if prime:
        shown = _tag("msup", shown, _operator(_PRIME))
    if d:
        upright = Markup('<mi mathvariant="normal">d</mi>')
        return _tag("mrow", upright, shown)
    return shown


def _identifier(text: str) -> Markup:
    return Markup("<mi>{}</mi>").format(text)


def _operator(text: str) -> Markup:
    return Markup("<mo>{}</mo>").format(text)


def _fenced(inner: Markup, marks: str = "()") -> Markup:
    """Brackets that grow with tall content; some fonts stretch them even around a g."""
    tall = any(f"<{tag}" in inner for tag in ("mfrac", "munder", "msqrt"))
    sign = Markup('<mo stretchy="{}">{}</mo>')
    left, right = (sign.format("true" if tall else "false", mark) for mark in marks)
    return _tag("mrow", left, inner, right)


def _tag(tag: str, *children: Markup) -> Markup:
    """An element; each child is wrapped into one element."""
    if tag == "mrow":
        return Markup("<mrow>{}</mrow>").format(Markup("").join(children))
    boxed = (Markup("<mrow>{}</mrow>").format(child) for child in children)
    return Markup("<{0}>{1}</{0}>").format(Markup(escape(tag)), Markup("").join(boxed))
