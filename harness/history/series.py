"""A series of the history: the figures of one benchmark over commits."""

from __future__ import annotations

import datetime
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.history.changepoints import Change
from gradwatch.harness.judging.cases import trials
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.judging.rounding.errors import limit_for
from gradwatch.impls.catalogue import UnknownName, load_op


class Entry(NamedTuple):
    """One commit's figure in a series.

    `value` is None if the benchmark failed. `low` and `high` are the 99 % interval of
    the median, and `samples` is their number, if there are any.
    """

    commit: str
    date: datetime.datetime  # of the commit, UTC
    value: float | None
    low: float | None = None
    high: float | None = None
    samples: int = 0


@dataclass(frozen=True, eq=False)
class Series:
    """The figures of one benchmark with one set of parameters, oldest first.

    `benchmark` is asv's name, such as bench_speed.softmax.time_backward; `versions`
    are those of the environment; lower is better in every unit. A commit at which the
    benchmark was n/a (unsupported, missing, or a gradient that does not agree) has no
    entry.
    """

    machine: str
    environment: str
    benchmark: str
    parameters: Mapping[str, str]
    unit: str
    versions: Mapping[str, str] = field(default_factory=dict)
    entries: tuple[Entry, ...] = field(default=(), repr=False)

    @functools.cached_property
    def name(self) -> str:
        """Benchmark and parameters: bench_speed.dot.time_backward/64/float32."""
        return "/".join((self.benchmark, *self.parameters.values()))

    @property
    def suite(self) -> str:
        """The set of benchmarks, such as bench_speed."""
        return self.benchmark.split(".")[0]

    @property
    def op(self) -> str:
        """The op that is measured."""
        return self.benchmark.split(".")[1]

    @property
    def backend(self) -> str:
        """What runs the op; "" if no parameter says so."""
        return self.parameters.get("backend", "")

    @property
    def metric(self) -> str:
        """The figure that is measured, such as time_backward."""
        return self.benchmark.split(".")[-1]

    @property
    def measured(self) -> list[Entry]:
        """The entries that have a value."""
        return [entry for entry in self.entries if entry.value is not None]

    def at(self, commit: str) -> Entry | None:
        """The entry of a commit; None if the benchmark was n/a or not run then."""
        return next((one for one in self.entries if one.commit == commit), None)


# A wrong gradient is a verdict, not a sample ----------------------------------------

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
