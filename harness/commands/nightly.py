"""`gradwatch nightly`: all checks in one run, for CI."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from gradwatch.harness.console import options as options
from gradwatch.harness.console.terminal import ending, say
from gradwatch.harness.nightly import night as nights
from gradwatch.harness.nightly.night import PARTS, Night, run
from gradwatch.harness.project.paths import ROOT, alone
from gradwatch.impls.catalogue import op_names

#: Seconds for the processes of a killed night to end; docs/reliability.md promises 2.
ENDING = 2.0


@click.command()
@options.seconds(
    "--budget", "30m", "A quarter is for the fuzzer, a quarter for comparing commits."
)
@options.folder(
    "--output folder",
    "Folder for all output except the history.",
    ROOT / "nightly",
    "nightly",
)
@options.op
@options.backend
@options.several("part", lambda: PARTS, f"Only this part: {', '.join(PARTS)}.")
@options.require
@options.seed
@options.jobs
def command(
    folder: Path, backends: tuple[str, ...], parts: tuple[str, ...], **given: Any
) -> int:
    r"""Run all checks, then write one summary and end with one exit code.

    All parts run (--part lists them), even if one fails. The output folder gets
    summary.md (its first line says what is new and wrong), junit.xml, nightly.json and
    dashboard/. Times go into the history in results/asv.

    \b
    Examples:
      gradwatch nightly --budget 10m
      gradwatch nightly --op softmax --part agree --part time
    Exit code: 0 all as expected, 1 not, 3 a required backend is missing, or a part
    judged nothing.
    """
    chosen = {n: part for n, part in PARTS.items() if not parts or n in parts}
    given["ops"] = given["ops"] or op_names()
    given["backends"] = options.framework_backends(backends)
    with alone(ROOT / ".asv" / "nightly.lock", "gradwatch nightly", ENDING):
        before, notes = nights.problems_of(folder / "nightly.json")
        for note in notes:
            say(note)
        night = Night(folder, **given)
        done = run(night, chosen, lambda one: say(nights.shown(one)))
        report = nights.Report(done, before, notes)
        nights.write(report, night)
    headline = (folder / "summary.md").read_text("utf-8").partition("\n")[0]
    here = Path.cwd()
    shown_as = folder.relative_to(here) if folder.is_relative_to(here) else folder
    ending(
        re.sub("[*`]", "", headline),
        "red" if report.exit_code else "green",
        absent="; ".join(f"{d.name}: {d.line}" for d in report.parts if d.required),
        next_step=f"{shown_as}/summary.md has all of it, dashboard/ shows it",
    )
    return report.exit_code
