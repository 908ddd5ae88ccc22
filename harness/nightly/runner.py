"""Runs the parts of a nightly run one after another, and can continue a killed run.

A part is a function that takes a `Night` and returns a `Result`; they are in
harness/nightly/parts.py. If a part raises, the others still run. A journal keeps what
is finished, so a killed run continues where it stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from harness.nightly.model import Done, Night, Part, Problem, Report, Result
from harness.nightly.report import junit, markdown
from harness.project import documents, git
from harness.project.documents import Unreadable
from harness.project.paths import ROOT
from harness.workers.evaluate import in_short


def run(
    night: Night,
    parts: Mapping[str, Part],
    progress: Callable[[Done], None] = lambda done: None,
) -> list[Done]:
    """Run the parts that the journal does not have yet, even if one of them fails."""
    found = []
    for name, part in parts.items():
        kept = night.journal.once(f"part-{name}", partial(_attempt, name, part, night))
        problems = [Problem(**problem) for problem in kept.pop("problems")]
        found.append(Done(**kept, problems=problems))
        progress(found[-1])
    return found


def _attempt(name: str, part: Part, night: Night) -> dict[str, Any]:
    start = time.monotonic()
    try:
        result = part(night)
        state = "failed" if result.problems or result.required else "passed"
    except Exception as error:  # noqa: BLE001  # whatever a part raises is reported
        told = in_short(error)
        result = Result(told, [Problem(name, "", "", "part", told)])
        state = "broken"
    done = Done(
        name,
        "skipped" if result.skipped else state,
        result.skipped or result.required or result.told,
        time.monotonic() - start,
        result.problems,
        result.notes,
        bool(result.required),
    )
    return asdict(done)


def report(parts: Sequence[Done], previous: Sequence[Problem]) -> Report:
    """Sort the problems: new since the previous night, known, and gone."""
    found = [problem for done in parts for problem in done.problems]
    before = {problem.key for problem in previous}
    now = {problem.key for problem in found}
    return Report(
        parts,
        [problem for problem in found if problem.key not in before],
        [problem for problem in found if problem.key in before],
        [problem for problem in previous if problem.key not in now],
        documents.surroundings(),
    )


def problems_of(file: Path) -> list[Problem]:
    """The problems in a previous night's document; empty if there is no such file.

    Raises:
        Unreadable: The document is damaged.
    """
    if not file.exists():
        return []
    listed = documents.read(file)["records"]
    try:
        names = Problem.__dataclass_fields__
        return [Problem(**{name: one[name] for name in names}) for one in listed]
    except (KeyError, TypeError) as error:
        raise Unreadable(f"{file}: not written by nightly ({error})") from None


def write(found: Report, night: Night) -> None:
    """Write the document, the XML and the summary; each file is replaced atomically."""
    new = {problem.key for problem in found.new}
    rows = [
        {**asdict(problem), "new": problem.key in new}
        for problem in (*found.new, *found.known)
    ]
    parts = [
        {"name": d.name, "state": d.state, "told": d.told, "seconds": d.seconds}
        for d in found.parts
    ]
    summary = {
        "parts": parts,
        "new": len(found.new),
        "known": len(found.known),
        "gone": [asdict(problem) for problem in found.gone],
    }
    judged = night.journal.path("agree")
    agreement = documents.read(judged) if judged.exists() else None
    documents.replace_file(night.folder / "junit.xml", junit(found, agreement))
    documents.replace_file(night.folder / "summary.md", markdown(found))
    documents.write(
        documents.document(rows, summary, found.environment),
        night.folder / "nightly.json",
    )


def key_of(night_options: Mapping[str, Any], root: Path = ROOT) -> dict[str, Any]:
    """Identifies a run that can be continued: options, machine, state of the files."""
    return {
        **night_options,
        "machine": documents.machine_name(),
        "files": git.fingerprint(root),
    }
