"""Parts of a nightly run that measure the commit and search the history."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from gradwatch.harness.history import asv_results
from gradwatch.harness.nightly.model import Night, Result
from gradwatch.harness.project import documents, git
from gradwatch.harness.project.machines import machine_name
from gradwatch.harness.project.records import Problem
from gradwatch.harness.watch.alerts import Alert
from gradwatch.harness.watch.naming import backend_of, size
from gradwatch.harness.watch.survey import survey


def times(night: Night) -> Result:
    """Measure the commit for the history, with asv; skipped if files are changed."""
    changed = git.changed_files(night.root)
    if changed:
        some = ", ".join(changed[:3])
        why = f"{len(changed)} files differ from the commit ({some})"
        return Result("", skipped=f"{why}: nothing goes into the history")
    folder = night.results / "asv"
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder.name}: the results folder cannot be written")
    commit = git.commit_of("HEAD", night.root)
    ops = "|".join(night.ops)
    bench = rf"^bench_(speed|accuracy)[.]({ops})[.]"
    call = ("-m", "asv", "run", "--skip-existing", "--bench", bench, "HEAD^!")
    code, tail = night.run("time", *call)
    machine = machine_name(night.results / "asv")
    entries = [
        series.at(commit)
        for series in asv_results.read(folder, git.commits(night.root), [])
        if series.machine == machine
    ]
    failed = [entry.value is None for entry in entries if entry]
    measured = failed.count(False)
    line = f"{measured:,} figures of {commit[:10]}, {sum(failed)} failed"
    problem = Problem("time", "", "", "asv run", tail or "nothing was measured")
    return Result(line, [problem] if code or not measured else [])


def watch(night: Night) -> Result:
    """Search the history for changes; measure again what got worse, as time allows."""
    end = time.monotonic() + night.share
    surveyed = survey(
        night.results,
        confirming=True,
        enough=lambda: time.monotonic() > end,
        root=night.root,
    )
    documents.write(surveyed.document(), night.journal.path("watch"))
    problems = [
        Problem("watch", *place, _detail(alerts, night.root))
        for place, alerts in _by_place(surveyed.failing).items()
    ]
    states = Counter(a.state for a in surveyed.alerts if a.worse)
    better = sum(not a.worse and a.state != "accepted" for a in surveyed.alerts)
    line = f"{surveyed.series:,} series, {len(surveyed.failing)} worse"
    line += f", {states['suspected']} suspected, {better} better"
    return Result(line, problems, notes=surveyed.warnings)


def _by_place(alerts: Sequence[Alert]) -> dict[tuple[str, str, str], list[Alert]]:
    """Alerts by op, backend and kind; one change can affect several dtypes at once."""
    several = defaultdict(list)
    for alert in alerts:
        what = f"{alert.series.metric} {alert.kind} {alert.where}"
        several[alert.series.op, backend_of(alert.series), what].append(alert)
    return several


def _detail(alerts: Sequence[Alert], root: Path) -> str:
    """The worst alert in full, and the number of others."""
    alert, *others = alerts
    line = f"{alert.series.name} {size(alert.relative_change)}"
    line += f" ({size(alert.low)} to {size(alert.high)}), {alert.why}"
    if alert.candidates == 1:
        line += f"; {git.subject(alert.commit, root)}"
    return f"{line} (and {len(others)} more series)" if others else line
