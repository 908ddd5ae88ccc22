"""The history looked over as a whole: what moved, and what could not be looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from harness.history import asv_results
from harness.history.asv_results import Series
from harness.project import documents, git
from harness.project.paths import ROOT
from harness.timing.compare import SAMPLED
from harness.watch.alerts import STATES, Alert, Order, record, strangers, watch
from harness.watch.budget import rules
from harness.watch.confirm import Findings, comparing, confirm


@dataclass(frozen=True)
class Survey:
    """All alerts, the worst first, of so many series; `warnings` a line each."""

    order: Order
    series: int
    alerts: Sequence[Alert]
    warnings: Sequence[str] = ()

    @property
    def failing(self) -> list[Alert]:
        """What is not as expected."""
        return [alert for alert in self.alerts if alert.fails]

    def document(self) -> dict[str, Any]:
        """As `gradwatch watch --json` writes it."""
        states = [alert.state for alert in self.alerts]
        summary = {
            "series": self.series,
            "reference": self.order.reference[0],
            "failing": len(self.failing),
            "states": {state: states.count(state) for state in STATES},
            "warnings": list(self.warnings),
        }
        found = [record(alert, self.order) for alert in self.alerts]
        return documents.document(found, summary)


def survey(
    results: Path = ROOT / "results",
    *,
    since: str = "",
    confirming: bool = False,
    budget: float = SAMPLED,
    enough: Callable[[], bool] = lambda: False,
    root: Path = ROOT,
) -> Survey:
    """Look the history over, and measure again what got worse if `confirming`.

    Raises:
        harness.project.documents.Unreadable: A file is damaged, or the clone is
        shallow. harness.project.git.NoCommit: No checkout, or no commit called `since`.
    """
    order = Order.of(git.commits(root), since, root)
    found = asv_results.read(results / "asv", list(order.rank))
    warnings = _told_of(strangers(found, order))
    look = partial(watch, found, order, rules(root / "asv.conf.json"))
    if not confirming:
        return Survey(order, len(found), look(), warnings)
    machine = this_machine(results)
    findings = Findings(results / "confirmations" / f"{machine}.json")
    with comparing(root, budget) as compare:
        alerts = look(
            partial(
                confirm,
                compare=compare,
                machine=machine,
                root=root,
                known=findings.known,
                keep=findings.keep,
                enough=enough,
            )
        )
    warnings += [findings.trouble] if findings.trouble else []
    return Survey(order, len(found), alerts, warnings)


def this_machine(results: Path) -> str:
    """The name under which this machine's results go."""
    from asv.machine import Machine

    return asv_results.machine_for(results / "asv", Machine.get_defaults())


def _told_of(strange: Sequence[str]) -> list[str]:
    if not strange:
        return []
    some = ", ".join(commit[:8] for commit in strange[:3])
    return [
        f"results of {len(strange)} commits that are not on this branch are kept and"
        f" not watched (a branch that was rewritten, or another): {some}"
    ]


def candidates(series: Series, span: str, root: Path = ROOT) -> tuple[str, list[str]]:
    """The good commit of A..B, and those after it that change what a series runs.

    Raises:
        harness.project.git.NoCommit: One of the two is none.
    """
    a, dots, b = span.partition("..")
    if not dots:
        raise git.NoCommit(f"{span!r} is no range of commits such as v1.0..HEAD")
    good, bad = git.commit_of(a, root), git.commit_of(b or "HEAD", root)
    return good, git.implementing(good, bad, series.op, root)
