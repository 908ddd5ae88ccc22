"""Writes findings as plain scripts, saves them with an index, replays and names them.

A script has the framework's own call, the exact answer and the allowed errors as
literals, and exits with 1 while the defect is there. A folder of findings holds a
script for each defect and `index.json`, with a line for each site that it reproduces.
"""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from gradwatch.harness.agreement.calls import Unwritten, calls
from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.radii import Truth
from gradwatch.harness.judging.reference import Reference
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
from gradwatch.harness.project.requested import dialect_of
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.project.verdicts import DEATHS
from gradwatch.harness.workers.arrays import numbers_in, values_of
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.harness.workers.lifetime import with_this_process
from gradwatch.impls.catalogue import framework_of

FOLDER = ROOT / "results" / "findings"

LATEST = ROOT / "results" / "latest" / "findings"  # where new ones are written
INDEX = "index.json"
WAIT = 60.0  # seconds for another run that is writing its findings


def save(finding: FindingRecord, text: str, folder: Path = FOLDER) -> Path:
    """Write a finding's script and its line in the index; return the script's file.

    It replaces a finding of the same site, unless that one is smaller.
    """
    with alone(folder / ".lock", "writing findings", WAIT):
        by_id = {one.id: one for one in load(folder)[0]}
        before = by_id.pop(finding.id, None)
        if before and before.elements < finding.elements:
            return folder / before.script
        record = finding.record
        framework, _, flavour = record.backend.partition("_")
        parts = record.op, framework, record.verdict, finding.place, flavour
        script = f"{'-'.join(filter(None, parts))}.py"
        if before and before.script not in {f.script for f in by_id.values()}:
            script = before.script
        documents.replace_file(folder / script, text)
        by_id[finding.id] = structs.replace(finding, script=script)
        records = [by_id[name] for name in sorted(by_id)]
        summary = FuzzSummary(findings=len(records))
        content = documents.document(records, summary, Environment())
        documents.replace_file(folder / INDEX, documents.dumps(content) + "\n")
    return folder / script


def load(folder: Path = FOLDER) -> tuple[list[FindingRecord], list[str]]:
    """All findings of a folder, by id; none, and why, if its index cannot be read."""
    records, troubles = documents.kept(folder / INDEX, FUZZ)
    return records, [*map(str, troubles)]


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


# As text --------------------------------------------------------------------------


def headline(finding: FindingRecord) -> str:
    """A title such as "OneFlow 0.9.0: batch_norm gives wrong y in float32"."""
    record = finding.record
    version = record.framework_version.partition("+")[0]
    title = traits_of(record.framework).title or record.framework
    return f"{title} {version}: {defect(finding)}"


def defect(finding: FindingRecord) -> str:
    """The defect in a phrase, such as "batch_norm gives wrong y in float32"."""
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
    """A line of a docstring: exact value and error, or the exception."""
    plain = (*DEATHS, "error", "malformed")
    if record.verdict in plain or record.tensor == "all":
        return record.message
    error = f"{record.tensor}{list(record.worst_index)}: exact {record.expected!r}"
    if record.got is not None and record.radius and record.ratio is not None:
        error += f", {record.ratio:.3g} rounding radii off"
        error += f" ({record.limit:.3g} are allowed)"
    return error


# Scripts ----------------------------------------------------------------------------


@cache
def template(name: str) -> Any:
    """The template of a script, from the folder `templates`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(str(__package__)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["repr"] = repr
    return environment.get_template(name)


def repro(
    trial: Trial,
    backend: str,
    record: AgreeRecord,
    headline: str,
    right: Reference | None = None,
    *,
    about: str = "",
) -> str:
    """The text of a script that exits 1 while the defect is there, 0 when it is gone.

    `right` are the exact answers, None if the op's formula refuses the input; `about`
    follows the headline in the docstring.
    """
    problem, op, lines = trial.problem, trial.problem.op, list[str]()
    framework, dialect = framework_of(backend), dialect_of(backend)
    with suppress(Unwritten):  # else the project's own code is called
        lines = calls(problem, framework, dialect) if framework != "numpy" else []
    whole = record.tensor not in op.outputs or dialect == "custom"
    dys = zip(op.outputs, problem.cotangents, strict=True)
    given = {**problem.inputs, **{f"d{n}": dy for n, dy in dys if dy is not None}}
    tensors = []
    for name, array in given.items():
        is_input = name in problem.inputs
        laid = trial.layout if is_input else trial.cotangent_layout
        kind = problem.dtype if lines and array.dtype.kind == "f" else array.dtype.name
        if whole or is_input:
            wanted = whole and name in problem.wanted
            tensors.append((name, values_of(array, laid), kind, wanted))
    ways = _ways(right, record)
    paragraphs = [textwrap.fill(p, 88) for p in about.splitlines()]
    docstring = "\n".join([textwrap.fill(f"{headline}.", 85), "", *paragraphs]).strip()
    quotes = '\n"""' if "\n" in docstring else '"""'
    docstring = '"""' + docstring.replace("\\", "\\\\") + quotes
    text: str = template("finding.py.j2").render(
        trial=trial,
        problem=problem,
        record=record,
        docstring=docstring,
        framework=framework,
        flavour=backend.partition("_")[2],
        backend=backend,
        lines=lines,
        tensors=tensors,
        cotangents=", ".join(
            "None" if a is None else f"np.array({values_of(a)}, {a.dtype.name!r})"
            for a in problem.cotangents
        ),
        whole=whole,
        custom=dialect == "custom",
        fresh=problem.empty and ways and framework == "oneflow",
        dies=record.verdict in DEATHS,
        ways=ways,
        uses=lambda name, code: re.search(rf"(?<![.\w]){name}\b", code),
    )
    return text


def _ways(right: Reference | None, record: AgreeRecord) -> list[dict[str, Any]]:
    """The exact value and allowed error of tensors, for each way of breaking ties.

    All tensors that depend on the tie are included: a maximum that passes its cotangent
    on to both inputs is wrong, although each gradient is right by one convention.
    """
    tensor = record.tensor
    if right is None or tensor not in right.graphs["first"]:  # "all", of a crash
        return []
    ways = [right.radii(way).bounds for way in right.rivals(record.convention)]
    names = [n for n in ways[0] if n == tensor or n in right.tied]
    limit = record.limit if record.limit is not None else right.limit
    found = [{n: _right(truths[n], limit) for n in names} for truths in ways]
    return list({str(way): way for way in found}.values())


def _right(truth: Truth, limit: float) -> dict[str, Any]:
    """The exact value of a tensor, the allowed error, and whether all is `known`.

    An expected infinity has to be exact; where nothing is known, any value is right.
    Allowed errors have three digits, and are one number where they are the same.
    """
    exact, allowed = truth.value, limit * truth.radius
    if exact.dtype.kind not in "biu":
        with np.errstate(all="ignore"):  # of extended precision
            exact = exact.astype(np.float64)
            exact = np.where(truth.infinite, np.copysign(np.inf, exact), exact)
            allowed = np.where(truth.infinite, 0.0, allowed)
        known = ~np.isnan(exact)
        exact, allowed = np.where(known, exact, 0.0), np.where(known, allowed, np.inf)
    short = np.array([float(f"{a:.3g}") for a in allowed.flat] or [0.0])
    shown = f"np.array({values_of(short.reshape(allowed.shape))})"
    if len(set(short.tolist())) == 1:
        shown = numbers_in(short[0])
    return {
        "exact": f"np.array({values_of(exact)})",
        "allowed": shown,
        "shape": exact.shape,
        "known": bool(np.isfinite(allowed).all()),
    }
