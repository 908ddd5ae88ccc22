"""Reads the results folder: documents, findings, and what is wrong with them.

The content of a file never raises: a file that is damaged, has a newer schema or is not
ours becomes a trouble, which the site shows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.records import FUZZ, KINDS, Environment, FindingRecord


@dataclass(frozen=True)
class Source:
    """One document: its file below the results folder, its kind, and its contents."""

    file: str
    kind: str
    environment: Environment
    summary: Any
    records: tuple[Any, ...]

    @property
    def machine(self) -> str:
        """The machine on which it was made."""
        return self.environment.machine or "unnamed"


class Finding(NamedTuple):
    """A failure that the fuzzer found and shrank, and the script that shows it."""

    about: FindingRecord
    repro: str


@dataclass
class Results:
    """The contents of a results folder, and the files that could not be read."""

    sources: list[Source] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    troubles: list[Unreadable] = field(default_factory=list)

    @property
    def machines(self) -> tuple[str, ...]:
        """Machines that have documents, ordered by their newest one."""
        newest = sorted(self.sources, key=lambda s: s.environment.date, reverse=True)
        return tuple(dict.fromkeys(s.machine for s in newest))


def read_results(folder: Path) -> Results:
    """Read results/latest, results/recorded/<machine> and results/findings."""
    results, troubles = Results(), list[Unreadable]()
    for file in sorted([*folder.glob("latest/*"), *folder.glob("recorded/*/*")]):
        name = file.relative_to(folder).as_posix()
        if not name.endswith((".json", ".json.gz")):
            continue
        try:
            _not_elsewhere(file, folder)
            results.sources.append(source := _read_source(file, name, troubles))
        except Unreadable as error:
            troubles.append(error)
            continue
        if name.startswith("recorded/") and file.parent.name != source.machine:
            why = f"it was made on {source.machine} and is shown there"
            troubles.append(Unreadable(why, file))
    try:
        index = folder / "findings" / "index.json"
        results.findings = _read_findings(index, troubles)
    except Unreadable as error:
        troubles.append(error)
    results.troubles = [one.below(folder) for one in troubles]
    return results


def _read_source(file: Path, name: str, odd: list[Unreadable]) -> Source:
    """Return a document of the kind with which its file's name begins.

    Raises:
        Unreadable: It is damaged, or of no kind that is shown.
    """
    kind = next((k for k in KINDS if k.name == re.split("[-.]", file.name)[0]), None)
    if kind is None:
        named = ", ".join(k.name for k in KINDS)
        raise Unreadable(f"its name begins with no kind of document: {named}", file)
    found = documents.read(file, kind, odd)
    about, summary = found.environment, found.summary
    return Source(name, kind.name, about, summary, tuple(found.records))


def _read_findings(index: Path, odd: list[Unreadable]) -> list[Finding]:
    """Return a finding for each script in the index; none where there is no index."""
    if not index.exists():
        return []
    records = documents.read(index, FUZZ, odd).records
    return [
        Finding(about, _text(index.with_name(Path(name).name)) if name else "")
        for name, about in {record.script: record for record in records}.items()
    ]


def _not_elsewhere(file: Path, folder: Path) -> None:
    """Refuse a link that leads out of a folder: its contents would be published.

    Raises:
        Unreadable: The file is one.
    """
    if not file.resolve().is_relative_to(folder.resolve()):
        raise Unreadable("a link that leads out of the results", file)


def _text(file: Path) -> str:
    if not file.exists():
        return ""
    _not_elsewhere(file, file.parent)
    return documents.bytes_of(file).decode("utf-8", "replace")
