"""Saves findings, loads them, and describes them for bug reports and docs.

A finding is a folder with finding.json (the facts), finding.md (a paragraph for a bug
report) and repro.py (a script that runs by itself).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from gradwatch.harness.agreement.findings import DEATHS, Finding, Site, flags
from gradwatch.harness.judging.platforms import FLUSHED
from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Unreadable, dumps
from gradwatch.harness.project.lock import remove_stale
from gradwatch.harness.project.paths import INSTALLED, PROJECT, ROOT, SOURCE
from gradwatch.harness.project.records import AgreeRecord, FindingRecord
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.workers.lifetime import with_this_process
from gradwatch.harness.workers.pythons.interpreters import interpreter_of

FOLDER = ROOT / "results" / "findings"

#: Where new ones are written unless another folder is asked for: git ignores it.
LATEST = ROOT / "results" / "latest" / "findings"
LARGE = 16  # elements; larger inputs are only in the script


def named(framework: str) -> str:
    """The name of a framework in prose."""
    return traits_of(framework).title or framework


def save(finding: Finding, folder: Path = FOLDER) -> Path:
    """Write a finding's folder, completely or not at all.

    It replaces a finding of the same site, unless that one is smaller.
    """
    target = folder / finding.site.id
    if _smaller(target / "finding.json", finding):
        return target
    folder.mkdir(parents=True, exist_ok=True)
    remove_stale(target)
    new = Path(tempfile.mkdtemp(dir=folder, prefix=f".{finding.site.id}."))
    old = new.with_name(f"{new.name}.old")
    try:
        (new / "finding.json").write_text(dumps(facts(finding)) + "\n")
        (new / "finding.md").write_text(paragraph(finding) + "\n")
        (new / "repro.py").write_text(finding.repro)
        new.chmod(0o755)
        if target.exists():
            target.rename(old)
        new.rename(target)
    finally:
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)
    return target


def _smaller(file: Path, finding: Finding) -> bool:
    """Whether the existing finding is smaller; a damaged one is replaced."""
    try:
        return _read(file).elements < finding.elements
    except Unreadable:
        return False


def facts(finding: Finding) -> FindingRecord:
    """The content of finding.json."""
    site = finding.site
    return FindingRecord(
        id=site.id,
        op=site.op,
        backend=site.backend,
        verdict=site.verdict,
        place=site.place,
        record=finding.record,
        values=dict(finding.values),
        inputs=dict(finding.inputs),
        shapes={name: list(shape) for name, shape in finding.shapes.items()},
        attributes=dict(finding.attributes),
        layout=finding.layout,
        seed=finding.seed,
        part=site.part,
    )


def load(folder: Path = FOLDER) -> tuple[list[Finding], list[str]]:
    """All findings of a folder, by id, and a line for each that cannot be read.

    One that is still being written is left out.
    """
    findings, troubles = list[Finding](), list[str]()
    for file in sorted(folder.glob("[!.]*/finding.json")):
        try:
            findings.append(_read(file))
        except Unreadable as error:
            troubles.append(str(error))
    return findings, troubles


def _read(file: Path) -> Finding:
    facts = documents.load(file, FindingRecord)
    repro = documents.bytes_of(file.with_name("repro.py")).decode(errors="replace")
    return Finding(
        _site(facts),
        facts.record,
        facts.values,
        facts.inputs,
        facts.shapes,
        facts.attributes,
        facts.layout,
        facts.seed,
        repro,
    )


def _site(facts: FindingRecord) -> Site:
    part = facts.part or facts.place.partition("-")[0]
    empty = any(0 in shape for shape in facts.shapes.values())
    return Site.of(facts.record, part, flags(facts.attributes, empty))


def replay(finding: Finding, folder: Path = FOLDER) -> tuple[str, str]:
    """Run a finding's script: "holds", "gone" or "not run", and what it printed."""
    interpreter = interpreter_of(finding.record.framework)
    if interpreter.why_missing:
        return "not run", interpreter.why_missing
    done = subprocess.run(
        [str(interpreter.python), str(folder / finding.site.id / "repro.py")],
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=with_this_process(),
        env={"PYTHONPATH": os.pathsep.join(_paths()), "GLOG_minloglevel": "2"},
    )
    output = (done.stdout or done.stderr).strip().splitlines()
    state = {0: "gone", 1: "holds"}.get(done.returncode, "not run")
    return state, output[-1] if output else ""


