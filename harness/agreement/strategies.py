"""What the fuzzer draws: an op's cases at other lengths, in a mixture of regimes.

Everything is derived from an op's page and from the suite's regimes: shapes are those
of its cases with other lengths (harness/judging/layouts.py), attributes are those of
its cases and similar ones, and values, layout and cotangent are each of any regime.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwatch.harness.judging import layouts
from gradwatch.harness.judging.cases import REGIMES, Regime, Trial, admits, trial
from gradwatch.impls.contract import Case, Op

Rng = np.random.Generator
LONGEST = 4  # enough for all axes of a matrix product to differ
MOST = 256  # elements of an input: larger ones take longer and find nothing more
TRIES = 50  # cases drawn for one that the op admits


def draw_trial(rng: Rng, op: Op, source: str, risky: bool = False) -> Trial | None:
    """Draw a trial of an op; None if none of `TRIES` cases is admitted.

    A `risky` trial, which can crash a worker, has an empty input or is one of the
    page's odd cases.
    """
    drawn = (_draw_case(rng, op, risky) for _ in range(TRIES))
    case = next(filter(None, drawn), None)
    if case is None:
        return None
    values, laid, given = (_one(rng, [*REGIMES.values()]) for _ in range(3))
    mixture = Regime(
        "fuzz",
        # A stride of 0 takes values that are repeated.
        (laid if laid.layout == "expanded" else values).values,
        cotangent=given.cotangent,
        layout=laid.layout,
        cotangent_layout=given.cotangent_layout,
        first_only=values.first_only,
    )
    dtype, seed = _one(rng, ("float32", "float64")), int(rng.integers(2**32))
    return trial(op, case, mixture, dtype, seed, source)


def _one(rng: Rng, among: Sequence[Any]) -> Any:
    return among[int(rng.integers(len(among)))]


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
    return case if admits(op, case) else None


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
