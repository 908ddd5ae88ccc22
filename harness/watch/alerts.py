"""A change of level in a series, and the order of the commits in which it is one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_args

from gradwatch.harness.history.series import Series
from gradwatch.harness.project import git
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import AlertKind, AlertState, Phase

STATES: tuple[AlertState, ...] = get_args(AlertState)

PHASES: dict[str, Phase] = {"time_forward": "forward", "time_backward": "backward"}


@dataclass(frozen=True)
class Alert:
    """A change of level in a series.

    series: the series.
    kind: "step", "drift" or "creep".
    good: the newest measured commit at the old level.
    commit: the first measured commit at the new level; for a step, the commit that
        caused it, if only one between the two changes the code that the op runs.
    candidates: the number of commits that can have caused it.
    around: measured commits that are certainly before and certainly after it.
    relative_change, low, high: change of the value, with its 95 % interval.
    confidence: 0 to 1, that there is a change at all.
    worse: whether the value increased; in all units more is worse.
    state: one of `STATES`; `why` gives the reason.
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

    @classmethod
    def of(cls, commits: Sequence[str], since: str = "", root: Path = ROOT) -> Order:
        """The order in a checkout; the reference is `since` or the newest release.

        Raises:
            gradwatch.harness.project.git.NoCommit: There is no commit called `since`.
        """
        rank = {commit: i for i, commit in enumerate(commits)}
        name = since or git.newest_release(root)
        commit = git.commit_of(name, root) if name else ""
        return cls(root, rank, (name, commit))


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
