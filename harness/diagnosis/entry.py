"""`judge` and `assert_agrees`: gradients that were computed elsewhere, by a user.

The op and the arrays are checked here, and brought into the form that the judge takes.
"""

from __future__ import annotations

import html
import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradwatch.harness.diagnosis.search import Diagnoses
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.orders import ORDERS, run_formula
from gradwatch.harness.judging.precisions import PRECISIONS, Array, name_of
from gradwatch.harness.judging.question import Question
from gradwatch.harness.project.verdicts import PASSING, SIGNS
from gradwatch.impls import catalogue, graph
from gradwatch.impls.catalogue import known
from gradwatch.impls.contract import Op, Problem


def judge(
    op: str | Op,
    inputs: Sequence[Any],
    dy: Any,
    gradients: Sequence[Any],
    *,
    outputs: Sequence[Any] | None = None,
    attributes: Mapping[str, Any] | None = None,
    dtype: str | None = None,
    compute: str | None = None,
    order: str = "vjp",
    tangents: Sequence[Any] = (),
) -> Judgements:
    """Judge gradients that were computed elsewhere.

    Args:
        op: The name of an op, or an `Op` of your own with a formula.
        inputs: Arrays in the op's order.
        dy: The cotangent, of the output's shape; a sequence of them, one for each
            output, where the op has several (None for an integer output).
        gradients: One array, or None, for each input that has a gradient, in order.
        outputs: The outputs, to be judged as well.
        attributes: Other arguments of the formula, such as {"axis": -1}.
        dtype: Precision in which the gradients were computed, one of float64, float32,
            float16, bfloat16; by default that of the inputs. Give it where the arrays
            are wider than the computation (NumPy has no bfloat16).
        compute: Precision of intermediate values: "float32" for a 16-bit kernel that
            keeps float32 inside and rounds once, "mixed" for one that rounds every step
            and accumulates sums in float32, the dtype itself for one that accumulates
            in 16 bits; "tf32" for float32 with TF32 products. By default the precision
            of frameworks: for 16 bits "float32" or "mixed", and each judgement says
            which.
        order: The kind of `gradients`. "vjp": the gradients. "jvp": forward mode, the
            tangent of each output; `dy` is not used. "hvp": the double backward, the
            gradients of the sum of all dx * v by each input, then by each cotangent.
        tangents: v, an array for each input that has a gradient, for the last two.

    Returns:
        A Judgement for each gradient; then, if outputs are given, one for each of them.
        The tuple shows itself as a table, at a prompt and in a notebook.

    Raises:
        UnknownName: no op has that name (a LookupError).
        ValueError: the call itself is wrong: number or shape of arrays, attributes.
    """
    problem = _problem(op, inputs, dy, dict(attributes or {}), dtype)
    if known("order", order, ORDERS) != "vjp":
        problem = _of_order(problem, order, tangents)
        if outputs is not None:
            raise ValueError("outputs are judged with the gradients: order vjp")
    op = problem.op
    named = _each(op, "gradients", problem.derivatives, gradients)
    if outputs is not None:
        named |= _each(op, "outputs", op.outputs, outputs)
    # Of the precision under test, or of the inputs' wider type.
    holders = {problem.dtype, *_floating(op, inputs)}
    got = {name: None if a is None else _array(a) for name, a in named.items()}
    dtypes = {n: problem.dtype for n, a in named.items() if _dtype_of(a) in holders}
    question = Question.of(problem, compute)
    return Judgements(Diagnoses().told_of(question, got, question.judge(got, dtypes)))


