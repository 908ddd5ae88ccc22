"""Nodes in the user's terms: an expression, and the line that it stands on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch.harness.judging.diagnosis.sweep import Sweep
from gradwatch.impls.graph import Node

_INFIX = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "matmul": "@"}
_SILENT = ("stop_gradient", "reshape", "broadcast_to", "astype", "gather", "sum_to")
LONGEST = 44  # characters of an expression


class Words:
    """Names of a sweep's nodes."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.names = {node: name for name, node in sweep.inputs.items()}
        self.made: dict[Node, tuple[Node, int | None]] = {}
        for i, dy in enumerate(sweep.cotangents):
            self.names[dy] = "the cotangent" if i == 0 else f"cotangent {i}"
        for node, dy, parts in sweep.record.rules:
            self.made.setdefault(dy, (node, None))
            for i, part in enumerate(parts):
                if part is not None:
                    self._within(part, dy, node)
                    if part is not dy:
                        self.made[part] = (node, i)

    def _within(self, part: Node, dy: Node, rule: Node) -> None:
        """What stands between a cotangent and a part was made by the same rule."""
        stack = [part]
        while stack:
            node = stack.pop()
            if node is not dy and node not in self.made and node in self.sweep.flows:
                self.made[node] = (rule, None)
                stack += node.inputs

    def expression(self, node: Node, depth: int = 3) -> str:
        """What a node computes, such as `x - sum(x) / 8`."""
        for deep in range(depth, -1, -1):
            text = self._text(node, deep)
            if len(text) <= LONGEST:
                return text
        return text

    def _text(self, node: Node, depth: int) -> str:
        if node in self.names:
            return self.names[node]
        if node.primitive is None:
            value = node.value
            if value.size == 1:
                return f"{float(value.reshape(-1)[0]):.6g}"
            return f"a constant of shape {value.shape}"
        name = node.primitive.name
        if name in _SILENT:
            return self._text(node.inputs[0], depth)
        if depth < 0:
            return "..."
        parts = [self._text(n, depth - 1) for n in node.inputs]
        if name in _INFIX and len(parts) == 2:
            return " ".join((_held(parts[0]), _INFIX[name], _held(parts[1])))
        if name == "negative":
            return f"-{_held(parts[0])}"
        if name == "compare":
            return f"{node.attributes['how']}({', '.join(parts)})"
        axis = node.attributes.get("axis")
        at = f", axis={axis}" if isinstance(axis, (int, tuple)) else ""
        return f"{name}({', '.join(parts)}{at})"

    def line(self, node: Node) -> str:
        """Where the node's operation stands in the user's code; "" if not known."""
        places, stack, seen = self.sweep.record.places, [node], {node}
        users: dict[Node, list[Node]] = {}
        if not places:
            return ""
        for user in self.sweep.forward:
            for source in user.inputs:
                users.setdefault(source, []).append(user)
        while stack:
            node = stack.pop(0)
            place = places.get(node)
            if place is not None and str(place):
                return f" ({_short(place)})"
            for user in users.get(node, ()):
                if user not in seen:
                    seen.add(user)
                    stack.append(user)
        return ""

    def quoted(self, node: Node) -> str:
        """The expression in backquotes; the plain name of an input or number."""
        text = self.expression(node)
        return text if node.primitive is None else f"`{text}`"

    def path(self, node: Node) -> str:
        """What a node of the backward carries: the term that a rule passes on."""
        if node in self.sweep.cotangents:
            return self.names[node]
        rule, place = self.made.get(node, (None, None))
        if rule is None:
            return "a sum of terms"
        where = self.line(rule)
        if place is None or len(rule.inputs) == 1:
            return f"the term through {self.quoted(rule)}{where}"
        to = self.quoted(rule.inputs[place])
        return f"the term through {self.quoted(rule)} to {to}{where}"

    def rule(self, node: Node) -> str:
        """Whose rule made a node of the backward."""
        rule, _ = self.made.get(node, (None, None))
        if rule is None:
            return "the backward"
        return f"the backward of {self.quoted(rule)}{self.line(rule)}"


def _held(text: str) -> str:
    plain = text.replace(".", "").replace("_", "").isalnum()
    closed = text.endswith(")") and text.count("(") == 1 and " " not in text[: text.index("(")]
    return text if plain or closed else f"({text})"


def _short(place: Any) -> str:
    file = getattr(place, "file", "")
    text = str(place)
    return text.replace(str(Path(file).parent) + "/", "") if file else text


#: Numbers that a person would write.
_WRITTEN = [
    (0.0, "left out"),
    (2.0, "counted twice"),
    (-1.0, "given the wrong sign"),
    (0.5, "halved"),
    (math.log(2), "multiplied by ln 2"),
    (1 / math.log(2), "divided by ln 2"),
    (math.log(10), "multiplied by ln 10"),
    (1 / math.log(10), "divided by ln 10"),
    (math.log10(2) / math.log(2), "divided by ln 10"),
    (math.pi, "multiplied by pi"),
    (math.sqrt(2), "multiplied by the root of 2"),
    (math.sqrt(0.5), "divided by the root of 2"),
    (3.0, "counted three times"),
    (4.0, "multiplied by 4"),
    (0.25, "divided by 4"),
    (-2.0, "multiplied by -2"),
    (-0.5, "multiplied by -1/2"),
]


def written(factor: float, lengths: Iterable[int], near: float) -> list[tuple[float, str]]:
    """Factors that a person would write near this one, nearest first, with words."""
    known = list(_WRITTEN)
    for n in lengths:
        if n > 1:
            known += [
                (1 / n, f"divided by {n}"),
                (float(n), f"multiplied by {n}"),
                (n / (n - 1), f"multiplied by {n}/{n - 1}"),
                ((n - 1) / n, f"multiplied by {n - 1}/{n}"),
                (n / (n + 1), f"multiplied by {n}/{n + 1}"),
                (math.sqrt(n), f"multiplied by the root of {n}"),
                (1 / math.sqrt(n), f"divided by the root of {n}"),
            ]
    close = [(abs(factor - v), v, w) for v, w in known if abs(factor - v) <= near * (abs(v) or 1)]
    return [(v, w) for _, v, w in sorted(close)[:3]]


def number(value: float) -> str:
    """A number as short as its digits allow."""
    return np.format_float_positional(value, 6, trim="-", fractional=False) if 1e-4 <= abs(value) < 1e6 else f"{value:.6g}"


def factored(value: float) -> str:
    """A factor; of one near to 1, how near."""
    if abs(value - 1) < 1e-3 and value != 1:
        return f"1 {'+' if value > 1 else '-'} {abs(value - 1):.3g}"
    return f"{value:.7g}"
