"""A node in a reader's terms: an expression such as `x - sum(x) / 8` or `h[:, 2:4]`.

Also a factor, positions along an axis, and what tells some elements from others.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from fractions import Fraction

import numpy as np

from gradwatch.impls.graph.engine import Array, Node

BLOCKS = (128, 64, 32, 16, 8)
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
    if name in _SILENT or name.startswith("cast."):
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
    if more or not shape or not index.size or (np.diff(index) < 1).any():
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


#: Factors that a programmer would write, with words.
NUMBERS = {0.0: "left out", 2.0: "counted twice", -1.0: "given the wrong sign"}
NUMBERS[0.5] = "halved"


def written(
    factor: float, lengths: Iterable[int], near: float
) -> list[tuple[float, str]]:
    """Plausible factors near this one, nearest first, with words."""
    known, named = dict(NUMBERS), {"ln 2": math.log(2), "the root of 2": 2**0.5}
    if math.isfinite(factor):
        # With few digits, only the simplest fractions differ from all others.
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
    """A factor in words; near 1 as a sum, such as 1 + 2e-5."""
    if abs(value - 1) < 1e-3 and value != 1:
        return f"1 {'+' if value > 1 else '-'} {abs(value - 1):.3g}"
    return f"{value:.7g}"


def places(wrong: Array) -> str:
    """Positions along an axis in words: one, a tail, the last of every block."""
    n, at = len(wrong), np.flatnonzero(wrong).tolist()
    start, step = at[0], at[1] - at[0] if len(at) > 1 else 1
    if len(at) == n - start:
        fits = (b for b in BLOCKS if start and start % b == 0 and n - start < b)
        tails = (f" (the tail after blocks of {b})" for b in fits)
        count = f"{len(at)} " if len(at) > 1 else ""
        return f"the last {count}of {n}{next(tails, '')}"
    if len(at) == 1:
        return f"slice {start} of {n}"
    if at[-1] == len(at) - 1:
        return f"the first {len(at)} of {n}"
    if step > 1 and at == [*range(start, at[-1] + 1, step)]:
        which = "the last of every block of" if start == step - 1 else "one of every"
        return f"{which} {step} of {n}"
    if len(at) == at[-1] - start + 1:
        return f"slices {start} to {at[-1]} of {n}"
    more = ", ..." if len(at) > 4 else ""
    return f"slices {', '.join(map(str, at[:4]))}{more} of {n}"


def region_of(bad: Array, alone: bool = True) -> tuple[Array, str]:
    """The box around the wrong elements, if nearly all in it are wrong, and its name.

    The name is empty where there is none, or it is the whole tensor. One element of
    a row stands for its column, unless it is `alone`.
    """
    box, named = np.ones_like(bad), list[str]()
    if not bad.any():
        return bad, ""
    if bad.sum() == 1 and alone:
        at = np.argwhere(bad)[0].tolist()
        return bad, "the last element" if bad.flat[-1] else f"the element {at}"
    for axis in range(bad.ndim):
        wrong = bad.any(tuple(i for i in range(bad.ndim) if i != axis), keepdims=True)
        box &= wrong
        if not wrong.all():
            along = f" along axis {axis}" if bad.ndim > 1 else ""
            named.append(places(wrong.ravel()) + along)
    return (box, " and ".join(named)) if bad.sum() >= 0.9 * box.sum() else (bad, "")


def split(bad: Array, alike: Mapping[str, Array]) -> str:
    """The interval of a value that separates wrong from right elements, in words."""
    for name, array in alike.items() if 1 < bad.sum() < bad.size - 1 else ():
        for text, seen in ((name, array), (f"|{name}|", np.abs(array))):
            low, high, rest = seen[bad].min(), seen[bad].max(), seen[~bad]
            if bad.sum() > 3 and ((rest < low) | (rest > high)).all():
                return f"those where {text} is {low:.4g} to {high:.4g}"
    return ""
