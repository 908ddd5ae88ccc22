"""Caches of the history: SQLite files in the folder `.index` beside asv's results.

Nothing but time is lost with one: what is damaged or of another version is removed and
made again. The folder tells git and backups to leave it out.
"""

from __future__ import annotations

import contextlib
import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

FOLDER = ".index"

#: Seconds for which another process is waited for; ten thousand commits take a minute.
_PATIENCE = 300.0

#: Tells programs that make backups: see https://bford.info/cachedir
_TAG = "Signature: 8a477f597d28d172789f06886806bc55\n"


def version_of(*sources: str) -> int:
    """The version of what some source files write: it changes with any of them."""
    text = b"".join(Path(source).read_bytes() for source in sources)
    return zlib.crc32(text) >> 1  # SQLite keeps a signed number of 32 bits


def with_database(
    file: Path, tables: str, version: int, use: Callable[[sqlite3.Connection], T]
) -> T:
    """Use a cache: as it is, or made again, or, if none can be written, one in memory.

    Whatever `use` has read from a damaged cache must raise sqlite3.DatabaseError; it is
    called again then.
    """
    for _ in range(2):
        try:
            with contextlib.closing(_opened(file, tables, version)) as database:
                return use(database)
        except (sqlite3.DatabaseError, OSError) as error:
            if "locked" in str(error):
                break
            with contextlib.suppress(OSError):
                file.unlink()
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as lost:
        lost.executescript(tables)
        return use(lost)


def _opened(file: Path, tables: str, version: int) -> sqlite3.Connection:
    if not file.parent.is_dir():
        file.parent.mkdir(parents=True)
        (file.parent / ".gitignore").write_text("*\n")
        (file.parent / "CACHEDIR.TAG").write_text(_TAG)
    database = sqlite3.connect(file, timeout=_PATIENCE, isolation_level=None)
    try:
        _check(database, tables, version)
    except BaseException:
        database.close()
        raise
    return database


def _check(database: sqlite3.Connection, tables: str, version: int) -> None:
    """Make the tables of a new cache, and refuse one of another version."""
    if _version(database) == 0:
        database.execute("begin immediate")
        if _version(database) == 0:  # and no other process has made them meanwhile
            for table in filter(str.strip, tables.split(";")):
                database.execute(table)
            database.execute(f"pragma user_version = {version}")
        database.execute("commit")
    if _version(database) != version:
        raise sqlite3.DatabaseError("of another version")


def _version(database: sqlite3.Connection) -> int:
    (version,) = database.execute("pragma user_version").fetchone()
    return int(version)
