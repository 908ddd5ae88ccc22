"""Reads the recorded history: asv's result files as series of values.

A series belongs to one machine, one environment, one benchmark and one set of
parameters; two are never merged. Reading is strict: an unreadable file stops it with a
message, because a silently missing point looks like a benchmark that was not run.
"""

from __future__ import annotations

import datetime
import itertools
import json
import math
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.project import documents, git
from harness.project.documents import Unreadable, machine_name
from harness.project.paths import ROOT

RESULTS = ROOT / "results" / "asv"

#: Two machines differ if one of these differs; memory and kernel may change.
IDENTITY = ("arch", "cpu", "num_cpu")

Json = Mapping[str, Any]
T = TypeVar("T")


class OtherMachine(Exception):
    """Results would be mixed with those of another machine of the same name."""


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
class Series:
    """The figures of one benchmark with one set of parameters, oldest commit first.

    `benchmark` is asv's name, such as bench_speed.softmax.time_backward; `versions`
    are those of the environment; lower is better in every unit.
    """

    machine: str
    environment: str
    benchmark: str
    parameters: Mapping[str, str]
    unit: str
    versions: Mapping[str, str] = field(default_factory=dict)
    entries: Sequence[Entry] = ()

    @property
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
    def measured(self) -> list[Entry]:
        """The entries that have a value."""
        return [entry for entry in self.entries if entry.value is not None]


def read(
    folder: Path = RESULTS,
    order: Sequence[str] | None = None,
    troubles: list[Unreadable] | None = None,
) -> tuple[Series, ...]:
    """All series in a results folder of asv.

    Args:
        folder: The results folder; empty or missing means no history yet.
        order: Commits, oldest first; by default those of this checkout. Any other
            commits come before these, sorted by date.
        troubles: Takes the reason for each file that cannot be read, and the others
            are read; without it the first such file ends the call.

    Raises:
        Unreadable: benchmarks.json is damaged; or, without `troubles`, a file is
            damaged, foreign, a duplicate, or of another machine.
    """
    files = sorted(folder.glob("*/*.json")) if folder.is_dir() else []
    results = [f for f in files if f.name != "machine.json"]
    if not results:
        return ()
    known = benchmarks(folder)
    gathered: dict[tuple[Any, ...], list[tuple[_Result, Entry]]] = defaultdict(list)
    seen: dict[tuple[str, str, str], Path] = {}
    for file in results:
        try:
            machine, content = _sound(file, seen)
            entries = list(_entries(file, content))
        except Unreadable as error:
            if troubles is None:
                raise
            troubles.append(error)
            continue
        for name, parameters, entry in entries:
            place = (machine, content.env_name, name, parameters)
            gathered[place].append((content, entry))
    rank = {commit: i for i, commit in enumerate(order or git.commits())}
    return tuple(_series(place, gathered[place], known, rank) for place in gathered)


def _sound(file: Path, seen: dict[tuple[str, str, str], Path]) -> tuple[str, _Result]:
    """A machine's name and a result of it that no other file holds."""
    content = _result(file)
    machine = _machine_of(file, content)
    key = (machine, content.env_name, content.commit_hash)
    if seen.setdefault(key, file) != file:
        raise Unreadable(f"{file}: the same commit as in {seen[key].name}")
    return machine, content


def _series(
    place: tuple[Any, ...],
    results: Sequence[tuple[_Result, Entry]],
    known: Mapping[str, Benchmark],
    rank: Mapping[str, int],
) -> Series:
    machine, environment, benchmark, values = place
    about = known.get(benchmark, Benchmark())
    names = about.param_names
    if len(names) != len(values):
        names = [f"param{i}" for i in range(len(values))]
    entries = sorted(
        (entry for _, entry in results), key=lambda e: (rank.get(e.commit, -1), e.date)
    )
    return Series(
        machine,
        environment,
        benchmark,
        dict(zip(names, map(_unquoted, values), strict=True)),
        about.unit,
        results[0][0].requirements,
        tuple(entries),
    )


def _unquoted(value: str) -> str:
    """The value of a parameter, which asv stores as its repr."""
    return value[1:-1] if value[:1] == value[-1:] == "'" else value


# Files --------------------------------------------------------------------------

_API = 2  # asv's, of results and of the list of benchmarks
_MACHINE_API = 1


class Benchmark(msgspec.Struct):
    """What asv's list says of a benchmark, as far as we need it."""

    param_names: list[str] = []
    unit: str = "unit"


class _Result(msgspec.Struct):
    """A result file of asv, as far as we need it; `date` is in milliseconds."""

    commit_hash: str
    env_name: str
    date: int
    params: dict[str, Any]
    requirements: dict[str, str]
    python: str
    result_columns: list[str]
    results: dict[str, list[Any]]


class _Cells(msgspec.Struct):
    """One benchmark's row: a figure for each combination of parameters."""

    params: list[list[str]] | None = None
    result: list[float | None] | None = None
    stats_ci_99_a: list[float | None] | None = None
    stats_ci_99_b: list[float | None] | None = None
    stats_repeat: list[int | None] | None = None


