"""What the fuzzer draws: shapes, values, layouts, attributes.

Everything is derived from an op's page: shapes are those of its cases with other
lengths (harness/judging/layouts.py), attributes are those of its cases and similar
ones. Most values are a centre plus a small whole number times a scale: few different
values make ties, large centres with small scales cause cancellation, and shrunk values
are easy to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging import layouts
from gradwatch.harness.judging.cases import (
    REGIMES,
    Trial,
    admits,
    constants_of,
    output_shapes,
    problem_with,
)
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.workers.arrays import LAYOUTS
from gradwatch.impls.contract import Case, Op, Shape

Array = NDArray[Any]
Rng = np.random.Generator
LONGEST = 4  # enough for all axes of a matrix product to differ
MOST = 256  # elements of an input: larger ones take longer and find nothing more
TRIES = 50  # cases drawn for one that the op admits

CENTRES = (0.0, 100.0, 1e4, 1e6)
SCALES = (1.0, 1e-3, 1e3)
PLAIN = (0.0, 1.0)  # a centre and a scale
DIGITS = (1, 3, 17)  # few are easy to read; 17 are needed for small scales near 1e4
SPECIAL = (-0.0, np.inf, -np.inf, np.nan)
VALUES = tuple(dict.fromkeys(regime.values for regime in REGIMES.values()))


def draw_trial(rng: Rng, op: Op, source: str, risky: bool = False) -> Trial | None:
    """Draw a trial of an op; None if none of `TRIES` cases is admitted.

    A `risky` trial, which can crash a worker, has an empty input or is one of the
    page's odd cases. The formula may refuse an empty one.
    """
    drawn = (_draw_case(rng, op, risky) for _ in range(TRIES))
    case = next(filter(None, drawn), None)
    if case is None:
        return None
    dtype = _one(rng, ("float32", "float64"))
    layout, cotangent_layout = _draw_layout(rng), _draw_layout(rng)
    values = _draw_inputs(rng, op, case, dtype)
    if layout == "expanded":
        values = {name: _repeated(array) for name, array in values.items()}
    cotangents = [
        None if shape is None else _integers(rng, shape, 3)
        for shape in _shapes_of_outputs(op, case)
    ]
    if cotangent_layout == "expanded":
        cotangents = [None if a is None else _repeated(a) for a in cotangents]
    problem = problem_with(op, case, values, cotangents, dtype)
    return Trial(source, case.name, "fuzz", problem, layout, cotangent_layout)


def _one(rng: Rng, among: Sequence[Any]) -> Any:
    return among[int(rng.integers(len(among)))]


def _draw_layout(rng: Rng) -> str:
    return _one(rng, tuple(LAYOUTS)) if rng.random() < 0.5 else "contiguous"


# Shapes and attributes ------------------------------------------------------------


def _draw_case(rng: Rng, op: Op, risky: bool) -> Case | None:
    """Draw a case of the page with other lengths and attributes; None if refused."""
    usual, odd = (*op.cases.values(),), (*op.odd.values(),)
    empty = risky and not (odd and rng.random() < 0.5)
    case = _one(rng, (*usual, *odd) if empty else odd if risky else usual)
    names = layouts.lengths(op, case)
    change = {n: int(rng.integers(0 if empty else 1, LONGEST + 1)) for n in names}
    if rng.random() < 0.5:  # square shapes hide some transpositions and reveal others
        change = dict.fromkeys(change, next(iter(change.values()), 1))
    case = layouts.resized(op, case, change)
    sizes = [int(np.prod(shape)) for shape in op.shapes(case).values()]
    if max(sizes) > MOST or (0 in sizes) != empty:
        return None
    changed = {
        name: _draw_attribute(rng, name, value, op, case)
        for name, value in op.attributes(case).items()
    }
    case = Case(case.name, **{**case.fields, **changed})
    return case if empty or admits(op, case) else None


def _draw_attribute(rng: Rng, name: str, value: Any, op: Op, case: Case) -> Any:
    """Draw from the attributes of the page's cases, similar axes and small numbers."""
    listed = (*op.cases.values(), *op.odd.values())
    shown = list(dict.fromkeys(op.attributes(c).get(name, value) for c in listed))
    axes = len(next(iter(op.shapes(case).values())))
    if isinstance(value, int) and not isinstance(value, bool) and axes:
        return int(rng.integers(-axes, axes))
    if isinstance(value, float):
        shown += [value / 1000]
    return _one(rng, shown)


def _shapes_of_outputs(op: Op, case: Case) -> Sequence[Shape | None]:
    """The shapes of a case; unknown if the formula refuses it."""
    if admits(op, case):
        return output_shapes(op, case)
    first = next(iter(op.shapes(case).values()))
    return [None if name in op.integers else first for name in op.outputs]


# Values ---------------------------------------------------------------------------


def _draw_inputs(rng: Rng, op: Op, case: Case, dtype: str) -> dict[str, Array]:
    """Draw any kind of values for the first input, plain, equal or any for others."""
    first = _draw_kind(rng)
    others = _one(rng, (PLAIN, first, None))
    has_constants = getattr(op, "constants", ())  # an older commit's op knows of none
    values = dict(constants_of(op, case, rng) if has_constants else {})
    for i, (name, shape) in enumerate(op.shapes(case).items()):
        if name not in values:
            kind = first if i == 0 else others or _draw_kind(rng)
            values[name] = _draw_array(rng, shape, kind, dtype)
    return {name: values[name] for name in op.shapes(case)}


def _draw_kind(rng: Rng) -> Any:
    """Draw a centre and a scale, or a regime."""
    if rng.random() < 2 / 3:
        return _one(rng, CENTRES), _one(rng, SCALES)
    return _one(rng, VALUES)


def _draw_array(rng: Rng, shape: Shape, kind: Any, dtype: str) -> Array:
    if not isinstance(kind, tuple):
        values: Array = np.asarray(kind(rng, shape, PRECISIONS[dtype]))
        return rounded(values, _one(rng, DIGITS))
    centre, scale = kind
    values = centre + scale * _integers(rng, shape, 4)
    if values.size and rng.random() < 1 / 3:
        for _ in range(rng.integers(3)):
            values.flat[rng.integers(values.size)] = _one(rng, SPECIAL)
    return values


def rounded(values: Array, digits: int) -> Array:
    """The values, rounded to some significant decimal digits, in float64."""
    few = [float(f"{value:.{digits - 1}e}") for value in values.flat]
    return np.reshape(few, values.shape)


def _integers(rng: Rng, shape: Shape, largest: int) -> Array:
    return np.asarray(rng.integers(-largest, largest + 1, shape), np.float64)


def _repeated(array: Array) -> Array:
    """Values equal along the first axis longer than 1, so that its stride can be 0."""
    for axis, length in enumerate(array.shape):
        if length > 1:
            return np.repeat(array.take([0], axis), length, axis)
    return array