def assert_agrees(
    op: str | Op,
    inputs: Sequence[Any],
    dy: Any,
    gradients: Sequence[Any],
    *,
    allow_vacuous: bool = False,
    strict: bool = False,
    **more: Any,
) -> None:
    """Raise unless every gradient is as right as its precision allows.

    Args:
        op, inputs, dy, gradients, more: The arguments of `judge`.
        allow_vacuous: Accept a tensor of which nothing can be said.
        strict: Reject one that is `imprecise`.

    Raises:
        AssertionError: one gradient or more is wrong, or nothing can be said of it; the
            message says op, tensor, index, got, expected, radius and ratio of each, and
            the mistake that gives these values, where one is found.
    """
    judgements = judge(op, inputs, dy, gradients, **more)
    name = op if isinstance(op, str) else op.name
    refused = {"vacuous": not allow_vacuous, "imprecise": strict}
    wrong = [j for j in judgements if not j.passes or refused.get(j.verdict)]
    if wrong:
        raise AssertionError("\n".join(f"{name}: {j.story}" for j in wrong))


def _problem(
    op: str | Op, inputs: Sequence[Any], dy: Any, attributes: dict[str, Any], dtype: Any
) -> Problem:
    op = catalogue.load_op(op) if isinstance(op, str) else op
    arrays = _each(op, "inputs", op.inputs, [_array(a) for a in inputs])
    try:
        inspect.signature(op.said("formula")).bind(None, *op.inputs, **attributes)
    except TypeError as error:
        raise ValueError(f"the formula of {op.name}: {error}") from None
    several = isinstance(dy, (tuple, list)) and len(op.outputs) > 1
    cotangents = list(dy) if several else [dy]
    if dy is None:
        cotangents *= len(op.outputs)
    _each(op, "cotangents of the outputs", op.outputs, cotangents)
    held = sorted({*_floating(op, inputs)})
    if dtype is None:
        if len(held) > 1:
            raise ValueError(f"inputs of several dtypes ({', '.join(held)}): say which")
        (dtype,) = held
    if dtype not in PRECISIONS:
        raise ValueError(f"no precision {dtype!r}; one of {', '.join(PRECISIONS)}")
    size = {n: 2 if n == "bfloat16" else np.dtype(n).itemsize for n in (*held, dtype)}
    if narrow := [name for name in held if size[name] < size[dtype]]:
        raise ValueError(f"inputs of {narrow[0]} cannot hold {dtype}")
    cotangents = [None if c is None else _array(c) for c in cotangents]
    return Problem(op, arrays, cotangents, attributes, dtype=dtype)


def _each(
    op: Op, kind: str, names: Sequence[str], given: Sequence[Any]
) -> dict[str, Any]:
    """The given values by name; ValueError unless there is one for each."""
    if len(given) != len(names):
        wanted = ", ".join(names)
        raise ValueError(f"{op.name} has {kind} {wanted}; {len(given)} given")
    return dict(zip(names, given, strict=True))


def _floating(op: Op, inputs: Sequence[Any]) -> list[str]:
    """The dtypes of all inputs but constants of integers or booleans."""
    named = ((name, _dtype_of(a)) for name, a in zip(op.inputs, inputs, strict=True))
    whole = ("bool", "int", "uint")
    return [t for n, t in named if n not in op.constants or not t.startswith(whole)]


def _of_order(problem: Problem, order: str, tangents: Sequence[Any]) -> Problem:
    """The problem in a second order; forward mode needs no cotangent."""
    op = problem.op
    along = _each(op, "tangents of", op.differentiable, [_array(v) for v in tangents])
    for name, v in along.items():
        if v.shape != (shape := problem.inputs[name].shape):
            raise ValueError(f"the tangent of {name} has shape {v.shape}, not {shape}")
    cotangents = problem.cotangents
    if order == "jvp":
        leaves = {name: graph.variable(a) for name, a in problem.inputs.items()}
        results = zip(op.outputs, run_formula(problem, leaves), strict=False)
        cotangents = [
            None if name in op.integers else np.zeros(y.shape) for name, y in results
        ]
    return replace(problem, order=order, tangents=along, cotangents=cotangents)


