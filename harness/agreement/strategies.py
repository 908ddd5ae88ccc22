"""Hypothesis strategies for the fuzzer: shapes, values, layouts, attributes.

Everything is derived from an op's page: shapes are those of its cases with other
lengths (harness/judging/layouts.py), attributes are those of its cases and similar
ones. Most values are a centre plus a small whole number times a scale: few different
values make ties, large centres with small scales cause cancellation, and shrunk values
are easy to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
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
Draw = Any  # its type in Hypothesis is private
LONGEST = 4  # enough for all axes of a matrix product to differ
MOST = 256  # elements of an input: larger ones take longer and find nothing more

CENTRES = (0.0, 100.0, 1e4, 1e6)
SCALES = (1.0, 1e-3, 1e3)
PLAIN = (0.0, 1.0)  # a centre and a scale
DIGITS = (1, 3, 17)  # few are easy to read; 17 are needed for small scales near 1e4
SPECIAL = (-0.0, np.inf, -np.inf, np.nan)
VALUES = tuple(dict.fromkeys(regime.values for regime in REGIMES.values()))


@st.composite
def trials(draw: Draw, op: Op, source: str, risky: bool = False) -> Trial:
    """A trial of an op; `risky` ones can crash a worker.

    A risky trial has an empty input or is one of the page's odd cases. The formula may
    refuse an empty one.
    """
    case = draw(_risky_cases(op) if risky else cases(op, op.cases.values()))
    dtype = draw(st.sampled_from(("float32", "float64")))
    layout, cotangent_layout = draw(_layouts()), draw(_layouts())
    values = draw(_inputs(op, case, dtype))
    if layout == "expanded":
        values = {name: _repeated(array) for name, array in values.items()}
    cotangents = [
        None if shape is None else draw(_integers(shape, 3))
        for shape in _shapes_of_outputs(op, case)
    ]
    if cotangent_layout == "expanded":
        cotangents = [None if a is None else _repeated(a) for a in cotangents]
    problem = problem_with(op, case, values, cotangents, dtype)
    return Trial(source, case.name, "fuzz", problem, layout, cotangent_layout)


def _layouts() -> st.SearchStrategy[str]:
    return st.just("contiguous") | st.sampled_from(tuple(LAYOUTS))


# Shapes and attributes ------------------------------------------------------------


def _risky_cases(op: Op) -> st.SearchStrategy[Case]:
    empty = cases(op, (*op.cases.values(), *op.odd.values()), empty=True)
    return cases(op, op.odd.values()) | empty if op.odd else empty


@st.composite
def cases(draw: Draw, op: Op, listed: Iterable[Case], empty: bool = False) -> Case:
    """One of the listed cases, with other lengths and attributes."""
    case = draw(st.sampled_from(tuple(listed)))
    lengths = st.integers(0 if empty else 1, LONGEST)
    change = {n: draw(lengths) for n in layouts.lengths(op, case)}
    if draw(st.booleans()):  # square shapes hide some transpositions and reveal others
        change = dict.fromkeys(change, next(iter(change.values()), 1))
    case = layouts.resized(op, case, change)
    sizes = [int(np.prod(shape)) for shape in op.shapes(case).values()]
    assume(max(sizes) <= MOST and (0 in sizes) == empty)
    changed = {
        name: draw(_attribute(name, value, op, case))
        for name, value in op.attributes(case).items()
    }
    case = Case(case.name, **{**case.fields, **changed})
    assume(empty or admits(op, case))
    return case


def _attribute(name: str, value: Any, op: Op, case: Case) -> st.SearchStrategy[Any]:
    """The attributes of the page's cases, with similar axes and small numbers."""
    listed = (*op.cases.values(), *op.odd.values())
    shown = list(dict.fromkeys(op.attributes(c).get(name, value) for c in listed))
    axes = len(next(iter(op.shapes(case).values())))
    if isinstance(value, int) and not isinstance(value, bool) and axes:
        return st.integers(-axes, axes - 1)
    if isinstance(value, float):
        shown += [value / 1000]
    return st.sampled_from(shown)


def _shapes_of_outputs(op: Op, case: Case) -> Sequence[Shape | None]:
    """The shapes of a case; unknown if the formula refuses it."""
    if admits(op, case):
        return output_shapes(op, case)
    first = next(iter(op.shapes(case).values()))
    return [None if name in op.integers else first for name in op.outputs]


# Values ---------------------------------------------------------------------------


@st.composite
def _inputs(draw: Draw, op: Op, case: Case, dtype: str) -> dict[str, Array]:
    """Kinds of values: any for the first input; plain, equal or any for the others."""
    first = draw(_kinds())
    others = draw(st.sampled_from((PLAIN, first, None)))
    values: dict[str, Array] = {}
    constants = draw(_constants(op, case))
    for name, shape in op.shapes(case).items():
        if name in constants:
            values[name] = constants[name]
            continue
        kind = (others or draw(_kinds())) if values else first
        values[name] = draw(_array(shape, kind, dtype))
    return values


def _constants(op: Op, case: Case) -> st.SearchStrategy[dict[str, Array]]:
    if not getattr(op, "constants", ()):  # an older commit's op knows of none
        return st.just({})
    generators = st.integers(0, 2**16).map(np.random.default_rng)
    return generators.map(lambda rng: constants_of(op, case, rng))


def _kinds() -> st.SearchStrategy[Any]:
    """A centre and a scale, or a regime."""
    grid = st.tuples(st.sampled_from(CENTRES), st.sampled_from(SCALES))
    return grid | grid | st.sampled_from(VALUES)


@st.composite
def _array(draw: Draw, shape: Shape, kind: Any, dtype: str) -> Array:
    if not isinstance(kind, tuple):
        rng = np.random.default_rng(draw(st.integers(0, 2**16)))
        values: Array = np.asarray(kind(rng, shape, PRECISIONS[dtype]))
        return rounded(values, draw(st.sampled_from(DIGITS)))
    centre, scale = kind
    values = centre + scale * draw(_integers(shape, 4))
    places = st.integers(0, max(values.size - 1, 0))
    few = st.lists(st.tuples(places, st.sampled_from(SPECIAL)), max_size=2)
    for place, special in draw(st.just([]) | st.just([]) | few) if values.size else ():
        values.flat[place] = special
    return values


def rounded(values: Array, digits: int) -> Array:
    """The values, rounded to some significant decimal digits, in float64."""
    few = [float(f"{value:.{digits - 1}e}") for value in values.flat]
    return np.reshape(few, values.shape)


def _integers(shape: Shape, largest: int) -> st.SearchStrategy[Array]:
    """Each element is drawn by itself: an array of equal numbers cancels nothing."""
    whole = st.integers(-largest, largest)
    return npst.arrays(np.float64, shape, elements=whole, fill=st.nothing())


def _repeated(array: Array) -> Array:
    """Values equal along the first axis longer than 1, so that its stride can be 0."""
    for axis, length in enumerate(array.shape):
        if length > 1:
            return np.repeat(array.take([0], axis), length, axis)
    return array
