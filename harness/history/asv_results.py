"""Reads the recorded history: asv's result files as series of values.

A series belongs to one machine, one environment, one benchmark and one set of
parameters; two are never merged. Reading is strict: an unreadable file is reported,
because a silently missing point looks like a benchmark that was not run.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.history.changepoints import Change
from gradwatch.harness.judging.cases import trials
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.judging.rounding.analysis import limit_for
from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Unreadable
from gradwatch.impls.catalogue import UnknownName, load_op

_API = 2  # asv's version of results and of the list of benchmarks
_MACHINE_API = 1

#: The most combinations of parameters in one file; ours have 5,000. Lists of parameters
#: of some kilobytes can have more combinations than fit into memory.
CELLS = 1_000_000
#: The most bytes of one file, which take 25 times as much memory; ours have 1 MB.
LONGEST = 16 << 20

_T = TypeVar("_T")


def read(
    folder: Path, order: Iterable[str], troubles: list[Unreadable]
) -> tuple[Series, ...]:
    """All series in a results folder of asv that have any figure.

    Args:
        folder: The results folder; empty or missing means no history yet.
        order: Commits, oldest first. Others come before these, sorted by date.
        troubles: Takes the reason for each file that is not read: it is damaged,
            foreign, a duplicate, or of another machine.

    Raises:
        Unreadable: benchmarks.json is damaged.
    """
    files = [f for f in folder.glob("[!.]*/*.json") if f.name != "machine.json"]
    if not files:
        return ()
    listed = _load(folder / "benchmarks.json", _API)
    del listed["version"]
    known = _typed(folder / "benchmarks.json", listed, dict[str, _Benchmark])
    runs = dict[tuple[str, ...], _Run]()

    @contextlib.contextmanager
    def telling() -> Iterator[None]:
        try:
            yield
        except Unreadable as error:  # a new one: the frames of this hold the content
            troubles.append(Unreadable(error.why, error.file))

    for place, its in itertools.groupby(sorted(files), lambda file: file.parent):
        with telling():
            about = place / "machine.json"
            if (stated := _load(about).get("machine")) != place.name:
                raise Unreadable(f"of machine {str(stated)[:80]!r}", about)
            for file in its:
                with telling():
                    run = _read_run(file)
                    key = place.name, run.content.env_name, run.content.commit_hash
                    if key in runs:
                        why = f"the same commit as in {runs[key].file.name}"
                        raise Unreadable(why, file)
                    runs[key] = run
    rank = {commit: i for i, commit in enumerate(order)}
    return tuple(_series(runs.values(), known, rank))


def _series(
    runs: Iterable[_Run], known: Mapping[str, _Benchmark], rank: Mapping[str, int]
) -> Iterator[Series]:
    """The runs of each machine and environment as series."""
    entries = defaultdict[tuple[str, str], dict[_Point, list[Entry]]](dict)
    versions: dict[tuple[str, str], Mapping[str, str]] = {}

    def age(run: _Run) -> tuple[int, int]:
        return rank.get(run.content.commit_hash, -1), run.content.date

    for run in sorted(runs, key=age):
        place = (run.file.parent.name, run.content.env_name)
        versions.setdefault(place, run.content.requirements)
        for point, entry in run.entries.items():
            entries[place].setdefault(point, []).append(entry)
    for place in sorted(entries):
        for (name, values), several in entries[place].items():
            about = known.get(name, _Benchmark())
            names = about.param_names
            if len(names) != len(values):
                names = [f"param{i}" for i in range(len(values))]
            # asv stores a parameter as its repr.
            plain = (v[1:-1] if v[:1] == v[-1:] == "'" else v for v in values)
            given = dict(zip(names, plain, strict=True))
            of_it = tuple(several)
            yield Series(*place, name, given, about.unit, versions[place], of_it)


# Result files -------------------------------------------------------------------

#: A benchmark, and the reprs of its parameters' values.
_Point = tuple[str, tuple[str, ...]]


class _Content(msgspec.Struct):
    """The fields that we need of a result file of asv: one commit, one environment.

    date: of the commit, in milliseconds, up to the year 9999.
    """

    commit_hash: str
    env_name: str
    date: Annotated[int, msgspec.Meta(ge=0, lt=253_402_300_800_000)]
    params: dict[str, Any]
    requirements: dict[str, str]
    result_columns: list[str]
    results: dict[str, list[Any]]


class _Row(msgspec.Struct):
    """The columns that we need of a benchmark; a value for each combination.

    In asv, NaN means n/a, null a failure, infinite no interval.
    """

    params: list[list[str]] | None = None
    result: list[float | None] | None = None
    stats_ci_99_a: list[float | None] | None = None
    stats_ci_99_b: list[float | None] | None = None


class _Benchmark(msgspec.Struct):
    """The fields that we need of a benchmark in asv's list."""

    param_names: list[str] = []
    unit: str = "unit"


