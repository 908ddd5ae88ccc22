"""Keeps the finished pieces of a long run, so that a killed run can continue.

Each piece is a document in its own file, which is replaced atomically: it is complete
or not there. A new run starts from the beginning; so does one whose files have changed.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Unreadable

Piece = TypeVar("Piece")


class Journal:
    """The finished pieces of a run, in a folder.

    The pieces of an unfinished run with the same settings are reused; `resumed` is
    their number.
    """

    def __init__(self, folder: Path, run: Mapping[str, Any], *, fresh: bool = False):
        self.folder = folder
        self._run = documents.dumps({"run": run, "finished": False})
        if fresh or self._found() != self._run.encode():
            shutil.rmtree(folder, ignore_errors=True)
            documents.replace_file(self._file, self._run)
        self.resumed = len(list(folder.glob("*.json"))) - 1

    @property
    def _file(self) -> Path:
        return self.folder / "journal.json"

    def _found(self) -> bytes:
        try:
            return documents.bytes_of(self._file)
        except Unreadable:
            return b""  # not there, or damaged and thus useless

    def once(
        self,
        name: str,
        make: Callable[[], Any],
        read: Callable[[Path], Piece],
    ) -> Piece:
        """The piece of that name; `make` makes it if `read` cannot read one yet.

        A new piece is read back from its file, so a continued run sees equal numbers.
        """
        file = self.path(name)
        with contextlib.suppress(Unreadable):
            return read(file)
        documents.write(make(), file)
        return read(file)

    def path(self, name: str) -> Path:
        """The file of a piece, whether it exists or not."""
        return self.folder / f"{name}.json"

    def finish(self) -> None:
        """Mark the run as finished: the next one starts from the beginning."""
        documents.replace_file(self._file, documents.dumps({"finished": True}))
