"""The one document that every command writes, and how it is kept whole.

Schema 1: {"schema": 1, "environment": {...}, "summary": {...}, "records": [...]}.
Strict JSON: what is not a finite number is null. A file is replaced atomically, so
that an interrupted run or a full disk leaves the old one as it was.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import math
import os
import platform
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.project import git
from harness.project.git import NoCommit
from harness.project.paths import ROOT

SCHEMA = 1


class Unreadable(Exception):
    """A file that is no document of ours: missing, cut short, or of a newer schema."""


def document(
    records: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
    environment: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Records with the circumstances in which they were made."""
    return {
        "schema": SCHEMA,
        "environment": dict(environment or surroundings()),
        "summary": dict(summary),
        "records": [dict(record) for record in records],
    }


def surroundings() -> dict[str, Any]:
    """Machine, commit and versions, without any path or host name."""
    commit, dirty = _commit()
    return {
        "machine": machine_name(),
        "cpu": _processor(),
        "cores": os.cpu_count() or 1,
        "system": platform.system(),
        "python": platform.python_version(),
        "commit": commit,
        "dirty": dirty,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds"),
    }


def _processor() -> str:
    """The model, where Linux tells it, else the architecture."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def machine_name() -> str:
    """A plain name; GRADWATCH_MACHINE sets it, else it says the number of cores."""
    return os.environ.get("GRADWATCH_MACHINE") or f"cpu-{os.cpu_count() or 1}core"


def _commit() -> tuple[str, bool]:
    """The commit of the checkout, and whether what runs differs from it."""
    try:
        commit = git.commit_of("HEAD", ROOT)
    except NoCommit:
        return "", False  # an installed copy has no commit to name
    return commit, bool(git.changed_files(ROOT, (".", ":!results"), untracked="no"))


def strict(value: Any) -> Any:
    """The same data with null for what is not finite, tuples as lists."""
    if isinstance(value, (str, int, type(None))):  # first, for most of it is that
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(v) for v in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return strict(dataclasses.asdict(value))
    return value


def dumps(content: Any) -> str:
    """Strict JSON, one record a line where there are records."""
    return json.dumps(strict(content), indent=1, allow_nan=False, ensure_ascii=False)


def write(content: Any, target: str | Path) -> None:
    """Write a document to a file, or to standard output if the target is "-"."""
    text = dumps(content) + "\n"
    if str(target) == "-":
        sys.stdout.write(text)
    else:
        replace_file(Path(target), text)


def replace_file(target: Path, text: str) -> None:
    """Write a file whole or not at all.

    Raises:
        OSError: the disk is full or the folder cannot be written; the old file stands.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o644)
        os.replace(name, target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read(source: str | Path) -> dict[str, Any]:
    """A document that `write` wrote.

    Raises:
        Unreadable: the file is missing, cut short, not ours, or of a newer schema.
    """
    try:
        content = json.loads(Path(source).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise Unreadable(f"{source}: no such file") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise Unreadable(f"{source}: not readable as JSON ({error})") from None
    if not isinstance(content, dict) or "schema" not in content:
        raise Unreadable(f"{source}: no gradwatch document (it has no schema)")
    if content["schema"] != SCHEMA:
        raise Unreadable(
            f"{source}: schema {content['schema']}, this version reads {SCHEMA}"
        )
    return content
