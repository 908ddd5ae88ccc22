"""Searches the whole history for changes, and collects warnings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gradwatch.harness.history import asv_results
from gradwatch.harness.project import documents, git
from gradwatch.harness.project.documents import Document, Unreadable
from gradwatch.harness.project.machines import machine_name
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import AlertRecord, WatchSummary
from gradwatch.harness.timing.compare import SAMPLED
from gradwatch.harness.watch.alerts import STATES, Alert, Order, off_branch, record
from gradwatch.harness.watch.budget import rules
from gradwatch.harness.watch.confirm import Findings, comparing, confirm
from gradwatch.harness.watch.search import watch


@dataclass(frozen=True)
class Survey:
    """All alerts, the worst first; `series` is how many series were searched."""

    order: Order
    series: int
    alerts: Sequence[Alert]
    warnings: Sequence[str] = ()

    @property
    def failing(self) -> list[Alert]:
        """The alerts that make the exit code 1."""
        return [alert for alert in self.alerts if alert.fails]

    def document(self) -> Document[AlertRecord, WatchSummary]:
        """The document that `gradwatch watch --json` writes."""
        states = [alert.state for alert in self.alerts]
        summary = WatchSummary(
            series=self.series,
            reference=self.order.reference[0],
            failing=len(self.failing),
            states={state: states.count(state) for state in STATES},
            warnings=list(self.warnings),
        )
        records = [record(alert, self.order) for alert in self.alerts]
        return documents.document(records, summary)


def survey(
    results: Path = ROOT / "results",
    *,
    since: str = "",
    confirming: bool = False,
    budget: float = SAMPLED,
    enough: Callable[[], bool] = lambda: False,
    root: Path = ROOT,
) -> Survey:
    """Search the history for changes; if `confirming`, measure again what got worse.

    A file that cannot be read is a warning, but if none can be, nothing was searched.

    Raises:
        harness.project.documents.Unreadable: No file can be read, or the clone is
        shallow. harness.project.git.NoCommit: No checkout, or no commit called `since`.
    """
    name = since or git.newest_release(root)
    rank = {commit: i for i, commit in enumerate(git.commits(root))}
    order = Order(root, rank, (name, git.commit_of(name, root) if name else ""))
    unreadable = list[Unreadable]()
    series = asv_results.read(results / "asv", list(order.rank), unreadable)
    if unreadable and not series:
        raise unreadable[0]
    warnings = [*off_branch(series, order), *map(str, unreadable)]
    machine = machine_name(results / "asv")
    findings = Findings(results / "confirmations" / f"{machine}.json")
    with comparing(root, budget, enough) as compare:
        settle = partial(
            confirm,
            compare=compare if confirming else None,
            machine=machine,
            root=root,
            findings=findings,
            enough=enough,
        )
        alerts = watch(series, order, rules(root / "asv.conf.json"), settle)
    warnings += findings.troubles
    return Survey(order, len(series), alerts, warnings)
