"""A change of level in a series: in which order of commits, by which rules, and names.

The rules are in asv.conf.json, where asv reads them, too: `regressions_thresholds` (by
default 10 %), and `regressions_first_commits`, which accepts all up to a commit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import msgspec

from gradwatch.harness.history.asv_results import Series
from gradwatch.harness.project import git
from gradwatch.harness.project.documents import Unreadable, bytes_of
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import (
    AlertKind,
    AlertRecord,
    AlertState,
    Phase,
    finite,
)

STATES: tuple[AlertState, ...] = get_args(AlertState)

PHASES: dict[str, Phase] = {"time_forward": "forward", "time_backward": "backward"}


@dataclass(frozen=True)
class Alert:
    """A change of level in a series.

    good: the newest measured commit at the old level.
    commit: the first measured commit at the new level; for a step, the commit that
        caused it, if only one between the two changes the code that the op runs.
    candidates: the number of commits that can have caused it.
    around: measured commits that are certainly before and certainly after it.
    relative_change, low, high: with its 95 % interval; in all units more is worse.
    confidence: 0 to 1, that there is a change at all.
    why: the reason of the state.
    fails: whether it makes the exit code 1.
    """

    series: Series
    kind: AlertKind
    good: str
    commit: str
    candidates: int
    around: tuple[str, str]
    relative_change: float
    low: float
    high: float
    confidence: float
    worse: bool
    state: AlertState
    why: str = ""
    fails: bool = False

    @property
    def where(self) -> str:
        """At the commit of a step, or since the commit at which a drift began."""
        step = self.kind == "step"
        return f"at {self.commit[:10]}" if step else f"since {self.good[:10]}"

    def settled(self, state: AlertState, why: str) -> Alert:
        """This alert with a state that something other than the series decided."""
        fails = self.worse and state == "confirmed" and self.why != SMALL
        return replace(self, state=state, why=why, fails=fails)


#: Why a gradient fails: a verdict, which no comparison confirms or clears.
WRONG = "the gradient is wrong: its error is past what is allowed"
#: Why a change for the worse does not fail.
SMALL = "less than its threshold in asv.conf.json"


@dataclass(frozen=True)
class Order:
    """The commits of the checkout, oldest first, and the reference among them.

    `reference` is the name and the commit of the newest release; "" if there is none.
    """

    root: Path
    rank: Mapping[str, int]
    reference: tuple[str, str] = ("", "")


def off_branch(series: Iterable[Series], order: Order) -> list[str]:
    """A warning of commits with results that are not on this branch, if any.

    Their results are kept but not watched, since their place in the order is unknown.

    Raises:
        Unreadable: The clone is shallow, so that changes could not be seen.
    """
    recorded = {entry.commit for one in series for entry in one.entries}
    others = sorted(recorded - set(order.rank))
    if others and git.is_shallow(order.root):
        raise Unreadable(
            f"a shallow clone: {len(others)} of {len(recorded)} commits with"
            " results are not in it; to fix it: git fetch --unshallow"
        )
    some = ", ".join(commit[:8] for commit in others[:3])
    warning = (
        f"results of {len(others)} commits that are not on this branch are kept but"
        f" not watched (a rewritten branch, or another one): {some}"
    )
    return [warning] if others else []


# Rules ---------------------------------------------------------------------------

# The reference is the newest release, a git tag such as v1.2: that is what users have,
# and it is the same in every clone. Before the first release the reference is the
# beginning of the history.

BUDGET = 0.1  # relative; a requirement of the project


class Rules(msgspec.Struct, frozen=True, rename="regressions_{}".format):
    """The rules of asv.conf.json; the keys are regular expressions for asv's names."""

    thresholds: dict[str, float] = {}
    first_commits: dict[str, str | None] = {}

    def budget(self, series: Series) -> float:
        """The share by which a series may get worse; the largest match, as in asv."""
        name = asv_name(series)
        budgets = [v for key, v in self.thresholds.items() if re.match(key, name)]
        return max(budgets, default=BUDGET)

    def tolerance(self, series: Series) -> float:
        """The size up to which a step does not fail; 0 unless a rule allows more."""
        budget = self.budget(series)
        return budget if budget > BUDGET else 0.0


def read_rules(file: Path = ROOT / "asv.conf.json") -> Rules:
    """Read the rules from asv's configuration, which may contain comments.

    Raises:
        Unreadable: The file is missing or damaged, or a pattern is not a regular
            expression.
    """
    import json5  # as asv does

    try:
        text = bytes_of(file).decode()
        read = msgspec.convert(json5.loads(text), Rules)
        for key in (*read.thresholds, *read.first_commits):
            re.compile(key)
    except (
        RecursionError,
        ValueError,
        re.error,
    ) as error:
        why = " ".join(str(error).split())[:200]
        if isinstance(error, re.error):
            why = f"{error.pattern!r} is not a regular expression ({why})"
        if isinstance(error, RecursionError):
            why = "nested too deeply"
        raise Unreadable(why, file.name) from None
    return read


def asv_name(series: Series) -> str:
    """The name that asv matches: the benchmark and the repr of its parameters."""
    values = ", ".join(map(repr, series.parameters.values()))
    return f"{series.benchmark}({values})" if values else series.benchmark


# Names ---------------------------------------------------------------------------


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
