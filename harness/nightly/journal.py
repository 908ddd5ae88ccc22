"""What of a long run is done, so that after a kill it is not done again.

A piece is a document in a file of its own; a file is replaced whole, so that one is
there or not. A new run, or one of another state of the files, begins anew.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.project import documents
from harness.project.documents import Unreadable

Document = dict[str, Any]


class Journal:
    """The pieces of a run in a folder; those of an unfinished run like it are kept.

    `resumed` says how many there were.
    """

    def __init__(self, folder: Path, run: Mapping[str, Any], *, fresh: bool = False):
        self.folder = folder
        self._run = documents.strict({"run": run, "finished": False})  # as it is read
        if fresh or self._found() != self._run:
            shutil.rmtree(folder, ignore_errors=True)
            documents.replace_file(self._file, documents.dumps(self._run))
        self.resumed = len(list(folder.glob("*.json"))) - 1

    @property
    def _file(self) -> Path:
        return self.folder / "journal.json"

    def _found(self) -> Document | None:
        try:
            return _load(self._file)
        except Unreadable:
            return None  # none yet, or damaged: nothing in it can be trusted

    def once(self, name: str, make: Callable[[], Document]) -> Document:
        """The piece of that name, made now unless it is there.

        It is read back in either case, so that a resumed run sees the same numbers.
        """
        file = self.path(name)
        with contextlib.suppress(Unreadable):
            return _load(file)
        documents.replace_file(file, documents.dumps(make()))
        return _load(file)

    def path(self, name: str) -> Path:
        """Where a piece is or will be."""
        return self.folder / f"{name}.json"

    def finish(self) -> None:
        """Say that nothing is left to do: the next run begins anew."""
        documents.replace_file(
            self._file, documents.dumps({**self._run, "finished": True})
        )


def _load(file: Path) -> Document:
    try:
        content: Document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Unreadable(f"{file}: {error}") from None
    return content


# Files that others write --------------------------------------------------------


@contextlib.contextmanager
def guarded(files: Callable[[], list[Path]], safe: Path) -> Iterator[None]:
    """Put back what a program that does not replace files whole leaves damaged.

    Args:
        files: The JSON files that it may write, those that are there now.
        safe: A folder for copies, which outlives a kill: the next call mends first.
    """
    _mend(files(), safe)
    shutil.rmtree(safe, ignore_errors=True)
    safe.mkdir(parents=True)
    for file in files():
        shutil.copy2(file, safe / _copy(file))
    (safe / "complete").touch()
    try:
        yield
    finally:
        _mend(files(), safe)


def _mend(files: list[Path], safe: Path) -> None:
    complete = (safe / "complete").exists()
    for file in files:
        try:
            _load(file)
        except Unreadable:
            copy = safe / _copy(file)
            if complete and copy.exists():
                shutil.copy2(copy, file)
            elif complete:
                file.unlink()  # half of what was never whole


def _copy(file: Path) -> str:
    return f"{file.parent.name}-{file.name}"
