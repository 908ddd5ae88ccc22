"""Names of alerts and their series, and the command that reproduces an alert."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gradwatch.harness.history.series import Series
from gradwatch.harness.project import git
from gradwatch.harness.project.records import AlertRecord, finite
from gradwatch.harness.watch.alerts import PHASES, Alert, Order


def named(series: Sequence[Series], name: str) -> list[Series]:
    """The series of that name, or else those that have all its parts, in any order."""
    fitting = list[Series]()
    for one in series:
        if one.name == name:
            return [other for other in series if other.name == name]
        own = {one.benchmark, *one.benchmark.split("."), *one.parameters.values()}
        own |= {str(PHASES.get(one.metric, "")), one.machine, one.environment}
        if {*name.replace("/", " ").split()} <= own:
            fitting.append(one)
    return fitting


def size(change: float) -> str:
    """A relative change as text: +12.3%; from a factor of 10 on ×12.3."""
    return f"{change:+.1%}" if change < 9 else f"×{1 + change:.3g}"


def repro(alert: Alert) -> str:
    """The command that reproduces an alert."""
    series, given = alert.series, alert.series.parameters
    options = f"--op {series.op} --backend {series.backend}"
    old, new = (commit[:10] for commit in alert.around)
    if series.metric == "track_gradient_ratio":
        return f"gradwatch agree {options}"
    if series.metric not in PHASES:
        return f"asv continuous --bench '^{re.escape(series.benchmark)}' {old} {new}"
    options += f" --size {given['size']} --dtype {given['dtype']}"
    options += f" --device {given.get('device', 'cpu')} --phase {PHASES[series.metric]}"
    return f"gradwatch compare {old} {new} {options}"


def record(alert: Alert, order: Order) -> AlertRecord:
    """An alert as a record of a document; see docs/watch.md."""
    series = alert.series
    own = ("machine", "environment", "op", "backend", "metric", "unit")
    said = ("kind", "commit", "candidates", "worse", "state", "fails", "why")
    numbers = ("relative_change", "low", "high", "confidence")
    of_it: dict[str, Any] = {name: getattr(series, name) for name in own}
    of_it |= {name: getattr(alert, name) for name in said}
    of_it |= {name: finite(getattr(alert, name)) for name in numbers}
    return AlertRecord(
        series=series.name,
        subject=git.subject(alert.commit, order.root),
        range=f"{alert.good}..{alert.commit}",
        suspected=alert.state == "suspected",
        repro=repro(alert),
        **of_it,
    )
