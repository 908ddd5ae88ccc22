"""What moved in the history: which series, at which commit, how far, and how surely.

Three kinds: a lasting step and a slow drift, which `harness.find_changes` finds, and a
creep, which is further from the reference than the series' budget allows. What is new
is suspected until further runs or a paired comparison confirm it; only what is
confirmed and worse fails.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.history.asv_results import Entry, Series
from harness.history.changepoints import LASTING, Change, find_changes
from harness.project import git
from harness.project.documents import Unreadable
from harness.project.paths import ROOT
from harness.watch.budget import Rules, creep

STATES = ("confirmed", "suspected", "cleared", "accepted")
PHASES = {"time_forward": "forward", "time_backward": "backward"}

#: Runs by which the place of a step may be off: 0.3 in the mean (docs/changes.md).
OFF = 1


@dataclass(frozen=True)
class Alert:
    """A series that has changed its level.

    series: which.
    kind: "step", "drift" or "creep".
    good: the newest measured commit at the old level.
    commit: the first at the new one; of a step the one that brought it, where only one
        between the two changes what the op runs.
    candidates: how many commits it can have been.
    around: measured commits surely before and surely after it, to be compared.
    relative_change, low, high: of the value, with a 95 % interval.
    confidence: 0 to 1, that there is a change at all.
    worse: all units are such that more is worse.
    state: one of `STATES`, and `why`.
    fails: whether a run that finds it is not as expected.
    """

    series: Series
    kind: str
    good: str
    commit: str
    candidates: int
    around: tuple[str, str]
    relative_change: float
    low: float
    high: float
    confidence: float
    worse: bool
    state: str
    why: str = ""
    fails: bool = False

    @property
    def where(self) -> str:
        """At which commit; of a drift or creep, which go on, since which."""
        step = self.kind == "step"
        return f"at {self.commit[:10]}" if step else f"since {self.good[:10]}"

    def settled(self, state: str, why: str) -> Alert:
        """The same, confirmed or cleared by something else than the series itself."""
        fails = self.worse and state == "confirmed" and self.why != _SMALL
        return replace(self, state=state, why=why, fails=fails)


_SMALL = "less than its threshold in asv.conf.json"


@dataclass(frozen=True)
class Order:
    """The commits of the checkout, oldest first, and the reference among them.

    `reference` is the newest release, as it is called, and its commit; "" for none.
    """

    root: Path
    rank: Mapping[str, int]
    reference: tuple[str, str] = ("", "")

    @classmethod
    def of(cls, commits: Sequence[str], since: str = "", root: Path = ROOT) -> Order:
        """That of a checkout; the reference is `since` or its newest release.

        Raises:
            harness.project.git.NoCommit: There is no commit called `since`.
        """
        rank = {commit: i for i, commit in enumerate(commits)}
        name = since or git.newest_release(root)
        commit = git.commit_of(name, root) if name else ""
        return cls(root, rank, (name, commit))


def strangers(series: Iterable[Series], order: Order) -> list[str]:
    """Commits that have results and are not on this branch: rewritten, or another's.

    They are kept and not watched: nobody knows where they stand in the order.

    Raises:
        Unreadable: The clone is shallow, so that the history would seem quiet.
    """
    found = {entry.commit for one in series for entry in one.entries}
    strange = sorted(found - set(order.rank))
    if strange and git.is_shallow(order.root):
        raise Unreadable(
            f"a shallow clone: {len(strange)} of {len(found)} commits that have results"
            " are not in it; to mend it: git fetch --unshallow"
        )
    return strange


#: What confirms or clears alerts by other means than the series; passes on all.
Settle = Callable[[Sequence[Alert]], Iterable[Alert]]


def watch(
    series: Iterable[Series], order: Order, rules: Rules, settle: Settle = iter
) -> list[Alert]:
    """All changes of level, the worst first.

    Steps and drift are settled before creep is looked for: what is cleared explains
    nothing, so that a creep seen as a step by mistake still is a creep.
    """
    watched = [(one, _moves(one, order, rules)) for one in series]
    settled = list(settle(_by_urgency(a for _, moves in watched for a in moves)))
    crept = [a for one, _ in watched for a in _creeping(one, settled, order, rules)]
    return _by_urgency([*settled, *settle(_by_urgency(crept))])


def _by_urgency(alerts: Iterable[Alert]) -> list[Alert]:
    return sorted(alerts, key=_urgency)


def _urgency(alert: Alert) -> tuple[Any, ...]:
    rank = (not alert.fails, STATES.index(alert.state), not alert.worse)
    return (*rank, -abs(alert.relative_change), series_name(alert.series))


def _moves(series: Series, order: Order, rules: Rules) -> list[Alert]:
    """Its steps and drift."""
    runs, values = _runs(series, order)
    floor = _accepted(series, order, rules)
    tolerance = rules.tolerance(series)

    def told(alert: Alert) -> Alert:
        if order.rank[alert.commit] <= floor:
            return alert.settled("accepted", _why_accepted(floor, order))
        if alert.worse and alert.relative_change <= tolerance:
            return replace(alert, why=_SMALL, fails=False)
        return alert

    changes = find_changes(values)
    return [told(_alert(series, runs, change, order)) for change in changes]


def _runs(series: Series, order: Order) -> tuple[list[Entry], list[float]]:
    """The runs that have a value, on this branch, and their values."""
    runs = [e for e in series.measured if e.commit in order.rank]
    return runs, [entry.value for entry in runs if entry.value is not None]


def _accepted(series: Series, order: Order, rules: Rules) -> int:
    """The rank of the commit up to which changes are accepted; -1 for none."""
    told = rules.accepted_until(series)
    if "" in told:
        return len(order.rank)
    known = [_rank(name, order) for name in told]
    return max([*known, order.rank.get(order.reference[1], -1)])


def _rank(name: str, order: Order) -> int:
    """Of a commit that asv.conf.json names, perhaps in short."""
    return max((r for c, r in order.rank.items() if c.startswith(name)), default=-1)


def _why_accepted(floor: int, order: Order) -> str:
    if order.rank.get(order.reference[1], -1) == floor:
        return f"before {order.reference[0]}"
    return "accepted in asv.conf.json"


def _alert(
    series: Series, runs: Sequence[Entry], change: Change, order: Order
) -> Alert:
    at = change.index
    last = len(runs) - 1
    place = (runs[at - 1].commit, runs[at].commit)
    around = (
        runs[max(at - 1 - OFF, 0)].commit,
        runs[last if change.kind == "drift" else min(at + OFF, last)].commit,
    )
    if change.kind == "drift":
        place = (place[0], around[1])
        commit, candidates = place[1], _count(*place, order)
    else:
        place, commit, candidates = _culprit(series.op, place, around, order)
    return Alert(
        series,
        change.kind,
        place[0],
        commit,
        candidates,
        around,
        change.relative_change,
        change.low,
        change.high,
        change.confidence,
        change.worse,
        "suspected" if change.suspected else "confirmed",
        "too little to be sure yet" if change.suspected else "by further runs",
        change.worse and not change.suspected,
    )


def _culprit(
    op: str, place: tuple[str, str], around: tuple[str, str], order: Order
) -> tuple[tuple[str, str], str, int]:
    """Where it was, the commit to name, and how many it can have been.

    The one commit between both that changes what the op runs; where none does, and a
    run earlier or later there is just one, that one.
    """
    for old, new in (place, around):
        touching = _implementing(old, new, op, order)
        if len(touching) == 1:
            return place, touching[0], 1
        if touching:
            return place, place[1], len(touching)
    return place, place[1], _count(*place, order)


def _implementing(old: str, new: str, op: str, order: Order) -> list[str]:
    found = git.implementing(old, new, op, order.root)
    return [commit for commit in found if commit in order.rank]


def _count(old: str, new: str, order: Order) -> int:
    return max(git.count_between(old, new, order.root), 1)


def _creeping(
    series: Series, settled: Sequence[Alert], order: Order, rules: Rules
) -> Iterator[Alert]:
    """An alert if all of the interval is beyond the budget.

    What the series' steps and drift already tell is not told again.
    """
    runs, values = _runs(series, order)
    floor = _accepted(series, order, rules)
    reference = sum(order.rank[run.commit] <= floor for run in runs)
    found = creep(values, reference)
    told = math.prod(
        1 + alert.relative_change
        for alert in settled
        if alert.series is series and alert.worse and _explains(alert, runs, order)
    )
    if found is None or (1 + found.low) / told - 1 <= rules.budget(series):
        return
    good, commit = runs[max(reference - 1, 0)].commit, runs[-1].commit
    name = order.reference[0] or "the first runs"
    yield Alert(
        series,
        "creep",
        good,
        commit,
        _count(good, commit, order),
        (good, commit),
        found.relative_change,
        found.low,
        found.high,
        0.95,
        True,
        "confirmed",
        f"beyond {rules.budget(series):.0%} of {name}",
        True,
    )


def _explains(alert: Alert, runs: Sequence[Entry], order: Order) -> bool:
    """Whether it fails by itself, or is so new that it may yet."""
    new = runs[-(LASTING - 1) :]
    recent = order.rank[alert.commit] >= order.rank[new[0].commit]
    return alert.state == "confirmed" or (alert.state == "suspected" and recent)


# Names --------------------------------------------------------------------------


def series_name(series: Series) -> str:
    """Benchmark and parameters, such as bench_speed.dot.time_backward/64/float32."""
    return "/".join((series.benchmark, *series.parameters.values()))


def named(series: Iterable[Series], name: str) -> list[Series]:
    """The series of that name, or that have all of its parts, in any order."""
    parts = [part for part in name.replace("/", " ").split() if part]
    several = list(series)
    exact = [one for one in several if series_name(one) == name]
    return exact or [one for one in several if _has(one, parts)]


def _has(series: Series, parts: Sequence[str]) -> bool:
    own = {series.benchmark, *series.benchmark.split("."), *series.parameters.values()}
    own |= {PHASES.get(series.metric, ""), series.machine, series.environment}
    return set(parts) <= own


def size(change: float) -> str:
    """A relative change for people: +12.3%, and from tenfold on the factor, ×12.3."""
    return f"{change:+.1%}" if change < 9 else f"×{1 + change:.3g}"


def backend_of(series: Series) -> str:
    """The backend measured."""
    return series.parameters.get("backend", "")


def repro(alert: Alert) -> str:
    """The command that shows it again."""
    series, given = alert.series, alert.series.parameters
    options = f"--op {series.op} --backend {backend_of(series)}"
    old, new = (commit[:10] for commit in alert.around)
    if series.metric == "track_gradient_ratio":
        return f"gradwatch agree {options}"
    if series.metric not in PHASES:
        return f"asv continuous --bench '^{re.escape(series.benchmark)}' {old} {new}"
    options += f" --size {given['size']} --dtype {given['dtype']}"
    options += f" --device {given.get('device', 'cpu')} --phase {PHASES[series.metric]}"
    return f"gradwatch compare {old} {new} {options}"


def record(alert: Alert, order: Order) -> dict[str, Any]:
    """An alert as it stands in documents; see docs/watch.md."""
    series = alert.series
    return {
        "series": series_name(series),
        "machine": series.machine,
        "environment": series.environment,
        "op": series.op,
        "backend": backend_of(series),
        "metric": series.metric,
        "unit": series.unit,
        "kind": alert.kind,
        "commit": alert.commit,
        "subject": git.subject(alert.commit, order.root),
        "range": f"{alert.good}..{alert.commit}",
        "candidates": alert.candidates,
        "relative_change": alert.relative_change,
        "low": alert.low,
        "high": alert.high,
        "confidence": alert.confidence,
        "worse": alert.worse,
        "state": alert.state,
        "suspected": alert.state == "suspected",
        "fails": alert.fails,
        "why": alert.why,
        "repro": repro(alert),
    }
