"""The cache of judged outcomes: one SQLite file in the user's cache folder.

SQLite makes each write whole or none and keeps two runs apart. What cannot be read is
dropped. `GRADWATCH_CACHE` names another folder, or is "off".
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import platformdirs

from gradwatch.harness.agreement.remembered.ingredients import FOLDER
from gradwatch.harness.agreement.suite import Settled

#: Bytes of outcomes: those of a run over all ops take about 6 MB, so some dozens.
MOST = 256 << 20
_PATIENCE = 10.0  # seconds for another run to end its writing, which takes one

_TABLE = """
create table if not exists verdicts (
    key text, batch text, used real, content blob, primary key (key, batch)
)
"""
_MAKE_ROOM = """
delete from verdicts where rowid in (select rowid from (
    select rowid, sum(length(content)) over (order by used desc, rowid desc) as total
    from verdicts
) where total > ?)
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


_decoder = msgspec.msgpack.Decoder(Batch)


class Cache:
    """Batches by the key of their ingredients, and by name."""

    def __init__(self, place: Path, most: int = MOST) -> None:
        self._file, self._most = place / "outcomes.sqlite", most

    @property
    def place(self) -> Path:
        """The folder in which it lies."""
        return self._file.parent

    def batches(self, keys: Iterable[str]) -> dict[str, dict[str, Batch]]:
        """The batches of each key, by name; damaged ones are dropped.

        Raises:
            Unusable: It cannot be read.
        """
        if not self._file.exists():
            return {key: {} for key in keys}
        with self._open() as connection:
            return {key: dict(_read(connection, key)) for key in keys}

    def keep(self, batches: Mapping[str, Mapping[str, Batch]]) -> None:
        """Write batches by key and name, all or none; the least used ones make room.

        Raises:
            Unusable: It cannot be written.
        """
        try:
            self.place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Unusable(f"{self.place}: {error.strerror}") from None
        with self._open() as connection:
            rows = (
                (key, name, time.time(), zlib.compress(msgspec.msgpack.encode(one), 1))
                for key, named in batches.items()
                for name, one in named.items()
            )
            put = "insert or replace into verdicts values (?, ?, ?, ?)"
            connection.executemany(put, rows)
            connection.execute(_MAKE_ROOM, [self._most])

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A transaction; a file that is no database is dropped."""
        try:
            connection = sqlite3.connect(self._file, timeout=_PATIENCE)
            with contextlib.closing(connection), connection:
                connection.execute(_TABLE)
                yield connection
        except sqlite3.OperationalError as error:  # locked, read-only, full
            raise Unusable(f"{self._file.name}: {error}") from None
        except sqlite3.DatabaseError as error:
            self._file.unlink(missing_ok=True)
            raise Unusable(f"{self._file.name} was damaged ({error})") from None


def _read(connection: sqlite3.Connection, key: str) -> Iterator[tuple[str, Batch]]:
    """The batches of a key, which were used now."""
    connection.execute("update verdicts set used = ? where key = ?", (time.time(), key))
    asked = "select rowid, batch, content from verdicts where key = ?"
    for row, name, content in connection.execute(asked, [key]).fetchall():
        try:  # zlib has a checksum of its own
            yield name, _decoder.decode(zlib.decompress(content))
        except (zlib.error, msgspec.DecodeError):
            connection.execute("delete from verdicts where rowid = ?", [row])


def user_cache() -> Cache | None:
    """The cache in the user's folder; None where nothing is to be remembered."""
    named = os.environ.get(FOLDER)
    if named == "off":
        return None
    return Cache(Path(named) if named else platformdirs.user_cache_path("gradwatch"))
