"""The cache of judged outcomes: one SQLite file in the user's cache folder.

SQLite makes each write whole or none and keeps two runs apart. What cannot be read is
dropped. `GRADWATCH_CACHE` names another folder, or is "off".
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import platformdirs

from gradwatch.harness.agreement.remembered.ingredients import FOLDER
from gradwatch.harness.agreement.suite import Settled

#: Bytes of outcomes: those of a run over all ops take about 6 MB, so some dozens.
MOST = 256 << 20
_PATIENCE = 10.0  # seconds for another run to end its writing, which takes one
_DAY = 86400.0  # seconds between two notes that an outcome is still of use

_IMPORTS = "imports"  # in place of the name of a batch

T = TypeVar("T")

_TABLE = """
create table if not exists outcomes (
    key text, batch text, used real, content blob, primary key (key, batch)
)
"""


class Batch(msgspec.Struct):
    """Trials of one op, device, precision, regime and order; `date` is in ISO 8601.

    names: of all trials, also of those that are not remembered.
    """

    names: list[str]
    settled: list[Settled]
    date: str


class Unusable(Exception):
    """The cache cannot be read or written now; the message says why."""


_batch = msgspec.msgpack.Decoder(Batch)
_imports = msgspec.msgpack.Decoder(dict[str, list[str]])


class Cache:
    """Batches by the key of their ingredients, and by name."""

    def __init__(self, place: Path, most: int = MOST) -> None:
        self._file, self._most = place / "outcomes.sqlite", most

    @property
    def place(self) -> Path:
        """The folder in which it lies."""
        return self._file.parent

    def known(self) -> frozenset[str]:
        """The keys under which there is something.

        Raises:
            Unusable: It cannot be read.
        """
        if not self._file.exists():
            return frozenset()
        with self._open() as connection:
            rows = connection.execute("select distinct key from outcomes").fetchall()
        return frozenset(key for (key,) in rows)

    def batches(self, key: str) -> dict[str, Batch]:
        """The batches of a key, by name; damaged ones are dropped.

        Raises:
            Unusable: It cannot be read.
        """
        if not self._file.exists():
            return {}
        with self._open() as connection:
            asked = "select batch, used, content from outcomes where key = ?"
            rows = connection.execute(asked, (key,)).fetchall()
            batches = {name: _unpacked(content, _batch) for name, _, content in rows}
            for name in [name for name, batch in batches.items() if batch is None]:
                gone = "delete from outcomes where key = ? and batch = ?"
                connection.execute(gone, (key, name))
            if any(used < time.time() - _DAY for _, used, _ in rows):
                again = "update outcomes set used = ? where key = ?"
                connection.execute(again, (time.time(), key))
        return {name: batch for name, batch in batches.items() if batch is not None}

    def keep(self, batches: Mapping[str, Mapping[str, Batch]]) -> None:
        """Write batches by key and name, all or none; the least used ones make room.

        Raises:
            Unusable: It cannot be written.
        """
        self._put(
            (key, name, time.time(), _packed(batch))
            for key, named in batches.items()
            for name, batch in named.items()
        )

    def imports(self, key: str) -> dict[str, list[str]]:
        """What was kept under a key of what files import; empty if it was damaged.

        Raises:
            Unusable: It cannot be read.
        """
        if not self._file.exists():
            return {}
        with self._open() as connection:
            asked = "select content from outcomes where key = ? and batch = ?"
            rows = connection.execute(asked, (key, _IMPORTS)).fetchall()
        return next((_unpacked(content, _imports) for (content,) in rows), None) or {}

    def keep_imports(self, key: str, imports: Mapping[str, Sequence[str]]) -> None:
        """Keep what files import in place of what was kept under the key.

        Raises:
            Unusable: It cannot be written.
        """
        self._put([(key, _IMPORTS, time.time(), _packed(imports))])

    def _put(self, rows: Iterable[tuple[str, str, float, bytes]]) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unusable(f"{self._file.parent}: {error.strerror}") from None
        with self._open() as connection:
            put = "insert or replace into outcomes values (?, ?, ?, ?)"
            connection.executemany(put, rows)
            for row in _too_many(connection, self._most):
                connection.execute("delete from outcomes where rowid = ?", row)

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A transaction; a file that is no database is dropped."""
        try:
            with self._connected() as connection:
                yield connection
        except sqlite3.OperationalError as error:  # locked, read-only, full
            raise Unusable(f"{self._file.name}: {error}") from None
        except sqlite3.DatabaseError as error:
            self._file.unlink(missing_ok=True)
            raise Unusable(f"{self._file.name} was damaged ({error})") from None

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        connection = sqlite3.connect(self._file, timeout=_PATIENCE)
        with contextlib.closing(connection), connection:
            connection.execute(_TABLE)
            yield connection


def user_cache() -> Cache | None:
    """The cache in the user's folder; None where nothing is to be remembered."""
    named = os.environ.get(FOLDER)
    if named == "off":
        return None
    return Cache(Path(named) if named else platformdirs.user_cache_path("gradwatch"))


def _too_many(connection: sqlite3.Connection, most: int) -> Iterable[tuple[int]]:
    """The least recently used rows beyond the bound."""
    asked = "select rowid, length(content) from outcomes order by used desc, rowid desc"
    total, beyond = 0, []
    for row, size in connection.execute(asked).fetchall():
        total += size
        if total > most:
            beyond.append((row,))
    return beyond


def _packed(value: Any) -> bytes:
    content = zlib.compress(msgspec.msgpack.encode(value), 1)
    return hashlib.sha256(content).digest() + content


def _unpacked(stored: bytes, decoder: msgspec.msgpack.Decoder[T]) -> T | None:
    """What was packed, or None where a bit has changed."""
    digest, content = stored[:32], stored[32:]
    if hashlib.sha256(content).digest() != digest:
        return None
    return decoder.decode(zlib.decompress(content))
