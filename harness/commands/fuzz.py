"""`gradwatch fuzz`: searches for failures, shrinks them, writes reports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from harness.agreement import findings_page, store
from harness.agreement.findings import Finding
from harness.agreement.fuzz import Hunt
from harness.agreement.known_entries import Unconfirmed, announced
from harness.console import options as options
from harness.console.terminal import errors, output, progress
from harness.judging.known import FILE
from harness.project import documents
from harness.project.records import AGREE, FuzzSummary
from harness.workers.pool import Fleet
from impls.catalogue import framework_of


@click.command()
@options.op
@options.pages
@options.backend
@click.option(
    "--budget",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Time for searching and shrinking.",
)
@options.seed
@click.option(
    "--folder",
    default=str(store.FOLDER),
    show_default="results/findings",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for the findings; each gets a folder of its own.",
)
@click.option("--replay", is_flag=True, help="Only run the scripts of the findings.")
@click.option(
    "--page",
    metavar="F.md",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Only write a page with all findings.",
)
@click.option(
    "--known",
    multiple=True,
    metavar="AGREE.json",
    help="Only write known_outcomes.json, from documents of `gradwatch agree` with"
    " several seeds; each defect in them needs a finding. Repeatable.",
)
@options.json_file
def command(
    ops: tuple[str, ...],
    pages: tuple[str, ...],
    backends: tuple[str, ...],
    budget: float,
    seed: int,
    folder: Path,
    replay: bool,
    page: Path | None,
    known: tuple[str, ...],
    json_file: str | None,
) -> int:
    r"""Search for inputs on which a backend is wrong, and shrink them.

    Shapes, values, memory layouts and attributes are drawn from the op's page. Each
    finding is a folder with the facts, a paragraph for a bug report and a script that
    runs by itself. It is written at once, and again after shrinking.

    \b
    Examples:
      gradwatch fuzz --op batch_norm --backend oneflow_autograd --budget 30
      gradwatch fuzz --ops my_op.py --seed 7
      gradwatch fuzz --replay              which findings still fail
    Exit code: 0; 1 if a finding is gone (--replay) or missing (--known).
    """
    if replay:
        return _replay(folder)
    if page or known:
        return _write(folder, page, known)
    asked = options.framework_backends(backends)
    frameworks = {framework_of(name) for name in asked}
    findings: dict[str, Finding] = {}
    with Fleet(jobs=len(frameworks)) as fleet, progress("looking") as advance:
        hunt = Hunt(asked, fleet, seed)
        try:
            for finding in hunt.run(options.loaded_ops(ops, pages), budget, advance):
                store.save(finding, folder)
                if finding.site.id not in findings:
                    errors().print(store.headline(finding), markup=False)
                findings[finding.site.id] = finding
        except KeyboardInterrupt:
            errors().print(f"interrupted; {len(findings)} findings are kept")
    summary = FuzzSummary(tried=hunt.tried, findings=len(findings), seed=seed)
    if json_file:
        facts = [store.facts(finding) for finding in findings.values()]
        documents.write(documents.document(facts, summary), json_file)
    if json_file != "-":
        _show(findings, hunt.tried)
    return 0


def _write(folder: Path, page: Path | None, known: Sequence[str]) -> int:
    findings = _loaded(folder)
    if page:
        documents.replace_file(page, findings_page.page(findings))
    if known:
        runs = [documents.read_whole(name, AGREE).records for name in known]
        try:
            entries = announced(runs, findings)
        except Unconfirmed as error:
            errors().print(str(error), markup=False)
            return 1
        documents.write(entries, FILE)
    return 0


def _loaded(folder: Path) -> list[Finding]:
    """The findings of a folder; those that cannot be read are named."""
    findings, troubles = store.load(folder)
    for trouble in troubles:
        errors().print(trouble, style="yellow", markup=False, soft_wrap=True)
    return findings


def _show(findings: dict[str, Finding], tried: int) -> None:
    console = output()
    for name, finding in sorted(findings.items()):
        shapes = ", ".join(f"{n} {tuple(s)}" for n, s in finding.shapes.items())
        console.print(f"{name}: {shapes}", markup=False)
    console.print(f"{len(findings)} findings in {tried} trials")


def _replay(folder: Path) -> int:
    states = []
    for finding in _loaded(folder):
        state, printed = store.replay(finding, folder)
        output().print(f"{state:8} {finding.site.id}: {printed}", markup=False)
        states.append(state)
    output().print(", ".join(f"{states.count(s)} {s}" for s in sorted(set(states))))
    return 1 if "gone" in states else 0
