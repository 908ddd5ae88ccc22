"""Saves findings as scripts with an index, loads and replays them, and names them.

A folder of findings holds a script for each defect and `index.json`: a document with a
line for each site that a script reproduces.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from msgspec import structs

from gradwatch.harness.project import documents
from gradwatch.harness.project.lock import alone
from gradwatch.harness.project.paths import INSTALLED, PROJECT, ROOT, SOURCE
from gradwatch.harness.project.records import (
    FUZZ,
    AgreeRecord,
    Environment,
    FindingRecord,
    FuzzSummary,
)
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.project.verdicts import DEATHS
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.harness.workers.lifetime import with_this_process
from gradwatch.impls.catalogue import framework_of

FOLDER = ROOT / "results" / "findings"

#: Where new ones are written unless another folder is asked for: git ignores it.
LATEST = ROOT / "results" / "latest" / "findings"
INDEX = "index.json"
WAIT = 60.0  # seconds for another run that is writing its findings


def save(finding: FindingRecord, text: str, folder: Path = FOLDER) -> Path:
    """Write a finding's script and its line in the index; return the script's file.

    It replaces a finding of the same site, unless that one is smaller.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder / ".lock", "writing findings", WAIT):
        by_id = {one.id: one for one in load(folder)[0]}
        before = by_id.pop(finding.id, None)
        if before and before.elements < finding.elements:
            return folder / before.script
        # Such as softmax-oneflow-crash, longer if that is another defect's.
        record, taken = finding.record, {f.script for f in by_id.values()}
        short = f"{record.op}-{framework_of(record.backend)}-{record.verdict}"
        flavour = record.backend.partition("_")[2]
        longer = f"{short}-{finding.place}", f"{short}-{finding.place}-{flavour}"
        names = (f"{name}.py" for name in (short, *longer))
        script = next(name for name in names if name not in taken)
        documents.replace_file(folder / script, text)
        by_id[finding.id] = structs.replace(finding, script=script)
        records = [by_id[name] for name in sorted(by_id)]
        summary = FuzzSummary(findings=len(records))
        content = documents.document(records, summary, Environment())
        documents.replace_file(folder / INDEX, documents.dumps(content) + "\n")
        if before and before.script not in taken | {script}:
            (folder / before.script).unlink(missing_ok=True)
    return folder / script


def load(folder: Path = FOLDER) -> tuple[list[FindingRecord], list[str]]:
    """All findings of a folder, by id; none, and why, if its index cannot be read."""
    if not (folder / INDEX).exists():
        return [], []
    try:
        return documents.read(folder / INDEX, FUZZ).records, []
    except documents.Unreadable as error:
        return [], [str(error)]


def replay(finding: FindingRecord, folder: Path = FOLDER) -> tuple[str, str]:
    """Run a finding's script: "holds", "gone" or "not run", and what it printed."""
    interpreter = interpreter_of(finding.record.framework)
    if interpreter.why_missing:
        return "not run", interpreter.why_missing
    paths = [*([] if INSTALLED else [SOURCE]), *PROJECT.paths(ROOT)]
    done = subprocess.run(
        [str(interpreter.python), str(folder / finding.script)],
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=with_this_process(),
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "GLOG_minloglevel": "2",
        },
    )
    raised = "Traceback" in done.stderr and finding.record.verdict not in DEATHS
    state = {0: "gone", 1: "holds"}.get(done.returncode, "not run")
    lacks = "ModuleNotFoundError" in done.stderr
    if raised and (lacks or finding.record.verdict != "error"):
        state = "not run"  # the script itself has failed
    output = (done.stderr if raised else done.stdout).strip().splitlines()
    return state, output[-1] if output else ""


# In words -------------------------------------------------------------------------


def headline(finding: FindingRecord) -> str:
    """A title such as "OneFlow 0.9.0: batch_norm gives wrong y in float32"."""
    record = finding.record
    version = record.framework_version.partition("+")[0]
    title = traits_of(record.framework).title or record.framework
    return f"{title} {version}: {defect(finding)}"


def defect(finding: FindingRecord) -> str:
    """What is wrong, such as "batch_norm gives wrong y in float32"."""
    record = finding.record
    op, tensor, dtype = record.op, record.tensor, record.dtype
    what = {
        "crash": f"{op} kills the process",
        "timeout": f"{op} does not return",
        "error": f"{op} raises on a legal input",
        "malformed": f"{op} gives malformed {tensor}",
        "nonfinite": f"{op} gives {tensor} that is not finite, in {dtype}",
    }.get(record.verdict, f"{op} gives wrong {tensor}")
    if record.radius and record.verdict == "disagree":
        what += f" in {dtype}"
    return what


def details(record: AgreeRecord) -> str:
    """A line of a docstring: exact value and error, or what was raised."""
    plain = (*DEATHS, "error", "malformed")
    if record.verdict in plain or record.tensor == "all":
        return record.message
    error = f"{record.tensor}{list(record.worst_index)}: exact {record.expected!r}"
    if record.got is not None and record.radius and record.ratio is not None:
        error += f", {record.ratio:.3g} rounding radii off"
        error += f" ({record.limit:.3g} are allowed)"
    return error
