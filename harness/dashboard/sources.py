"""What lies in the results folder: documents, findings, and what cannot be read.

Nothing here raises over a file's content: what is damaged, of a newer schema or not
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

# What a record of each kind must say to be shown, and of what type. Kinds are told
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
    """A file, or a part of one, that is not shown, and why."""

    file: str
    why: str


@dataclass(frozen=True)
class Source:
    """One document: what was run, where, and its sound records."""

    file: str
    kind: str
    environment: Mapping[str, Any]
    summary: Mapping[str, Any]
    records: tuple[Record, ...]

    @property
    def machine(self) -> str:
        """The machine that it was made on."""
        return str(self.environment.get("machine") or "unnamed")

    @property
    def commit(self) -> str:
        """The commit that was run, in full; empty where unknown."""
        return str(self.environment.get("commit") or "")

    @property
    def date(self) -> str:
        """When it was made, ISO 8601; sorts as text."""
        return str(self.environment.get("date") or "")

    @property
    def dirty(self) -> bool:
        """Whether files differed from the commit."""
        return bool(self.environment.get("dirty"))


@dataclass(frozen=True)
class Finding:
    """A disagreement that the fuzzer found and shrank."""

    id: str
    op: str
    about: Mapping[str, Any]
    text: str
    repro: str


@dataclass
class Results:
    """All that could be read of a results folder, and what could not."""

    sources: list[Source] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    troubles: list[Trouble] = field(default_factory=list)

    @property
    def machines(self) -> tuple[str, ...]:
        """Machines with documents, that of the newest one first."""
        newest = sorted(self.sources, key=lambda s: s.date, reverse=True)
        return tuple(dict.fromkeys(s.machine for s in newest))


def read_results(folder: Path) -> Results:
    """Read results/latest, results/recorded/<machine> and results/findings."""
    found = Results()
    files = sorted((folder / "latest").glob("*.json"))
    files += sorted((folder / "recorded").glob("*/*.json"))
    for file in files:
        name = file.relative_to(folder).as_posix()
        _attempt(found, name, partial(_read_source, found, file, name))
    for file in sorted((folder / "findings").glob("[!.]*/")):
        name = file.relative_to(folder).as_posix()
        _attempt(found, name, partial(_read_finding, found, file))
    return found


def _attempt(found: Results, name: str, read: Callable[[], None]) -> None:
    try:
        read()
    except documents.Unreadable as error:
        found.troubles.append(Trouble(name, _without_path(str(error))))
    except OSError as error:
        found.troubles.append(Trouble(name, error.strerror or "cannot be read"))


def _without_path(message: str) -> str:
    """A reader of the page needs no absolute path: the file is named beside."""
    return message.partition(": ")[2] or message


def _read_source(found: Results, file: Path, name: str) -> None:
    content = documents.strict(documents.read(file))
    environment, listed = content.get("environment"), content.get("records")
    if not isinstance(environment, dict) or not isinstance(listed, list):
        raise documents.Unreadable(
            f"{name}: it lacks an environment or a list of records"
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
        told = f"{count} of {len(listed)} records are not shown: {fault}"
        found.troubles.append(Trouble(name, told))
    summary = content.get("summary")
    summary = summary if isinstance(summary, dict) else {}
    source = Source(name, kind, environment, summary, tuple(sound))
    found.sources.append(source)
    if name.startswith("recorded/") and file.parent.name != source.machine:
        told = f"it was made on {source.machine} and is shown there"
        found.troubles.append(Trouble(name, told))


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


def _read_finding(found: Results, folder: Path) -> None:
    try:
        about = json.loads((folder / "finding.json").read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError) as error:
        message = f"finding.json: not readable as JSON ({error})"
        raise documents.Unreadable(f"{folder.name}: {message}") from None
    if not isinstance(about, dict) or not isinstance(about.get("op"), str):
        raise documents.Unreadable(f"{folder.name}: finding.json names no op")
    text, repro = (_optional(folder / name) for name in ("finding.md", "repro.py"))
    made = Finding(folder.name, about["op"], documents.strict(about), text, repro)
    found.findings.append(made)


def _optional(file: Path) -> str:
    return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
