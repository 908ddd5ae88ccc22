"""Names the extra of gradwatch that installs a missing module."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

#: Distributions by module, where the names differ: distributed requires dask.
_DISTRIBUTIONS = {"flint": "python-flint", "dask": "distributed"}

_REQUIREMENT = re.compile(r'^([\w.-]+).*?extra\s*==\s*["\']([\w-]+)["\']')


class Missing(ImportError):
    """Something needs a package that is not installed; the message says what to do."""

    exit_code = 3


@contextlib.contextmanager
def explained(what: str) -> Iterator[None]:
    """Turn a missing module into one line: the feature that needs it, how to get it.

    Raises:
        Missing: A module of an extra, or of the framework, is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        extra = extra_of(module)
        if not extra:
            raise
        call = f"pip install 'gradwatch[{extra}]'"
        raise Missing(f"{what} needs {module}: {call}", name=error.name) from None


def extra_of(module: str) -> str:
    """The first extra that requires a module's distribution; "" where none does."""
    wanted = _DISTRIBUTIONS.get(module, module.replace("_", "-"))
    for line in _requirements():
        match = _REQUIREMENT.match(line)
        if match and match[1].replace("_", "-").lower() == wanted.lower():
            return match[2]
    return ""


def _requirements() -> list[str]:
    from importlib import metadata  # takes as long to import as all else of a worker's

    try:
        return metadata.requires("gradwatch") or []
    except metadata.PackageNotFoundError:  # a checkout that is only on the path
        return []