class _Run(NamedTuple):
    file: Path
    content: _Content
    entries: Mapping[_Point, Entry]


def _read_run(file: Path) -> _Run:
    content = _typed(file, _load(file, _API), _Content)
    if not file.name.startswith(f"{content.commit_hash[:8]}-"):
        raise Unreadable(f"is of commit {content.commit_hash[:8]}", file)
    machine = str(content.params.get("machine"))
    if file.parent.name != machine:
        raise Unreadable(f"results of machine {machine[:80]!r}", file)
    return _Run(file, content, dict(_entries(file, content)))


def _entries(file: Path, content: _Content) -> Iterator[tuple[_Point, Entry]]:
    """The figures of a file that are not n/a."""
    cells, seconds = 0, content.date / 1000
    date = datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)
    for name, values in content.results.items():
        if name.count(".") < 2:
            raise Unreadable(f"{name} is no suite.op.metric", file)
        # A row may end before the last columns.
        named = dict(zip(content.result_columns, values, strict=False))
        params, *columns = msgspec.structs.astuple(_typed(file, named, _Row))
        count = math.prod(map(len, params or []))
        cells += count
        if cells > CELLS:
            raise Unreadable(f"more than {CELLS:,} combinations of parameters", file)
        full = [[None] * count if column is None else column for column in columns]
        if any(len(column) != count for column in full):
            raise Unreadable(f"{name} has not {count} figures", file)
        figures = zip(itertools.product(*params or []), *full, strict=True)
        for point, value, low, high in figures:
            if value is None or not math.isnan(value):
                if low is not None and low <= 0:
                    # asv's interval of a few disturbed samples: no time is negative.
                    low = high = None
                value, low, high = (
                    one if one is not None and math.isfinite(one) else None
                    for one in (value, low, high)
                )
                yield (name, point), Entry(content.commit_hash, date, value, low, high)


# Other files --------------------------------------------------------------------


def _load(file: Path, api: int = _MACHINE_API) -> dict[str, Any]:
    """The content of a file of asv, which writes NaN, unlike strict JSON."""
    raw = documents.bytes_of(file)
    if len(raw) > LONGEST:
        raise Unreadable(f"more than {LONGEST >> 20} MB", file)
    try:
        content = json.loads(raw)
        if b"\\ud" in raw.lower():
            json.dumps(content, ensure_ascii=False).encode()  # or half a surrogate pair
    except RecursionError:
        raise Unreadable("nested too deeply", file) from None
    except ValueError as error:
        raise Unreadable(f"not readable as JSON ({error})", file) from None
    if not isinstance(content, dict) or content.get("version") != api:
        raise Unreadable(f"not a file of asv, or not of version {api}", file)
    return content


def _typed(file: Path, content: Any, kind: type[_T]) -> _T:
    """The content as a value of a type; raises Unreadable if it is of another one."""
    try:
        return msgspec.convert(content, kind)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise Unreadable(str(error), file) from None


# Series -----------------------------------------------------------------------------


class Entry(NamedTuple):
    """One commit's figure in a series.

    `value` is None if the benchmark failed. `low` and `high` are the 99 % interval of
    the median, if there are samples.
    """

    commit: str
    date: datetime.datetime  # of the commit, UTC
    value: float | None
    low: float | None = None
    high: float | None = None


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
    def op(self) -> str:
        """The op that is measured."""
        return self.benchmark.split(".")[1]

    @property
    def backend(self) -> str:
        """The backend that runs the op; "" if no parameter names one."""
        return self.parameters.get("backend", "")

    @property
    def metric(self) -> str:
        """The figure that is measured, such as time_backward."""
        return self.benchmark.split(".")[-1]


# A wrong gradient is a verdict, not a sample ----------------------------------------

#: The metric of the worst error of a gradient.
GRADIENT = "track_gradient_ratio"


def past_limit(op: str, dtype: str, values: NDArray[np.float64]) -> NDArray[np.bool_]:
    """A mask of the worst ratios of a gradient, oldest first, that exceed the limit.

    Ratios that exceed it from the beginning do not count: these are known defects.
    """
    if not (values > limit_for(0)).any():
        return np.zeros(len(values), bool)
    wrong = values > largest_limit(op, dtype)
    first = int(np.argmin(wrong)) if not wrong.all() else len(wrong)
    wrong[:first] = False
    return wrong


def step_to_wrong(op: str, dtype: str, values: NDArray[np.float64]) -> Change | None:
    """The step since which a gradient exceeds its limit, if the newest one does.

    It is certain without further runs.
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
    """The largest limit of the cases of an op; inf where there is no such op."""
    try:
        asked = trials(load_op(op), regimes=["normal"], dtypes=[dtype])
        return max(reference(one.problem).limit for one in asked)
    except (UnknownName, KeyError):
        return math.inf
