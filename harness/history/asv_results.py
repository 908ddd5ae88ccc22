"""Reads the recorded history: asv's result files as series of values.

A series belongs to one machine, one environment, one benchmark and one set of
parameters; two are never merged. Reading is strict: an unreadable file stops it with a
message, because a silently missing point looks like a benchmark that was not run.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from gradwatch.harness.history.series import Entry, Series
from gradwatch.harness.project import documents, git
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.paths import ROOT

RESULTS = ROOT / "results" / "asv"

_API = 2  # asv's, of results and of the list of benchmarks
_MACHINE_API = 1

#: Combinations of parameters in one file; ours have 5,000. Lists of parameters of some
#: kilobytes can have more combinations than fit into memory. And results in one file,
#: each of which takes microseconds; ours have 500.
CELLS, ROWS = 1_000_000, 100_000
#: Bytes of one file, which take 25 times as many here; ours have 1 MB.
LONGEST = 16 << 20

_T = TypeVar("_T")


def read(
    folder: Path = RESULTS,
    order: Sequence[str] | None = None,
    troubles: list[Unreadable] | None = None,
) -> tuple[Series, ...]:
    """All series in a results folder of asv that have any figure.

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
    files = [f for f in folder.glob("[!.]*/*.json") if f.name != "machine.json"]
    if not files:
        return ()
    listed = _load(folder / "benchmarks.json", _API)
    del listed["version"]
    known = _typed(folder / "benchmarks.json", listed, dict[str, _Benchmark])
    runs = dict[tuple[str, ...], tuple[Path, _Run]]()

    @contextlib.contextmanager
    def telling() -> Iterator[None]:
        try:
            yield
        except Unreadable as error:
            if troubles is None:
                raise
            # The frames of this one hold the content.
            troubles.append(Unreadable(error.why, error.file))

    for place, its in itertools.groupby(sorted(files), lambda file: file.parent):
        with telling():
            about = place / "machine.json"
            if (stated := _load(about).get("machine")) != place.name:
                raise Unreadable(f"of machine {str(stated)[:80]!r}", about)
            for file in its:
                with telling():
                    run = _read_run(file)
                    key = place.name, run.environment, run.commit
                    if key in runs:
                        why = f"the same commit as in {runs[key][0].name}"
                        raise Unreadable(why, file)
                    runs[key] = file, run
    rank = {commit: i for i, commit in enumerate(order or git.commits())}
    return tuple(_series(runs.values(), known, rank))


def _series(
    runs: Iterable[tuple[Path, _Run]],
    known: Mapping[str, _Benchmark],
    rank: Mapping[str, int],
) -> Iterator[Series]:
    """The runs of each machine and environment as series."""
    entries = defaultdict[tuple[str, str], dict[_Point, list[Entry]]](dict)
    versions: dict[tuple[str, str], Mapping[str, str]] = {}
    for file, run in sorted(runs, key=lambda r: (rank.get(r[1].commit, -1), r[1].date)):
        place = (file.parent.name, run.environment)
        versions.setdefault(place, run.versions)
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


class _Run(NamedTuple):
    """A result file: one commit in one environment of a machine."""

    environment: str
    commit: str
    date: datetime.datetime
    versions: Mapping[str, str]
    entries: Mapping[_Point, Entry]


class _Content(msgspec.Struct):
    """A result file of asv, as far as we need it."""

    commit_hash: str
    env_name: str
    date: int
    params: dict[str, Any]
    requirements: dict[str, str]
    result_columns: list[str]
    results: dict[str, list[Any]]


_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]


class _Row(msgspec.Struct):
    """The columns of a benchmark that we read; a value for each combination.

    In asv, NaN means n/a, null a failure, infinite no interval.
    """

    params: list[list[str]] | None = None
    result: list[float | None] | None = None
    stats_ci_99_a: list[float | None] | None = None
    stats_ci_99_b: list[float | None] | None = None
    stats_q_25: list[float | None] | None = None
    stats_q_75: list[float | None] | None = None
    stats_repeat: list[_Count | None] | None = None


class _Benchmark(msgspec.Struct):
    """The part that we need of a benchmark in asv's list."""

    param_names: list[str] = []
    unit: str = "unit"


def _read_run(file: Path) -> _Run:
    content = _typed(file, _load(file, _API), _Content)
    if not file.name.startswith(f"{content.commit_hash[:8]}-"):
        raise Unreadable(f"is of commit {content.commit_hash[:8]}", file)
    machine = str(content.params.get("machine"))
    if file.parent.name != machine:
        raise Unreadable(f"results of machine {machine[:80]!r}", file)
    try:
        seconds = content.date / 1000
        date = datetime.datetime.fromtimestamp(seconds, tz=datetime.timezone.utc)
    except (OverflowError, ValueError, OSError):
        raise Unreadable(f"{content.date} is no date", file) from None
    entries, commit = dict(_entries(file, content, date)), content.commit_hash
    return _Run(content.env_name, commit, date, content.requirements, entries)


def _entries(
    file: Path, content: _Content, date: datetime.datetime
) -> Iterator[tuple[_Point, Entry]]:
    """The figures of a file that are not n/a."""
    cells = 0
    if len(content.results) > ROWS:
        raise Unreadable(f"more than {ROWS:,} results", file)
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
        for point, value, low, high, *quartiles, samples in figures:
            if value is None or not math.isnan(value):
                if low is not None and low <= 0:
                    # asv's interval of a few disturbed samples: no time is negative.
                    low, high = quartiles
                value, low, high = (
                    one if one is not None and math.isfinite(one) else None
                    for one in (value, low, high)
                )
                figures_of = value, low, high, int(samples or 0)
                entry = Entry(content.commit_hash, date, *figures_of)
                yield (name, point), entry


# Other files --------------------------------------------------------------------


def _load(file: Path, api: int = _MACHINE_API) -> dict[str, Any]:
    """A file of asv, which writes the NaN that strict JSON has not."""
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
    """The content as a value of that type; it is unreadable if it is none."""
    try:
        return msgspec.convert(content, kind)
    except (msgspec.ValidationError, OverflowError, RecursionError) as error:
        raise Unreadable(str(error), file) from None
