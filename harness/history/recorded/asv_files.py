"""Reads one file of asv: strictly, and into columns without the cells that are n/a.

Of the cells of a file, four in five are n/a: the op does not say that dialect, or the
framework is not in that environment. What a file lists is its layout, which most files
share; of its cells only those with a value, or with a failure, are kept.
"""

from __future__ import annotations

import datetime
import hashlib
import itertools
import json
import math
import sys
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Unreadable

_API = 2  # asv's, of results and of the list of benchmarks
_MACHINE_API = 1

#: The figures of a cell, in the order of the rows of `Recorded.figures`.
COLUMNS = ("result", "stats_ci_99_a", "stats_ci_99_b", "stats_repeat")


class Benchmark(msgspec.Struct):
    """What asv's list says of a benchmark, as far as we need it."""

    param_names: list[str] = []
    unit: str = "unit"


class Listed(msgspec.Struct, frozen=True):
    """A benchmark of a layout, and the reprs of its parameters' values."""

    name: str
    params: list[list[str]]

    @property
    def points(self) -> list[tuple[str, ...]]:
        """The combinations of the values, in the order of the cells."""
        return list(itertools.product(*self.params))


class Layout(msgspec.Struct, frozen=True):
    """What a file lists; `key` is the same for two files exactly if that is.

    `counts` has the number of cells of each benchmark.
    """

    key: bytes
    benchmarks: list[Listed]
    counts: list[int]


class Facts(msgspec.Struct, frozen=True):
    """What a file says of itself.

    date: of the commit, in milliseconds.
    layout: the key of its layout.
    places: positions, as int32, of the cells in the layout that are not n/a.
    """

    machine: str
    environment: str
    commit: str
    date: int
    requirements: dict[str, str]
    layout: bytes
    places: bytes


class Recorded(msgspec.Struct, frozen=True):
    """A file; `figures` has a row for each of `COLUMNS`, NaN in it for none.

    A cell without a result failed. There is a column for each of `facts.places`.
    """

    facts: Facts
    layout: Layout
    figures: NDArray[np.float64]


_Number = float | Literal["nan", "inf", "-inf"] | None
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)] | None
_FIGURES = msgspec.json.Decoder(list[list[_Number] | None])
_COUNTS = msgspec.json.Decoder(list[list[_Count] | None])
_PARAMS = msgspec.json.Decoder(list[tuple[str, list[list[str]] | None]])


class _Content(msgspec.Struct):
    """A result file of asv, as far as we need it."""

    version: int
    commit_hash: str
    env_name: str
    date: int
    params: dict[str, Any]
    requirements: dict[str, str]
    python: str
    result_columns: list[str]
    results: dict[str, list[msgspec.Raw]]


_CONTENT = msgspec.json.Decoder(_Content)


def _strict(raw: bytes) -> bytes:
    """asv's JSON as strict JSON, which has no NaN: what is not finite becomes text.

    A text with such a word in it is no JSON afterwards, and never other JSON: the quote
    before the word ends the text.
    """
    raw = raw.replace(b"NaN", b'"nan"').replace(b"-Infinity", b'"-inf"')
    return raw.replace(b"Infinity", b'"inf"')


def _textual(value: Any) -> Any:
    """The same of decoded JSON, for the files in which a text has such a word."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_textual(one) for one in value]
    if isinstance(value, dict):
        return {key: _textual(one) for key, one in value.items()}
    return value


def recorded(file: Path) -> Recorded:
    """A result file.

    Raises:
        Unreadable: It is damaged or foreign; the message begins with its name.
    """
    content = _content(file)
    if not file.name.startswith(f"{content.commit_hash[:8]}-"):
        raise Unreadable(f"{file}: is of commit {content.commit_hash[:8]}")
    _check_date(file, content.date)
    layout = _layout(file, content)
    places, figures = _figures(file, content, layout)
    facts = Facts(
        str(content.params.get("machine")),
        content.env_name,
        content.commit_hash,
        content.date,
        content.requirements,
        layout.key,
        places.tobytes(),
    )
    return Recorded(facts, layout, figures)


def _content(file: Path) -> _Content:
    raw = documents.bytes_of(file)
    try:
        content = _CONTENT.decode(_strict(raw))
        if content.version == _API:
            return content
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        pass  # the slow way knows what is wrong
    checked = _checked(file, raw, _API)
    try:
        return _CONTENT.decode(msgspec.json.encode(_textual(checked)))
    except (msgspec.MsgspecError, OverflowError, RecursionError) as error:
        raise Unreadable(f"{file}: {error}") from None


def _check_date(file: Path, date: int) -> None:
    try:
        moment(date)
    except (OverflowError, ValueError, OSError):
        raise Unreadable(f"{file}: {date} is no date") from None


def moment(date: int) -> datetime.datetime:
    """A commit's date in UTC, of its milliseconds."""
    return datetime.datetime.fromtimestamp(date / 1000, tz=datetime.timezone.utc)


