"""Remembers the changes that were found in a series, by a hash of its values.

A night adds a run to most series, and `gradwatch report` and `watch` search the same
ones: only a series with other values is searched again. The hash includes the sources
of the search and the versions of the libraries that it uses.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import msgspec

from gradwatch.harness.history import changepoints, drift, noise, steps
from gradwatch.harness.history.changepoints import Change, find_changes
from gradwatch.harness.history.noise import Values
from gradwatch.harness.history.recorded.cached import FOLDER, version_of, with_database

#: Days after which what nobody has asked for is forgotten.
KEPT = 30

_DAY = 86_400  # seconds
_TABLES = """
create table changes (key blob primary key, content blob, sum integer, day integer)
"""
_CHANGES = msgspec.msgpack.Decoder(tuple[Change, ...])

_T = TypeVar("_T")

#: Finds the changes in the values of a series, as `find_changes` does.
Find = Callable[[Values], tuple[Change, ...]]


@cache
def algorithm() -> bytes:
    """What the changes depend on besides the values: sources, and versions."""
    modules = (changepoints, drift, noise, steps)
    sources = version_of(*(str(module.__file__) for module in modules))
    names = ("numpy", "ruptures")
    return f"{sources}{[metadata.version(name) for name in names]}".encode()


@contextlib.contextmanager
def remembering(folder: Path) -> Iterator[Find]:
    """`find_changes` with a memory, beside the results of asv in `folder`.

    What is new is written at the end, also after an error.
    """
    file = folder / FOLDER / "changes.sqlite"
    known = dict[bytes, bytes]()
    if file.exists():
        known = _with(file, _read)
    memory = _Memory(known)
    try:
        yield memory.find
    finally:
        if memory.new and folder.is_dir():
            _with(file, partial(_write, memory=memory))


def _with(file: Path, use: Callable[[sqlite3.Connection], _T]) -> _T:
    return with_database(file, _TABLES, version_of(__file__), use)


class _Memory:
    """Changes by key, encoded; `new` and `used` are the keys of this call."""

    def __init__(self, known: dict[bytes, bytes]) -> None:
        self.known, self.new, self.used = known, dict[bytes, bytes](), set[bytes]()

    def find(self, values: Values) -> tuple[Change, ...]:
        """The changes in a series of float64 values."""
        digest = hashlib.blake2b(algorithm(), digest_size=16)
        digest.update(values.tobytes())
        key = digest.digest()
        self.used.add(key)
        content = self.known.get(key, self.new.get(key))
        if content is not None:
            return _CHANGES.decode(content)
        found = find_changes(values)
        self.new[key] = msgspec.msgpack.encode(found)
        return found


def _read(database: sqlite3.Connection) -> dict[bytes, bytes]:
    known, rows = dict[bytes, bytes](), "select key, content, sum from changes"
    for key, content, total in database.execute(rows):
        if _sum(key, content) != total:
            raise sqlite3.DatabaseError("the memory of changes is damaged")
        known[key] = content
    return known


def _sum(key: bytes, content: bytes) -> int:
    return zlib.crc32(content, zlib.crc32(key))


def _write(database: sqlite3.Connection, memory: _Memory) -> None:
    today = int(time.time()) // _DAY
    database.execute("begin immediate")
    used = [(today, key) for key in memory.used]
    database.executemany("update changes set day = ? where key = ?", used)
    database.executemany(
        "insert or replace into changes values (?, ?, ?, ?)",
        [(k, c, _sum(k, c), today) for k, c in memory.new.items()],
    )
    database.execute("delete from changes where day < ?", (today - KEPT,))
    database.execute("commit")
