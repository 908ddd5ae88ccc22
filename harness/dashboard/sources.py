"""Reads the results folder: documents, findings, and what is wrong with them.

The content of a file never raises: a file that is damaged, has a newer schema or is not
ours becomes a `Trouble`, which the site shows.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Document, Unreadable
from gradwatch.harness.project.records import (
    FUZZ,
    KINDS,
    Environment,
    FindingRecord,
    Kind,
)


@dataclass(frozen=True)
class Trouble:
    """A file that is not shown, and the reason."""

    file: str
    why: str


@dataclass(frozen=True)
class Source:
    """One document: its environment, its summary, and its records."""

    file: str
    kind: str
    environment: Environment
    summary: Any
    records: tuple[Any, ...]

    @property
    def machine(self) -> str:
        """The machine on which it was made."""
        return self.environment.machine or "unnamed"

    @property
    def commit(self) -> str:
        """The full hash of the commit that was run; "" if unknown."""
        return self.environment.commit

    @property
    def date(self) -> str:
        """The time at which it was made, ISO 8601; can be sorted as text."""
        return self.environment.date

    @property
    def dirty(self) -> bool:
        """Whether there were uncommitted changes."""
        return self.environment.dirty


@dataclass(frozen=True)
class Finding:
    """A failure that the fuzzer found and shrank."""

    id: str
    op: str
    about: FindingRecord
    repro: str


@dataclass
class Results:
    """The contents of a results folder, and the files that could not be read."""

    sources: list[Source] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)

    @property
    def machines(self) -> tuple[str, ...]:
        """Machines that have documents, ordered by their newest one."""
        newest = sorted(self.sources, key=lambda s: s.date, reverse=True)
        return tuple(dict.fromkeys(s.machine for s in newest))


def read_results(folder: Path) -> Results:
    """Read results/latest, results/recorded/<machine> and results/findings."""
    results = Results()
    files = _documents(folder / "latest", "*")
    files += _documents(folder / "recorded", "*/*")
    for file in files:
        name = file.relative_to(folder).as_posix()
        _attempt(results, name, partial(_read_source, results, file, name))
    index = folder / "findings" / "index.json"
    if index.exists():
        _attempt(results, "findings", partial(_read_findings, results, index))
    return results


def _documents(folder: Path, names: str) -> list[Path]:
    return sorted([*folder.glob(f"{names}.json"), *folder.glob(f"{names}.json.gz")])


def _attempt(results: Results, name: str, read: Callable[[], None]) -> None:
    try:
        read()
    except Unreadable as error:
        results.troubles.append(Trouble(name, error.why))
    except OSError as error:
        results.troubles.append(Trouble(name, error.strerror or "cannot be read"))


def _read_source(results: Results, file: Path, name: str) -> None:
    kind, content = _document(file)
    source = Source(
        name, kind.name, content.environment, content.summary, tuple(content.records)
    )
    results.sources.append(source)
    if name.startswith("recorded/") and file.parent.name != source.machine:
        why = f"it was made on {source.machine} and is shown there"
        results.troubles.append(Trouble(name, why))


def _document(file: Path) -> tuple[Kind[Any, Any], Document[Any, Any]]:
    """Return a document, and its kind: by the file's name, else the first that fits.

    Raises:
        Unreadable: It is damaged, or of no kind that is shown.
    """
    content, name = documents.bytes_of(file), re.split("[-.]", file.name)[0]
    refused = list[Unreadable]()
    for kind in [kind for kind in KINDS if kind.name == name] or KINDS:
        try:
            found = documents.parsed(content, kind, file)
        except Unreadable as error:
            refused.append(error)
        else:
            if kind.name == name or found.records:
                return kind, found
    # Records of another kind lack a field; a damaged one has it.
    damaged = [error for error in refused if "missing required" not in error.why]
    unknown = Unreadable("neither its name nor a record says what it is", file)
    raise [*damaged, *refused, unknown][0]


def _read_findings(results: Results, index: Path) -> None:
    """Add a finding for each script in the index."""
    content = documents.read(index, FUZZ)
    for name, about in {record.script: record for record in content.records}.items():
        script = _optional(index.with_name(Path(name).name)) if name else ""
        results.findings.append(Finding(Path(name).stem, about.op, about, script))


def _optional(file: Path) -> str:
    if not file.exists():
        return ""
    return documents.bytes_of(file).decode("utf-8", "replace")
