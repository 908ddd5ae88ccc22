"""Reads the results folder: documents, findings, and what is wrong with them.

The content of a file never raises: a file that is damaged, has a newer schema or is not
ours becomes a `Trouble`, which the site shows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from harness.judging.verdict import VERDICTS
from harness.project import documents

Record = dict[str, Any]

# The fields that a record of each kind must have, with their types. Kinds are told
# apart by these fields: a file's name is its owner's to choose.
_TEXT, _NUMBER = (str,), (int, float)
_MAYBE = (int, float, type(None))
_RUN = {"op": _TEXT, "case": _TEXT, "device": _TEXT, "dtype": _TEXT}
FIELDS: dict[str, dict[str, tuple[type, ...]]] = {
    "agree": {
        **_RUN,
        **dict.fromkeys(("regime", "backend", "framework", "tensor"), _TEXT),
        **dict.fromkeys(("framework_version", "verdict", "expected_verdict"), _TEXT),
        **dict.fromkeys(("message",), _TEXT),
        **dict.fromkeys(("ratio", "limit", "vacuous"), _MAYBE),
    },
    "time": {
        **_RUN,
        **dict.fromkeys(("backend", "phase"), _TEXT),
        **dict.fromkeys(("seconds", "low", "high"), _NUMBER),
    },
    "compare": {
        **_RUN,
        **dict.fromkeys(("a", "b", "phase", "verdict"), _TEXT),
        **dict.fromkeys(("ratio", "low", "high"), _NUMBER),
    },
}


@dataclass(frozen=True)
class Trouble:
    """A file, or part of a file, that is not shown, and the reason."""

    file: str
    why: str


@dataclass(frozen=True)
class Source:
    """One document: its environment, its summary, and its valid records."""

    file: str
    kind: str
    environment: Mapping[str, Any]
    summary: Mapping[str, Any]
    records: tuple[Record, ...]

    @property
    def machine(self) -> str:
        """The machine on which it was made."""
        return str(self.environment.get("machine") or "unnamed")

    @property
    def commit(self) -> str:
        """The full hash of the commit that was run; "" if unknown."""
        return str(self.environment.get("commit") or "")

    @property
    def date(self) -> str:
        """The time at which it was made, ISO 8601; can be sorted as text."""
        return str(self.environment.get("date") or "")

    @property
    def dirty(self) -> bool:
        """Whether there were uncommitted changes."""
        return bool(self.environment.get("dirty"))


@dataclass(frozen=True)
class Finding:
    """A failure that the fuzzer found and shrank."""

    id: str
    op: str
    about: Mapping[str, Any]
    text: str
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
    files = sorted((folder / "latest").glob("*.json"))
    files += sorted((folder / "recorded").glob("*/*.json"))
    for file in files:
        name = file.relative_to(folder).as_posix()
        _attempt(results, name, partial(_read_source, results, file, name))
    for file in sorted((folder / "findings").glob("[!.]*/")):
        name = file.relative_to(folder).as_posix()
        _attempt(results, name, partial(_read_finding, results, file))
    return results


def _attempt(results: Results, name: str, read: Callable[[], None]) -> None:
    try:
        read()
    except documents.Unreadable as error:
        results.troubles.append(Trouble(name, _without_path(str(error))))
    except OSError as error:
        results.troubles.append(Trouble(name, error.strerror or "cannot be read"))


def _without_path(message: str) -> str:
    """The message without the absolute path: the page names the file beside it."""
    return message.partition(": ")[2] or message


def _read_source(results: Results, file: Path, name: str) -> None:
    content = documents.strict(documents.read(file))
    environment, listed = content.get("environment"), content.get("records")
    if not isinstance(environment, dict) or not isinstance(listed, list):
        raise documents.Unreadable(
            f"{name}: it has no environment or no list of records"
        )
    kind = _kind(listed, file.stem)
    sound = []
    faults: dict[str, int] = {}
    for record in listed:
        fault = next(_faults(record, kind), "")
        if fault:
            faults[fault] = faults.get(fault, 0) + 1
        else:
            sound.append(record)
    for fault, count in faults.items():
        why = f"{count} of {len(listed)} records are not shown: {fault}"
        results.troubles.append(Trouble(name, why))
    summary = content.get("summary")
    summary = summary if isinstance(summary, dict) else {}
    source = Source(name, kind, environment, summary, tuple(sound))
    results.sources.append(source)
    if name.startswith("recorded/") and file.parent.name != source.machine:
        why = f"it was made on {source.machine} and is shown there"
        results.troubles.append(Trouble(name, why))


def _kind(listed: list[Any], stem: str) -> str:
    """The kind of whose fields the first record has most; else by the file's name.

    Half of them must be there: what lacks one or two is a damaged one of that kind.
    """
    first = next((r for r in listed if isinstance(r, dict)), {})
    had = {
        kind: len(own & set(first))
        for kind, fields in FIELDS.items()
        if len((own := set(fields) - set(_RUN)) & set(first)) > len(own) / 2
    }
    return max(had, key=lambda kind: had[kind]) if had else stem.partition("-")[0]


def _faults(record: Any, kind: str) -> Iterator[str]:
    if not isinstance(record, dict):
        yield "no record"
        return
    for name, types in FIELDS.get(kind, {}).items():
        if name not in record:
            yield f"{name} is missing"
        elif not isinstance(record[name], types) or isinstance(record[name], bool):
            yield f"{name} is of the wrong type"
    if kind == "agree" and record.get("verdict") not in VERDICTS:
        yield f"the verdict {record.get('verdict')!r} is unknown"
    if kind == "time" and not min(record["seconds"], record["low"]) > 0:
        yield "a time is not positive"


def _read_finding(results: Results, folder: Path) -> None:
    try:
        about = json.loads((folder / "finding.json").read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        message = f"finding.json: not readable as JSON ({error})"
        raise documents.Unreadable(f"{folder.name}: {message}") from None
    if not isinstance(about, dict) or not isinstance(about.get("op"), str):
        raise documents.Unreadable(f"{folder.name}: finding.json names no op")
    text, repro = (_optional(folder / name) for name in ("finding.md", "repro.py"))
    made = Finding(folder.name, about["op"], documents.strict(about), text, repro)
    results.findings.append(made)


def _optional(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