def _dtype_of(given: Any) -> str:
    """Name of the dtype of an array, or of a framework's tensor; "" of None."""
    if given is None:
        return ""
    return name_of((given if hasattr(given, "dtype") else _array(given)).dtype)


def _array(given: Any) -> Array:
    """An array or tensor as NumPy's; bfloat16 becomes float32, which holds it."""
    if hasattr(given, "detach"):
        given = given.detach().cpu()
        if _dtype_of(given) == "bfloat16":
            given = given.float()
        given = given.numpy()
    elif hasattr(given, "__dlpack__") and not hasattr(given, "__array__"):
        given = np.from_dlpack(given)
    return np.asarray(given)


_GOOD, _BAD, _OTHER = "#2e8b57", "#d4351c", "#a8730e"  # readable on white and on black
_COLOURS = {
    sign: _OTHER if name in PASSING else _BAD for name, (sign, _) in SIGNS.items()
} | {SIGNS["agree"][0]: _GOOD}

Cells = Sequence[Sequence[str]]  # the header first


class Judgements(tuple[Judgement, ...]):
    """The judgements of a call: a tuple that shows itself as a table."""

    __slots__ = ()

    def __repr__(self) -> str:
        notes = [j.story for j in self if not j.passes]
        return "\n".join([*as_text(self._cells()), *filter(None, notes)])

    def _repr_html_(self) -> str:
        return as_html(self._cells(), notes=[j.story for j in self if not j.passes])

    def _cells(self) -> list[tuple[str, ...]]:
        names = ("tensor", "verdict", "got", "expected", "ratio", "limit", "at")
        return [("", *names), *map(_cells, self)]


def _cells(j: Judgement) -> tuple[str, ...]:
    sign, at = SIGNS[j.verdict][0], ", ".join(map(str, j.worst_index))
    if j.ratio != j.ratio:  # nothing was compared
        return (sign, j.tensor, j.verdict, "", "", "", "", "")
    values = (f"{j.got:.6g}", f"{j.expected:.6g}", f"{j.ratio:.3g}", f"{j.limit:.3g}")
    return (sign, j.tensor, j.verdict, *values, f"[{at}]" if at else "")


def as_text(cells: Cells, width: int = 0, fold: int = 0) -> list[str]:
    """The lines of a table with columns of equal width.

    Where that is wider than `width`, columns from `fold` on stand below the others.
    """
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    if not fold or max(map(len, lines)) <= width:
        return lines
    upper, lower = (
        [row[part] for row in cells] for part in (slice(fold), slice(fold, None))
    )
    pairs = zip(as_text(upper), as_text(lower), strict=True)
    return [line for one, other in pairs for line in (one, f"   {other}".rstrip())]


def as_html(
    cells: Cells, headline: str = "", notes: Iterable[str] = (), folded: str = ""
) -> str:
    """A table with a headline above and notes below; `folded` is code to unfold."""
    parts = [f"<p><b>{html.escape(headline)}</b></p>"] if headline else []
    head, *rows = (_line("td" if i else "th", row) for i, row in enumerate(cells))
    parts += [f"<table><thead>{head}</thead><tbody>", *rows, "</tbody></table>"]
    for note in filter(None, notes):
        said = re.sub("`(.+?)`", r"<code>\1</code>", html.escape(note))
        parts.append(f"<p>{said}</p>")
    if folded:
        parts.append("<details><summary>a script that shows it</summary>")
        parts.append(f"<pre>{html.escape(folded)}</pre></details>")
    return "".join(parts)


def _line(tag: str, cells: Sequence[str]) -> str:
    """A row of HTML; sign and verdict have the verdict's colour."""
    made, colour = [], _COLOURS.get(cells[0], "")
    for cell in cells:
        bold = colour and (cell == cells[0] or cell in SIGNS)
        style = f' style="color:{colour};font-weight:bold"' if bold else ""
        made.append(f"<{tag}{style}>{html.escape(cell)}</{tag}>")
    return f"<tr>{''.join(made)}</tr>"