def _paths() -> list[str]:
    """Environment variables that let the script import the engine and the project."""
    checkout = [] if INSTALLED else [SOURCE]
    return [str(path) for path in dict.fromkeys([*checkout, *PROJECT.paths(ROOT)])]


# In words -------------------------------------------------------------------------


def headline(finding: Finding) -> str:
    """A title such as "OneFlow 0.9.0: batch_norm gives a wrong y in float32"."""
    record = finding.record
    who = f"{named(record.framework)} {record.framework_version}"
    op, tensor, dtype = finding.site.op, record.tensor, record.dtype
    what = {
        "crash": f"{op} kills the process",
        "timeout": f"{op} does not return",
        "error": f"{op} raises on a legal input",
        "malformed": f"{op} gives malformed {tensor}",
        "nonfinite": f"{op} gives {tensor} that is not finite, in {dtype}",
        "convention": f"{op} breaks ties in its own way ({finding.site.convention})",
    }.get(finding.site.verdict, f"{op} gives wrong {tensor}")
    if finding.site.convention == FLUSHED:
        what = f"{op} takes subnormal numbers for zero"
    if finding.site.dtype and finding.site.verdict == "disagree":
        what += f" in {dtype}"
    return f"{who}: {what}"


def paragraph(finding: Finding) -> str:
    """Title, input, result and exact value, and how to reproduce it."""
    who = named(finding.record.framework)
    lines = [f"**{headline(finding)}**", "", f"With {_given(finding)}:", ""]
    lines += [f"- {line}" for line in _details(finding)]
    lines += [
        "",
        f"`python results/findings/{finding.site.id}/repro.py` needs only NumPy and "
        f"{who}; it exits 1 while this holds, 0 when it has gone.",
    ]
    return "\n".join(lines)


def _given(finding: Finding) -> str:
    parts = []
    for name, shape in finding.shapes.items():
        size = 1
        for length in shape:
            size *= length
        small = size <= LARGE and "random" not in finding.layout
        text = (
            finding.inputs[name]
            if small
            else f"of shape {tuple(shape)}, see the script"
        )
        parts.append(f"`{name} = {text}`" if small else f"{name} {text}")
    parts += [f"`{k}={v}`" for k, v in finding.attributes.items()]
    odd = set(finding.layout.split(", ")) - {"contiguous"}
    if odd:
        parts.append(f"memory layout (inputs, cotangents): {finding.layout}")
    return ", ".join(" ".join(part.split()) for part in parts)


def _details(finding: Finding) -> Iterator[str]:
    record, verdict = finding.record, finding.site.verdict
    if (
        verdict in (*DEATHS, "error", "malformed")
        or record.tensor == "all"
        or verdict == "convention"
    ):
        yield record.message
    else:
        where = f"{record.tensor}{list(record.worst_index)}"
        yield f"exact: {where} = {record.expected!r}"
        yield _off(record)
    groups: dict[str, list[str]] = defaultdict(list)
    for backend, value in finding.values.items():
        groups[value].append(backend)
    for value, backends in groups.items():
        yield f"{', '.join(f'`{b}`' for b in sorted(backends))}: {value}"


def _off(record: AgreeRecord) -> str:
    if record.got is None or record.ratio is None or record.limit is None:
        return "what came is not finite"
    if not record.radius:
        return "no rounding is involved: any difference is an error"
    return (
        f"off by {record.ratio:.3g} rounding radii of {record.radius:.3g} "
        f"({record.limit:.3g} are allowed for)"
    )
