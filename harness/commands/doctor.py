"""`gradwatch doctor`: what is installed, what is missing, and how to install it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import psutil
from rich.table import Table

from gradwatch.harness.console import options as options
from gradwatch.harness.console.streams import ticking
from gradwatch.harness.console.terminal import ending, output
from gradwatch.harness.project import documents, git
from gradwatch.harness.project.git import NoCommit, NotTrusted
from gradwatch.harness.project.machines import memory
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.workers.interpreters import (
    Interpreter,
    broken,
    interpreter_of,
    on_request,
)
from gradwatch.harness.workers.lifetime import Died
from gradwatch.harness.workers.worker import probe
from gradwatch.impls.catalogue import backend_names, framework_of

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
    with ticking(lambda: f"looking around: {len(findings)} things examined"):
        findings.extend(examine())
    if json_file:
        rows = [{**vars(f), "state": f.state} for f in findings]
        counts = {s: sum(f.state == s for f in findings) for s in _SIGNS}
        documents.write(documents.document(rows, counts), json_file)
    if json_file != "-":
        output().print(table(findings))
        own = sorted(f.name for f in findings if f.devices.get("cpu") == "")
        absent = [f.name for f in findings if not f.found and f.name != "checkout"]
        asked = [f.mend for f in findings if not f.found and not f.needed and f.mend]
        makes = f"; {asked[0].partition('=')[0]}=..." if asked else ""
        ending(
            f"{len(own)} frameworks are ready: {', '.join(own)}",
            "green" if own else "red",
            absent=f"{len(absent)}: {', '.join(absent)}{makes}" if absent else "",
            next_step="gradwatch check FUNCTION --shape 64x1000; gradwatch agree",
        )


def table(findings: Sequence[Finding]) -> Table:
    """The findings, each with its sign and how to fix it."""
    shown = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    for finding in findings:
        # It cannot be installed, or need not be.
        absent = finding.state == "missing" and not (finding.mend and finding.needed)
        sign, colour = ("–", "dim") if absent else _SIGNS[finding.state]
        usable = (f"{n} {'–' if why else '✓'}" for n, why in finding.devices.items())
        found = "  ".join((finding.found, *usable, finding.runs_in)).strip()
        text = "; ".join(part for part in (found, finding.why) if part)
        if finding.mend and finding.needed:
            text += f"\n→ {finding.mend}"
        shown.add_row(f"[{colour}]{sign}[/]", finding.name, text)
    return shown


# Examining ---------------------------------------------------------------------


@dataclass(frozen=True)
class Finding:
    """One examined item: `found` describes it; `why` says what is wrong with it.

    `mend` is the command that fixes it. With both `found` and `why` it is a warning. An
    item that is not `needed` is made only on request. A framework `runs_in` an
    interpreter, and its `devices` are those that it knows, each with the reason why it
    cannot be used, or "".
    """

    name: str
    found: str
    why: str = ""
    mend: str = ""
    needed: bool = True
    devices: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    runs_in: str = ""

    @property
    def state(self) -> str:
        """One of "ok", "warning" and "missing"."""
        return "missing" if not self.found else "warning" if self.why else "ok"


def examine(root: Path = ROOT) -> Iterator[Finding]:
    """The findings on all that a run depends on; frameworks last: they take seconds."""
    cores = len(psutil.Process().cpu_affinity()) if psutil.LINUX else os.cpu_count()
    system = f"{platform.system()} {platform.machine()}"
    python = f"Python {platform.python_version()}"
    yield Finding(
        "machine", f"{cores} cores, {memory() / 2**30:.0f} GiB, {system}, {python}"
    )
    try:
        commit = git.git("rev-parse", "--short", "HEAD", root=root)
        yield Finding("checkout", f"commit {commit}")
    except (NoCommit, NotTrusted) as reason:
        why, _, mend = str(reason).partition("; to allow it: ")
        yield Finding("checkout", "", f"results belong to commits: {why}", mend)
    names = sorted(set(map(framework_of, backend_names())))
    interpreters = {name: interpreter_of(name, root) for name in names}
    facts = probe(one for one in interpreters.values() if not one.why_missing)
    for name, interpreter in interpreters.items():
        reported = facts.get(name, {})
        if isinstance(reported, Died):
            interpreter = broken(interpreter, str(reported))
        if interpreter.why_missing:
            needed = interpreter.python.exists() or not on_request(name, root)
            why, mend = interpreter.why_missing, interpreter.mend
            yield Finding(name, "", why, mend, needed)
        else:
            yield from _framework(interpreter, reported)


def _framework(interpreter: Interpreter, facts: Any) -> Iterator[Finding]:
    """One finding, and one for each backend that is broken or runs only on request."""
    backends = facts["backends"].items()
    yield Finding(
        interpreter.framework,
        facts["version"],
        devices=next(fact["devices"] for _, fact in backends if not fact["error"]),
        threads=facts["threads"],
        runs_in=f"Python {facts['python']}, {interpreter.shown}",
    )
    for backend, fact in backends:
        if fact["error"]:
            yield Finding(backend, "", fact["error"])
        elif cost := traits_of(backend).on_request:  # it runs only where it is named
            why = fact["devices"]["cpu"]
            usable = f"runs only on request: {cost}"
            yield Finding(backend, "" if why else usable, why, needed=not why)
