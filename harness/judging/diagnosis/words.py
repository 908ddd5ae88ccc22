"""Nodes in the user's terms: an expression, and the line that it stands on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

from gradwatch.harness.judging.diagnosis.sweep import Edit, Sweep
from gradwatch.impls.graph import Node

_INFIX = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "matmul": "@"}
_SILENT = ("stop_gradient", "reshape", "broadcast_to", "astype", "sum_to")
LONGEST = 44  # characters of an expression


class Words:
    """Names of a sweep's nodes."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.names = sweep.names
        self.places: dict[Node, Any] = {}  # of what has none, its last user's
        for node in reversed(sweep.forward):
            place = sweep.record.places.get(node) or self.places.get(node)
            self.places[node] = place
            self.places |= {n: place for n in node.inputs if n not in self.places}

    def say(self, edit: Edit) -> str:
        """What an edit does, and the user's line that it is about."""
        first, *others = (self.sweep.parts.get(node, node) for node in edit.about)
        made, _ = self.sweep.made.get(first, (first, None))
        said = (edit.where + edit.text).format(
            *map(self.quoted, others),
            term=self.term(first),
            rule=f"the backward of {self.quoted(made)}",
        )
        said += "" if first in self.names else self.line(made)
        return f"{said}, and {self.say(edit.also)}" if edit.also else said

    def quoted(self, node: Node) -> str:
        """A name, a number, or an expression such as `x - sum(x) / 8`."""
        text = next(
            t for d in (3, 2, 1, 0) if len(t := self._text(node, d)) < LONGEST or not d
        )
        bare = node.primitive is None or node in self.names
        return text if bare else f"`{text}`"

    def _text(self, node: Node, depth: int) -> str:
        if node in self.names:
            return self.names[node]
        if node.primitive is None:
            number = f"{float(node.value.flat[0]):.6g}" if node.size == 1 else ""
            return number or f"a constant of shape {node.shape}"
        name = node.primitive.name
        if name in _SILENT:
            return self._text(node.inputs[0], depth)
        if depth < 0:
            return "..."
        parts = [self._text(n, depth - 1) for n in node.inputs]
        if name in _INFIX:
            return f" {_INFIX[name]} ".join(map(_held, parts))
        if name == "negative":
            return f"-{_held(parts[0])}"
        axis = node.attributes.get("axis")
        at = f", axis={axis}" if isinstance(axis, (int, tuple)) else ""
        name = node.attributes.get("how", name) if name == "compare" else name
        return f"{name}({', '.join(parts)}{at})"

    def line(self, node: Node) -> str:
        """Where an operation stands in the user's code; empty if not known."""
        place = self.places.get(node) or ""
        folder = str(Path(getattr(place, "file", "")).parent) + "/"
        return f" ({place})".replace(folder, "") if str(place) else ""

    def term(self, node: Node) -> str:
        """What a node of the backward carries: the term that a rule passes on."""
        if node in self.names:
            return self.names[node]
        rule, place = self.sweep.made.get(node, (None, None))
        if rule is None:  # a sum of terms, by the node whose gradient it is
            rules = self.sweep.record.rules
            ends = (self.quoted(end) for end, dy, _ in rules if dy is node)
            return next((f"the gradient of {end}" for end in ends), "a sum of terms")
        through = f"the term through {self.quoted(rule)}"
        if place is not None and len(rule.inputs) > 1:
            through += f" to {self.quoted(rule.inputs[place])}"
        return through


def _held(text: str) -> str:
    """In parentheses, if it is more than a name, a number or a call."""
    bare = text.replace(".", "").replace("_", "").isalnum()
    call = text.endswith(")") and " " not in text.partition("(")[0] and text[0] != "("
    return text if bare or call else f"({text})"


#: Numbers that a person would write, with words.
NUMBERS = {0.0: "left out", 2.0: "counted twice", -1.0: "given the wrong sign"}
NUMBERS[0.5] = "halved"


def written(
    factor: float, lengths: Iterable[int], near: float
) -> list[tuple[float, str]]:
    """Factors that a person would write near this one, nearest first, with words."""
    known, named = dict(NUMBERS), {"ln 2": math.log(2), "the root of 2": 2**0.5}
    if math.isfinite(factor):
        # Of few digits, only the simplest tell two numbers apart.
        most = 12 if near < 2e-3 else 4
        simple = Fraction(factor).limit_denominator(most)
        over, under = abs(simple.numerator), simple.denominator
        if 0 < over <= most and (most == 12 or 1 in (over, under)):
            simple = 1 / simple if over == 1 else simple
            named[f"{simple}"] = float(simple)
    for n in sorted(n for n in lengths if n > 1):
        known.setdefault(1 / n, f"divided by {n}, as in a mean for a sum")
        named |= {f"{n}": n, f"{n}/{n - 1}": n / (n - 1), f"the root of {n}": n**0.5}
    for text, value in named.items():
        known.setdefault(value, f"multiplied by {text}")
        known.setdefault(1 / value, f"divided by {text}")
    close = [v for v in known if v != 1 and abs(factor - v) <= near * (abs(v) or 1)]
    return [(v, known[v]) for v in sorted(close, key=lambda v: abs(v - factor))[:3]]


def factored(value: float) -> str:
    """A factor; of one near to 1, how near."""
    if abs(value - 1) < 1e-3 and value != 1:
        return f"1 {'+' if value > 1 else '-'} {abs(value - 1):.3g}"
    return f"{value:.7g}"
