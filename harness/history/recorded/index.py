"""The index of asv's result files: what they say, in columns; each is read once.

It is a cache: asv's files stay the truth. A file is read again when its size, times or
inode differ from what they were; one that changed just before it was read is read again
next time, since a second change in the same tick of the clock would not show. Processes
share the index: whoever has files to add locks it.
"""

from __future__ import annotations

import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.history.recorded import asv_files
from gradwatch.harness.history.recorded.asv_files import (
    COLUMNS,
    Facts,
    Layout,
    Recorded,
    recorded,
)
from gradwatch.harness.history.recorded.cached import FOLDER, version_of, with_database
from gradwatch.harness.project.documents import Unreadable

T = TypeVar("T")

#: Nanoseconds: the coarsest clock of a file system in use is FAT's, of two seconds.
_TICK = 2_000_000_000
_BATCH = 1000  # files: what an interrupted run has added by then stays

_TABLES = """
create table files (path text primary key, stamp text, facts blob, figures blob,
                    sum integer) without rowid;
create table layouts (key blob primary key, content blob, sum integer)
"""


class File(NamedTuple):
    """A result file, and what changes with its content: see `_stamp`."""

    path: Path
    stamp: str


def listed(folder: Path) -> list[File]:
    """The result files of all machines, by name; empty if there is no folder."""
    files = [f for f in folder.glob("[!.]*/*.json") if f.name != "machine.json"]
    return [File(file, _stamp(file)) for file in sorted(files)]


def _stamp(file: Path) -> str:
    """Size, inode and times of a file; "" if it is too new, or gone, to tell."""
    try:
        about = file.stat()
    except OSError:
        return ""
    times = (about.st_mtime_ns, about.st_ctime_ns)
    if time.time_ns() - max(times) < _TICK:
        return ""
    return ":".join(map(str, (about.st_size, about.st_ino, *times)))


@dataclass(frozen=True)
class Index:
    """One state of the index, with each file either in `facts` or `unreadable`."""

    files: Sequence[Path]
    database: sqlite3.Connection
    facts: Mapping[Path, Facts]
    unreadable: Mapping[Path, Unreadable]

    def layout(self, key: bytes) -> Layout:
        """A layout by its key."""
        query = "select sum, key, content from layouts where key = ?"
        *_, content = _sound(self.database.execute(query, (key,)).fetchone())
        return msgspec.msgpack.decode(content, type=Layout)

    def figures(self, file: Path) -> NDArray[np.float64]:
        """The figures of a file: (one of `COLUMNS`, place)."""
        query = "select sum, path, stamp, facts, figures from files where path = ?"
        row = self.database.execute(query, (_name(file),)).fetchone()
        return np.frombuffer(_sound(row)[-1]).reshape(len(COLUMNS), -1)


def _name(file: Path) -> str:
    """A result file's name below the folder of results."""
    return f"{file.parent.name}/{file.name}"


def _sound(row: Sequence[Any] | None) -> Sequence[Any]:
    """What a row has after its checksum: SQLite itself keeps none.

    Raises:
        sqlite3.DatabaseError: It is not there, or was damaged.
    """
    if row is None or _sum(row[1:]) != row[0]:
        raise sqlite3.DatabaseError("the index is damaged")
    return row[1:]


def _sum(values: Iterable[bytes | str]) -> int:
    total = 0
    for value in values:
        total = zlib.crc32(value.encode() if isinstance(value, str) else value, total)
    return total


def consult(folder: Path, files: Iterable[File], use: Callable[[Index], T]) -> T:
    """Bring the index up to date with the files that there are, and use it.

    `use` may be called a second time, if the index proves to be damaged.
    """
    stamps = {file.path: file.stamp for file in files}

    def within(database: sqlite3.Connection) -> T:
        database.execute("begin")
        done = use(_refreshed(database, stamps))
        database.execute("commit")
        return done

    file = folder / FOLDER / "results.sqlite"
    return with_database(file, _TABLES, _version(), within)


def _version() -> int:
    return version_of(__file__, asv_files.__file__)


def _refreshed(database: sqlite3.Connection, stamps: Mapping[Path, str]) -> Index:
    """The index of these files; it holds the lock if any was not in it as it is now."""
    unreadable = dict[Path, Unreadable]()
    if any(_differences(database, stamps)):
        database.execute("rollback")
        database.execute("begin immediate")
        gone, changed = _differences(database, stamps)  # another process adds them, too
        database.executemany("delete from files where path = ?", gone)
        for number, file in enumerate(changed, 1):
            try:
                _add(database, recorded(file), _name(file), stamps[file])
            except Unreadable as error:
                unreadable[file] = error
            if number % _BATCH == 0:
                database.execute("commit")
                database.execute("begin immediate")
    facts = _facts(database, stamps)
    if {*stamps} - {*facts} - {*unreadable}:
        raise sqlite3.DatabaseError("the index is damaged")
    return Index([*stamps], database, facts, unreadable)


def _differences(
    database: sqlite3.Connection, stamps: Mapping[Path, str]
) -> tuple[list[tuple[str]], list[Path]]:
    """Names of which what is in the index is of no use, and the files to read."""
    known = dict(database.execute("select path, stamp from files"))
    changed = [
        f for f, stamp in stamps.items() if not stamp or known.get(_name(f)) != stamp
    ]
    kept = {_name(file) for file in {*stamps} - {*changed}}
    return [(name,) for name in known if name not in kept], changed


def _add(database: sqlite3.Connection, read: Recorded, name: str, stamp: str) -> None:
    row = (name, stamp, msgspec.msgpack.encode(read.facts), read.figures.tobytes())
    database.execute(
        "insert or replace into files values (?, ?, ?, ?, ?)", (*row, _sum(row))
    )
    layout = (read.layout.key, msgspec.msgpack.encode(read.layout))
    database.execute(
        "insert or ignore into layouts values (?, ?, ?)", (*layout, _sum(layout))
    )


def _facts(
    database: sqlite3.Connection, stamps: Mapping[Path, str]
) -> dict[Path, Facts]:
    paths = {_name(file): file for file in stamps}
    decoder = msgspec.msgpack.Decoder(Facts)
    rows = database.execute("select path, facts from files")
    try:
        return {paths[n]: decoder.decode(facts) for n, facts in rows if n in paths}
    except (msgspec.MsgspecError, TypeError):
        raise sqlite3.DatabaseError("the index is damaged") from None