def _layout(file: Path, content: _Content) -> Layout:
    """The benchmarks and parameters that a file lists."""
    names = [name for name in content.results if name.count(".") < 2]
    if names:
        raise Unreadable(f"{file}: {names[0]} is no suite.op.metric")
    params = _column("params", content)
    text = msgspec.json.encode(list(zip(content.results, params, strict=True)))
    try:
        return _layout_of(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unreadable(f"{file}: params: {error}") from None


@lru_cache(maxsize=256)  # of ten thousand files nearly all have one of a few layouts
def _layout_of(text: bytes) -> Layout:
    key = hashlib.blake2b(text, digest_size=16).digest()
    benchmarks = [Listed(name, params or []) for name, params in _PARAMS.decode(text)]
    counts = [math.prod(map(len, listed.params)) for listed in benchmarks]
    return Layout(key, benchmarks, counts)


def _column(name: str, content: _Content) -> list[msgspec.Raw]:
    """What each row has in a column; it may end before that."""
    columns, none = content.result_columns, msgspec.Raw(b"null")
    place = columns.index(name) if name in columns else sys.maxsize
    rows = content.results.values()
    return [row[place] if place < len(row) else none for row in rows]


def _figures(
    file: Path, content: _Content, layout: Layout
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The positions of the cells that are not n/a, and their figures, (column, cell).

    In asv, NaN means n/a, null a failure, infinite no interval.
    """
    flat = [_cells(file, name, content, layout) for name in COLUMNS]
    places = [i for i, value in enumerate(flat[0]) if value != "nan"]
    kept = [[column[i] for i in places] for column in flat]
    figures = np.array(kept, dtype=np.float64)  # float() of None is NaN, of "inf" inf
    figures[1:][np.isinf(figures[1:])] = np.nan
    return np.array(places, np.int32), figures.reshape(len(COLUMNS), len(places))


def _cells(file: Path, name: str, content: _Content, layout: Layout) -> list[Any]:
    """A column of all rows, one after the other."""
    text = msgspec.json.encode(_column(name, content))
    try:
        rows = (_COUNTS if name == COLUMNS[-1] else _FIGURES).decode(text)
    except msgspec.MsgspecError as error:
        raise Unreadable(f"{file}: {name}: {error}") from None
    flat = list[Any]()
    for place, (row, count) in enumerate(zip(rows, layout.counts, strict=True)):
        if row is not None and len(row) != count:
            benchmark = layout.benchmarks[place].name
            raise Unreadable(f"{file}: {benchmark} has not {count} figures")
        flat += [None] * count if row is None else row
    return flat


# Other files --------------------------------------------------------------------


def load(file: Path, api: int = _MACHINE_API) -> dict[str, Any]:
    """A file of asv, which writes the NaN that strict JSON has not.

    Raises:
        Unreadable: It is damaged, or of another version of asv.
    """
    return _checked(file, documents.bytes_of(file), api)


def _checked(file: Path, raw: bytes, api: int) -> dict[str, Any]:
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


def listed(folder: Path) -> dict[str, Mapping[str, Any]]:
    """asv's list as it stands: what each benchmark of a folder is, by name.

    Raises:
        Unreadable: There is no list, or it is damaged.
    """
    content = load(folder / "benchmarks.json", _API)
    return {name: about for name, about in content.items() if name != "version"}


def benchmarks(folder: Path) -> dict[str, Benchmark]:
    """The same, typed.

    Raises:
        Unreadable: There is none, or it is damaged.
    """
    try:
        return msgspec.convert(listed(folder), dict[str, Benchmark])
    except msgspec.ValidationError as error:
        raise Unreadable(f"{folder / 'benchmarks.json'}: {error}") from None
