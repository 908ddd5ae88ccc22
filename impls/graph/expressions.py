"""A node in a reader's terms: an expression such as `x - sum(x) / 8` or `h[:, 2:4]`."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from gradwatch.impls.graph.engine import Node

LONGEST = 44  # characters of an expression, unless a name alone is longer
_INFIX = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/", "matmul": "@"}
_SILENT = ("stop_gradient", "reshape", "broadcast_to", "astype", "sum_to")


def expression(node: Node, names: Mapping[Node, str]) -> str:
    """An expression of a node, in the names of others; "..." for what is too deep."""
    texts = (_text(node, names, depth) for depth in (3, 2, 1))
    return next((t for t in texts if len(t) < LONGEST), "") or _text(node, names, 0)


def _text(node: Node, names: Mapping[Node, str], depth: int) -> str:
    if node in names:
        return names[node]
    if node.primitive is None or is_number(node, names):
        kind = "mask" if node.dtype.kind == "b" else "constant"
        number = f"{float(node.value.flat[0]):.6g}" if node.size == 1 else ""
        return number or f"a {kind} of shape {node.shape}"
    name = node.primitive.name
    if name in _SILENT:
        return _text(node.inputs[0], names, depth)
    if depth < 0:
        return "..."
    if name == "gather" and (at := slices_of(node)):
        return f"{_held(_text(node.inputs[0], names, depth))}[{at}]"
    parts = [_text(n, names, depth - 1) for n in node.inputs]
    if name in _INFIX:
        return f" {_INFIX[name]} ".join(map(_held, parts))
    if name == "negative":
        return f"-{_held(parts[0])}"
    axis = node.attributes.get("axis")
    at = f", axis={axis}" if isinstance(axis, (int, tuple)) else ""
    name = node.attributes.get("how", name) if name == "compare" else name
    return f"{name}({', '.join(parts)}{at})"


def is_number(node: Node, names: Mapping[Node, str]) -> bool:
    """Whether a node is a number, or computed from numbers alone."""
    parts = (n not in names and is_number(n, names) for n in node.inputs)
    return node.size == 1 and all(parts)


def _held(text: str) -> str:
    """The text, in parentheses if it is more than a name, a number or a call."""
    rest, inner = text, r"\([^()]*\)|\[[^][]*\]"
    while rest != (rest := re.sub(inner, "", rest)):
        pass
    return f"({text})" if " " in rest or rest == "..." else text


def slices_of(node: Node) -> str:
    """The slices that a gather takes of its operand, as in `x[:, 2:4]`; or nothing."""
    (x, *more), index = node.inputs, node.attributes["index"].ravel()
    ahead = node.attributes.get("batch", 0)
    said, shape = [":"] * ahead, x.shape[ahead:]
    if more or not shape or not index.size:
        return ""
    grid = [np.unique(i) for i in np.unravel_index(np.maximum(index, 0), shape)]
    if not np.array_equal(np.ravel_multi_index(np.ix_(*grid), shape).ravel(), index):
        return ""
    for n, at in zip(shape, grid, strict=True):
        first, steps = at[0], {*np.diff(at).tolist()} or {1}
        end = at[-1] + max(steps)
        if len(steps) > 1:
            return ""
        text = f"{first or ''}:{end if end < n else ''}" if len(at) > 1 else f"{first}"
        said.append(":".join([text, *map(str, steps - {1})]))
    return re.sub("(, :)+$", "", ", ".join(said))
