"""Where a gradient of the history is wrong: a verdict, not a sample."""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.history.changepoints import Change
from gradwatch.harness.judging.cases import trials
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.judging.rounding.errors import limit_for
from gradwatch.impls.catalogue import UnknownName, load_op

#: The metric of the worst error of a gradient.
GRADIENT = "track_gradient_ratio"


def past_limit(op: str, dtype: str, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which worst ratios of a gradient, oldest first, are past what is allowed.

    What was wrong from the beginning is not among them: such are known defects.
    """
    if not (values > limit_for(0)).any():
        return np.zeros(len(values), bool)
    wrong = values > largest_limit(op, dtype)
    first = int(np.argmin(wrong)) if not wrong.all() else len(wrong)
    wrong[:first] = False
    return wrong


def step_to_wrong(op: str, dtype: str, values: NDArray[np.float64]) -> Change | None:
    """The step since which a gradient is past its limit, if the newest is.

    It needs no further runs to be certain.
    """
    past = past_limit(op, dtype, values)
    if not past[-1:].any():
        return None
    at = int(np.flatnonzero(~past)[-1]) + 1
    before, after = map(float, values[at - 1 : at + 1])
    grown = after / before - 1 if before > 0 else math.inf
    return Change(at, grown, grown, grown, before, after, "step", 1.0, True, False)


@functools.cache
def largest_limit(op: str, dtype: str) -> float:
    """The largest ratio that is right in any case of an op; infinite of no op."""
    try:
        asked = trials(load_op(op), regimes=["normal"], dtypes=[dtype])
        return max(reference(one.problem).limit for one in asked)
    except (UnknownName, KeyError):
        return math.inf
