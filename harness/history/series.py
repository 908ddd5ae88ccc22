"""A series of the history: the figures of one benchmark over commits."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple


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
