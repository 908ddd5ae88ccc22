"""`gradwatch doctor`: what is installed, what is missing, and how to install it."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.table import Table

from gradwatch.harness.commands._examination import Finding, examine
from gradwatch.harness.console import options as options
from gradwatch.harness.console.terminal import ending, errors, output, ticking
from gradwatch.harness.project import documents

_SIGNS = {"ok": ("✓", "green"), "warning": ("▲", "yellow"), "missing": ("✗", "red")}


@click.command()
@options.json_file
def command(json_file: str | None) -> None:
    r"""Show what is installed here, what is missing, and how to install it.

    Examines the interpreters, the frameworks and their devices, the allocator, and the
    checkout. Nothing is changed, and the exit code is always 0; to fail when a backend
    is missing, use `gradwatch agree --require BACKEND`.

    \b
    Examples:
      gradwatch doctor
      gradwatch doctor --json -
    """
    findings: list[Finding] = []
    with (
        errors().status("looking around") as status,
        ticking(lambda: f"looking around: {len(findings)} things examined"),
    ):
        for finding in examine():
            findings.append(finding)
            status.update(f"checked {finding.name}")
    if json_file:
        rows = [{**vars(f), "state": f.state} for f in findings]
        counts = {s: sum(f.state == s for f in findings) for s in _SIGNS}
        documents.write(documents.document(rows, counts), json_file)
    if json_file != "-":
        output().print(table(findings))
        own = sorted(f.name for f in findings if f.devices.get("cpu") == "")
        absent = [f.name for f in findings if not f.found and f.name != "checkout"]
        ending(
            f"{len(own)} frameworks are ready: {', '.join(own)}",
            "green" if own else "red",
            absent=f"{len(absent)}: {', '.join(absent)}" if absent else "",
            next_step="gradwatch check FUNCTION --shape 64x1000; gradwatch agree",
        )


def table(findings: Sequence[Finding]) -> Table:
    """The findings, each with its sign and how to fix it."""
    shown = Table(box=None, show_header=False, padding=(0, 1))
    for finding in findings:
        # That cannot be installed, or need not be.
        absent = finding.state == "missing" and not (finding.mend and finding.needed)
        sign, colour = ("–", "dim") if absent else _SIGNS[finding.state]
        text = "; ".join(part for part in (finding.found, finding.why) if part)
        usable = (f"{n} {'–' if why else '✓'}" for n, why in finding.devices.items())
        text = "  ".join((text, *usable))
        if finding.mend:
            text += f"\n→ {finding.mend}"
        shown.add_row(f"[{colour}]{sign}[/]", finding.name, text)
    return shown
