"""Parts of a nightly run that call other commands, each in a process of its own."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

from gradwatch.harness.agreement import store
from gradwatch.harness.judging.defects import known
from gradwatch.harness.nightly.model import Night, Result
from gradwatch.harness.project import documents
from gradwatch.harness.project.paths import PROJECT
from gradwatch.harness.project.records import FUZZ, SELFTEST, FindingRecord, Problem
from gradwatch.harness.project.verdicts import PASSING
from gradwatch.impls.catalogue import op_names

CAMPAIGN = "tests.faults"  # docs/reliability.md

FAULTS = 60  # of each kind some, in less than a minute


def selftest(night: Night) -> Result:
    """Plant wrong backwards and check that the judge rejects them.

    That is a matter of the judge and of our own ops: in a project with ops of its own
    it is skipped.
    """
    if PROJECT.table:
        why = "it tests the judge, with the ops of gradwatch itself"
        return Result("", skipped=why)
    options = ["--quick", "--jobs", str(night.jobs), "--seed", str(night.seed)]
    result = _command(night, "selftest", [*options, *_ops(night)])
    file = night.journal.path("selftest")
    if not file.exists():
        return result
    summary = documents.read(file, SELFTEST).summary
    unmet = [
        Problem("selftest", "", "", one.required, one.found)
        for one in summary.requirements
        if not one.met
    ]
    line = f"{summary.planted:,} planted errors in {summary.runs:,} runs"
    return Result(line, unmet or result.problems)


def fuzz(night: Night) -> Result:
    """Search for failures with the fuzzer, for a share of the budget.

    Findings are written to findings/ in the output folder. A finding is a problem if it
    is no known outcome and results/findings has none for that op and backend: a
    recorded defect shows up in other tensors and verdicts every night.
    """
    folder = night.folder / "findings"
    options = ["--budget", f"{night.share:.0f}", "--seed", str(night.seed)]
    options += ["--folder", str(folder), *_ops(night), *_backends(night)]
    result = _command(night, "fuzz", options)
    if result.problems:
        return result
    content = documents.read(night.journal.path("fuzz"), FUZZ)
    listed = known.load()
    kept, troubles = store.load(night.results / "findings")
    recorded = {(finding.site.op, finding.site.backend) for finding in kept}
    fresh = [
        finding
        for finding in content.records
        if finding.verdict not in PASSING
        and (finding.op, finding.backend) not in recorded
        and known.expected_verdict(finding.record, listed) != finding.verdict
    ]
    line = f"{content.summary.tried:,} trials, {len(fresh)} of"
    line += f" {len(content.records)} findings are new"
    return Result(line, [_new_finding(finding) for finding in fresh], notes=troubles)


def _new_finding(finding: FindingRecord) -> Problem:
    return Problem(
        "fuzz",
        finding.op,
        finding.backend,
        f"{finding.record.tensor} {finding.verdict} ({finding.place})",
        f"findings/{finding.script}: {finding.record.story}",
    )


def dashboard(night: Night) -> Result:
    """Write the dashboard from the history and this night's verdicts."""
    target = night.folder / "dashboard"
    view = _view(night)
    places = ("--results", str(view), "--output", str(target))
    code, tail = night.run("report", "-m", "gradwatch", "report", *places)
    if code:
        problem = Problem("report", "", "", f"exit code {code}", tail)
        return Result("no dashboard", [problem])
    return Result(f"{target.name}/index.html")


def _view(night: Night) -> Path:
    """The results folder, as links, with this night's verdicts as the latest."""
    view = night.journal.folder / "view"
    (view / "latest").mkdir(parents=True, exist_ok=True)
    shown = {name: night.results / name for name in ("asv", "recorded", "findings")}
    for part in ("agree", "watch"):
        shown[f"latest/{part}.json"] = night.journal.path(part)
    for name, there in shown.items():
        (view / name).unlink(missing_ok=True)
        if there.exists():
            (view / name).symlink_to(there.resolve())
    return view


def _ops(night: Night) -> list[str]:
    return [word for op in night.ops for word in ("--op", op)]


def _backends(night: Night) -> list[str]:
    return [word for name in night.backends for word in ("--backend", name)]


def _command(night: Night, name: str, options: Sequence[str]) -> Result:
    """Run one of our commands in its own process; its exit code decides the result."""
    file = night.journal.path(name)
    file.unlink(missing_ok=True)  # one that ends early must not pass by an old one
    call = ("-m", "gradwatch", name, *options, "--json", str(file))
    code, tail = night.run(name, *call)
    if code == 0 and file.exists():
        return Result("all as expected")
    line = f"exit code {code}" if code else "it ended without a document"
    return Result(line, [Problem(name, "", "", line, tail)])


def faults(night: Night) -> Result:
    """Inject a short campaign of faults, with another seed each day."""
    if {*night.ops} != {*op_names()}:
        return Result("", skipped="only some ops were asked for")
    seed = datetime.date.today().toordinal()
    call = ("-m", CAMPAIGN, "--faults", str(FAULTS), "--seed", str(seed))
    code, tail = night.run("faults", *call)
    if code:
        problem = Problem("faults", "", "", f"exit code {code}", tail)
        return Result(f"exit code {code}: {tail}", [problem])
    return Result(tail)
