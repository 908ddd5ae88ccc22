"""A finding as a plain script: the framework's own call, and the exact answer.

Inputs, exact values and allowed errors are literals in the script, which needs NumPy
and the framework alone. It exits with 1 while the defect is there.
"""

from __future__ import annotations

import re
import textwrap
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.agreement.calls import Unwritten, calls
from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.reference import Reference, Truth
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.project.verdicts import DEATHS
from gradwatch.harness.workers.arrays import numbers_in, values_of
from gradwatch.impls.catalogue import framework_of

Array = NDArray[Any]


class Right(NamedTuple):
    """The exact value of a tensor, the allowed error, and whether all is `known`."""

    exact: str
    allowed: str
    shape: tuple[int, ...]
    known: bool


@cache
def template(name: str) -> Any:
    """A script's template, of the folder `templates`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(str(__package__)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["repr"] = repr
    return environment.get_template(name)


def repro(
    trial: Trial,
    backend: str,
    record: AgreeRecord,
    headline: str,
    right: Reference | None = None,
    *,
    about: str = "",
) -> str:
    """The text of a script that exits 1 while the defect is there, 0 when it is gone.

    Args:
        trial: The input.
        backend: The one that fails.
        record: How it fails.
        headline: The first line of the docstring.
        right: The exact answers; None if the op's formula refuses the input.
        about: More for the docstring.
    """
    problem, op, lines = trial.problem, trial.problem.op, list[str]()
    framework, dialect = framework_of(backend), dialect_of(backend)
    with suppress(Unwritten):  # else the project's own code is called
        lines = calls(problem, framework, dialect) if framework != "numpy" else []
    whole = record.tensor not in op.outputs or dialect == "custom"
    dys = zip(op.outputs, problem.cotangents, strict=True)
    given = {**problem.inputs, **{f"d{n}": dy for n, dy in dys if dy is not None}}
    tensors = []
    for name, array in given.items():
        is_input = name in problem.inputs
        laid = trial.layout if is_input else trial.cotangent_layout
        kind = problem.dtype if lines and array.dtype.kind == "f" else array.dtype.name
        if whole or is_input:
            wanted = whole and name in problem.wanted
            tensors.append((name, values_of(array, laid), kind, wanted))
    ways = _ways(right, record)
    text: str = template("finding.py.j2").render(
        trial=trial,
        problem=problem,
        record=record,
        docstring=_docstring(headline, about),
        framework=framework,
        flavour=backend.partition("_")[2],
        backend=backend,
        lines=lines,
        tensors=tensors,
        cotangents=", ".join(map(_written, problem.cotangents)),
        whole=whole,
        custom=dialect == "custom",
        fresh=problem.empty and ways and framework == "oneflow",
        dies=record.verdict in DEATHS,
        ways=ways,
        uses=lambda name, code: re.search(rf"(?<![.\w]){name}\b", code),
    )
    return text


def dialect_of(backend: str) -> str:
    """The dialect of a backend, from its name: torch_autograd."""
    flavour = backend.partition("_")[2]
    spoken = {"graph": "formula", "jit": "formula", "compile": "autograd"}
    return spoken.get(flavour, flavour)


def _written(array: Array | None) -> str:
    if array is None:
        return "None"
    return f"np.array({values_of(array)}, {array.dtype.name!r})"


def _docstring(headline: str, about: str) -> str:
    paragraphs = [textwrap.fill(p, 88) for p in about.splitlines()]
    text = "\n".join([textwrap.fill(f"{headline}.", 85), "", *paragraphs]).strip()
    quotes = '\n"""' if "\n" in text else '"""'
    return '"""' + text.replace("\\", "\\\\") + quotes


def _ways(right: Reference | None, record: AgreeRecord) -> list[dict[str, Right]]:
    """What is right of each tensor, for each way of breaking ties.

    All tensors that depend on the tie are included: a maximum that passes its cotangent
    on to both inputs is wrong, although each gradient is right by one convention.
    """
    tensor, ways = record.tensor, list(right.truths.values()) if right else [{}]
    if right is None or tensor not in ways[0]:  # "all", of a crash or an error
        return []
    names = [n for n in ways[0] if n == tensor or right.depends_on_ties(n)]
    limit = record.limit if record.limit is not None else right.limit
    found = [{n: _right(truths[n], limit) for n in names} for truths in ways]
    return list({str(way): way for way in found}.values())


def _right(truth: Truth, limit: float) -> Right:
    """Where an infinity is due, it is exact; where nothing is known, all is right.

    Allowed errors have three digits, and are one number where they are the same.
    """
    exact, allowed = truth.value, limit * truth.radius
    if exact.dtype.kind not in "biu":
        with np.errstate(all="ignore"):  # of extended precision
            exact = exact.astype(np.float64)
            exact = np.where(truth.infinite, np.copysign(np.inf, exact), exact)
            allowed = np.where(truth.infinite, 0.0, allowed)
        known = ~np.isnan(exact)
        exact, allowed = np.where(known, exact, 0.0), np.where(known, allowed, np.inf)
    short = np.array([float(f"{a:.3g}") for a in allowed.flat] or [0.0])
    shown = f"np.array({values_of(short.reshape(allowed.shape))})"
    if len(set(short.tolist())) == 1:
        shown = numbers_in(short[0])
    is_known = bool(np.isfinite(allowed).all())
    return Right(f"np.array({values_of(exact)})", shown, exact.shape, is_known)
