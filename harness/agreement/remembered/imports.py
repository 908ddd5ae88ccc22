"""What our files import, kept from run to run by what is in them.

To parse 300 files takes a third of a run in which nothing is judged.
"""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

from gradwatch.harness.agreement.remembered.cache import Cache, Unusable
from gradwatch.harness.project import closure

#: Files: those of several checkouts, and of some edits.
MOST = 4096


class Imports:
    """The modules that a file names; asks for each content once."""

    def __init__(self, cache: Cache) -> None:
        parser = Path(closure.__file__).read_bytes() + sys.version.encode()
        self._cache, self._key = cache, hashlib.sha256(parser).hexdigest()
        self._kept: dict[str, list[str]] = {}
        self._has_parsed = False
        with contextlib.suppress(Unusable):
            self._kept = cache.imports(self._key)

    def __call__(self, content: bytes, package: str) -> Sequence[str]:
        """The modules that a module of a package names in its imports.

        Raises:
            SyntaxError, ValueError: It is no Python.
        """
        name = f"{package} {hashlib.sha256(content).hexdigest()}"
        if name not in self._kept:
            self._kept[name] = [*closure.imported(content, package)]
            self._has_parsed = True
        return self._kept[name]

    def keep(self) -> None:
        """Write down what was parsed; a cache that cannot be written stays as it is."""
        if self._has_parsed:
            latest = dict([*self._kept.items()][-MOST:])
            with contextlib.suppress(Unusable):
                self._cache.keep_imports(self._key, latest)
