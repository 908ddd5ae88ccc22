"""A series of the history: the figures of a benchmark over commits, as columns."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.history.recorded.asv_files import moment


@dataclass(frozen=True)
class Entry:
    """One commit's figure in a series.

    `state` is "measured", "n/a" (unsupported, missing, or a gradient that does not
    agree) or "failed"; only "measured" has a `value`. `low` and `high` are the 99 %
    interval of the median, and `samples` is their number, if there are any.
    """

    commit: str
    date: datetime.datetime  # of the commit, UTC
    state: str
    value: float | None = None
    low: float | None = None
    high: float | None = None
    samples: int = 0


@dataclass(frozen=True)
class Runs:
    """The commits of one machine and environment, oldest first, with their dates.

    `layouts` has the number of each file's layout.
    """

    commits: tuple[str, ...] = ()
    dates: tuple[int, ...] = ()  # milliseconds
    layouts: tuple[int, ...] = ()


class Figures(NamedTuple):
    """The figures of a series, oldest first, of the runs at which it is not n/a.

    places: positions in the runs.
    values: NaN where the benchmark failed.
    low, high: the 99 % interval of the median; NaN for none.
    samples: their number.
    """

    places: NDArray[np.int32]
    values: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    samples: NDArray[np.int32]

    @classmethod
    def empty(cls, count: int) -> Figures:
        """Room for so many figures."""
        whole = (np.zeros(count, np.int32) for _ in range(2))
        values, low, high = (np.full(count, np.nan) for _ in range(3))
        return cls(next(whole), values, low, high, next(whole))

    def part(self, where: slice) -> Figures:
        """Some neighbouring figures; nothing is copied."""
        values, low, high = (c[where] for c in (self.values, self.low, self.high))
        return Figures(self.places[where], values, low, high, self.samples[where])


@dataclass(frozen=True, eq=False)
class Series:
    """The figures of one benchmark with one set of parameters.

    `benchmark` is asv's name, such as bench_speed.softmax.time_backward; `versions`
    are those of the environment; lower is better in every unit. `layouts` has the
    numbers of those layouts that list it: in the runs of others it was not measured.
    """

    machine: str
    environment: str
    benchmark: str
    parameters: Mapping[str, str]
    unit: str
    versions: Mapping[str, str] = field(default_factory=dict)
    runs: Runs = field(default_factory=Runs, repr=False)
    figures: Figures = field(default=Figures.empty(0), repr=False)
    layouts: frozenset[int] = frozenset()

    @cached_property
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
    def metric(self) -> str:
        """The figure that is measured, such as time_backward."""
        return self.benchmark.split(".")[-1]

    @property
    def newest(self) -> int:
        """The newest date of a commit of its runs, in milliseconds; 0 for none."""
        return max(self.runs.dates, default=0)

    @property
    def failed(self) -> int:
        """The number of commits at which the benchmark failed."""
        return int(np.isnan(self.figures.values).sum())

    @property
    def entries(self) -> list[Entry]:
        """An entry for each commit, oldest first; made again at each call."""
        placed = {int(place): i for i, place in enumerate(self.figures.places)}
        return [
            self._entry(run, placed.get(run))
            for run, layout in enumerate(self.runs.layouts)
            if layout in self.layouts
        ]

    @property
    def measured(self) -> list[Entry]:
        """The entries that have a value."""
        places = self.figures.places.tolist()
        entries = (self._entry(run, i) for i, run in enumerate(places))
        return [entry for entry in entries if entry.value is not None]

    def at(self, commit: str) -> Entry | None:
        """The entry of a commit; None if the benchmark was not run then."""
        if commit not in self.runs.commits:
            return None
        run = self.runs.commits.index(commit)
        if self.runs.layouts[run] not in self.layouts:
            return None
        found = np.flatnonzero(self.figures.places == run)
        return self._entry(run, int(found[0]) if len(found) else None)

    def _entry(self, run: int, at: int | None) -> Entry:
        commit, date = self.runs.commits[run], moment(self.runs.dates[run])
        if at is None:
            return Entry(commit, date, "n/a")
        _, *columns, samples = self.figures
        value, low, high = (_given(float(column[at])) for column in columns)
        if value is None:
            return Entry(commit, date, "failed")
        return Entry(commit, date, "measured", value, low, high, int(samples[at]))


def _given(value: float) -> float | None:
    return None if math.isnan(value) else value