def _load(file: Path, api: int) -> dict[str, Any]:
    """A file of asv, which writes the NaN that strict JSON has not."""
    raw = documents.bytes_of(file)
    try:
        content = json.loads(raw)
        if b"\\ud" in raw.lower():
            json.dumps(content, ensure_ascii=False).encode()  # or half a surrogate pair
    except RecursionError:
        raise Unreadable(f"{file}: nested too deeply") from None
    except ValueError as error:
        raise Unreadable(f"{file}: not readable as JSON ({error})") from None
    if not isinstance(content, dict) or content.get("version") != api:
        raise Unreadable(f"{file}: not a file of asv, or not of version {api}")
    return content


def _typed(content: Any, kind: type[T], place: str) -> T:
    try:
        return msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        raise Unreadable(f"{place}: {error}") from None


def listed(folder: Path) -> dict[str, Json]:
    """asv's list as it stands: what each benchmark of a folder is, by name.

    Raises:
        Unreadable: There is no list, or it is damaged.
    """
    content = _load(folder / "benchmarks.json", _API)
    return {name: about for name, about in content.items() if name != "version"}


def benchmarks(folder: Path) -> dict[str, Benchmark]:
    """The same, typed.

    Raises:
        Unreadable: There is none, or it is damaged.
    """
    content, place = listed(folder), str(folder / "benchmarks.json")
    return _typed(content, dict[str, Benchmark], place)


def _result(file: Path) -> _Result:
    content = _typed(_load(file, _API), _Result, str(file))
    if not file.name.startswith(f"{content.commit_hash[:8]}-"):
        raise Unreadable(f"{file}: is of commit {content.commit_hash[:8]}")
    return content


def _machine_of(file: Path, content: _Result) -> str:
    """The machine; folder, machine.json and result file must name the same one."""
    folder = file.parent
    stated = _load(folder / "machine.json", _MACHINE_API).get("machine")
    within = content.params.get("machine")
    if not folder.name == stated == within:
        raise Unreadable(
            f"{file}: results of machine {within!r} in the folder of {stated!r}"
        )
    return folder.name


def _entries(
    file: Path, content: _Result
) -> Iterator[tuple[str, tuple[str, ...], Entry]]:
    """Name, parameters and figure of each entry in a file."""
    try:
        date = datetime.datetime.fromtimestamp(
            content.date / 1000, tz=datetime.timezone.utc
        )
    except (OverflowError, ValueError, OSError):
        raise Unreadable(f"{file}: {content.date} is no date") from None
    for name, row in content.results.items():
        if name.count(".") < 2:
            raise Unreadable(f"{file}: {name} is no suite.op.metric")
        named_cells = dict(zip(content.result_columns, row, strict=False))
        cells = _typed(named_cells, _Cells, f"{file}: {name}")
        points = list(itertools.product(*(cells.params or [])))
        columns = [
            _column(file, name, column, len(points))
            for column in (
                *(cells.result, cells.stats_ci_99_a),
                *(cells.stats_ci_99_b, cells.stats_repeat),
            )
        ]
        for i, parameters in enumerate(points):
            figures = (column[i] for column in columns)
            yield name, parameters, _entry(content.commit_hash, date, *figures)


def _column(file: Path, name: str, cells: list[Any] | None, count: int) -> list[Any]:
    if cells is None:
        return [None] * count
    if len(cells) != count:
        raise Unreadable(f"{file}: {name} has not {count} figures")
    return cells


def _entry(
    commit: str,
    date: datetime.datetime,
    value: float | None,
    low: float | None,
    high: float | None,
    samples: int | None,
) -> Entry:
    """Decode an entry: in asv, NaN means n/a, null a failure, infinite no interval."""
    if value is None:
        return Entry(commit, date, "failed")
    if math.isnan(value):
        return Entry(commit, date, "n/a")
    return Entry(
        commit, date, "measured", value, _finite(low), _finite(high), samples or 0
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


# Machines -----------------------------------------------------------------------


def machine_for(folder: Path, traits: Json) -> str:
    """The name under which a machine's results are recorded.

    It is GRADWATCH_MACHINE, or else a plain name such as cpu-2core; if another machine
    has that name, cpu-2core-2 and so on.

    Raises:
        OtherMachine: GRADWATCH_MACHINE is the name of another machine.
    """
    given = os.environ.get("GRADWATCH_MACHINE")
    if given:
        check_machine(folder, {**traits, "machine": given})
        return given
    plain = machine_name()
    for number in itertools.count(1):
        name = plain if number == 1 else f"{plain}-{number}"
        if not _differences(folder, {**traits, "machine": name}):
            return name
    raise AssertionError("numbers do not end")


def check_machine(folder: Path, traits: Json) -> None:
    """Raise OtherMachine unless results of `traits["machine"]` are of that machine."""
    differences = _differences(folder, traits)
    if differences:
        raise OtherMachine(
            f"results of {traits['machine']} were recorded on another machine"
            f" ({'; '.join(differences)}): give this one another name in"
            " GRADWATCH_MACHINE"
        )


def _differences(folder: Path, traits: Json) -> list[str]:
    file = folder / traits["machine"] / "machine.json"
    if not file.exists():
        return []
    recorded = _load(file, _MACHINE_API)
    return [
        f"{name} {recorded.get(name)!r}, here {traits.get(name)!r}"
        for name in IDENTITY
        if str(recorded.get(name)) != str(traits.get(name))
    ]
