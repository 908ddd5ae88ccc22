"""Searches the history for changes: at which commit, how large, how certain.

There are three kinds: a lasting step and a slow drift (`harness.find_changes` finds
both), and a creep, which is further from the reference than the series' budget allows.
A new change is suspected until further runs or a paired comparison confirm it. Only a
confirmed change for the worse fails, and a gradient that became wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.history.changepoints import Change, find_changes
from gradwatch.harness.history.noise import LASTING, Values
from gradwatch.harness.history.series import Entry, Series
from gradwatch.harness.history.wrong import GRADIENT, step_to_wrong
from gradwatch.harness.project import git
from gradwatch.harness.watch.alerts import SMALL, STATES, WRONG, Alert, Order
from gradwatch.harness.watch.budget import Rules, creep

#: Runs by which the position of a step can be wrong; the mean is 0.3 (docs/changes.md).
OFF = 1

#: Confirms or clears alerts by other means than the series; yields all of them.
Settle = Callable[[Sequence[Alert]], Iterable[Alert]]


def watch(
    series: Iterable[Series],
    order: Order,
    rules: Rules,
    settle: Settle = iter,
) -> list[Alert]:
    """All changes of level, the worst first.

    Steps and drift are settled before the search for creep: a cleared step explains no
    creep, so a creep that looks like a step is still reported.
    """
    watched = [trail for one in series if (trail := _Trail.of(one, order))]
    moved = (a for trail in watched for a in _moves(trail, order, rules))
    settled = list(settle(sorted(moved, key=_urgency)))
    crept = [a for trail in watched for a in _creeping(trail, settled, order, rules)]
    return sorted([*settled, *settle(sorted(crept, key=_urgency))], key=_urgency)


def _urgency(alert: Alert) -> tuple[Any, ...]:
    rank = (not alert.fails, STATES.index(alert.state), not alert.worse)
    return (*rank, -abs(alert.relative_change), alert.series.name)


@dataclass(frozen=True)
class _Trail:
    """The entries of a series on this branch that have a value.

    ranks: of their commits in the order.
    """

    series: Series
    entries: Sequence[Entry]
    ranks: NDArray[np.int32]
    values: Values

    @classmethod
    def of(cls, series: Series, order: Order) -> _Trail | None:
        """The trail of a series that has any value on this branch."""
        kept = [entry for entry in series.measured if entry.commit in order.rank]
        ranks = np.array([order.rank[entry.commit] for entry in kept], np.int32)
        values = np.array([entry.value for entry in kept], np.float64)
        return cls(series, kept, ranks, values) if kept else None

    def __len__(self) -> int:
        return len(self.entries)

    def commit(self, at: int) -> str:
        """The commit of an entry; -1 is the newest."""
        return self.entries[at].commit


def _moves(trail: _Trail, order: Order, rules: Rules) -> list[Alert]:
    """The steps and drift of a series, and since when its gradient is wrong."""
    wrong = list[Change]()
    if trail.series.metric == GRADIENT:
        dtype = trail.series.parameters.get("dtype", "")
        found = step_to_wrong(trail.series.op, dtype, trail.values)
        wrong += [found] if found else []
    changes = list(find_changes(trail.values))
    sure = {c.index: (trail.commit(c.index - 1), trail.commit(c.index)) for c in wrong}
    if len(trail) < SHORT:
        for change in steps_between(trail.entries, rules.budget(trail.series)):
            place = (trail.commit(change.index - 1), trail.commit(change.index))
            far = all(abs(change.index - one.index) > OFF for one in changes)
            if far and _implementing(*place, trail.series.op, order):
                changes.append(change)
                sure[change.index] = place
    others = [c for c in changes if all(abs(c.index - w.index) > OFF for w in wrong)]
    floor, why = _accepted(trail.series, order, rules) if wrong or others else (-1, "")
    tolerance = rules.tolerance(trail.series)
    alerts = []
    for change in (*wrong, *others):
        alert = _alert(trail, change, order)
        alert = replace(alert, around=sure.get(change.index, alert.around))
        if change in wrong:
            alert = replace(alert, why=WRONG)
        if order.rank[alert.commit] <= floor:
            alert = alert.settled("accepted", why)
        elif change in others and alert.worse and change.relative_change <= tolerance:
            alert = replace(alert, why=SMALL, fails=False)
        alerts.append(alert)
    return alerts


def _accepted(series: Series, order: Order, rules: Rules) -> tuple[int, str]:
    """The rank of the commit up to which changes are accepted, and why; -1 for none."""
    why = "accepted in asv.conf.json"
    names = rules.accepted_until(series)
    if "" in names:
        return len(order.rank), why
    release = order.rank.get(order.reference[1], -1)
    # asv.conf.json may abbreviate a hash.
    known = [r for c, r in order.rank.items() if any(map(c.startswith, names))]
    floor = max(known, default=-1)
    return (
        (floor, why) if floor > release else (release, f"before {order.reference[0]}")
    )


def _alert(trail: _Trail, change: Change, order: Order) -> Alert:
    series, at, last = trail.series, change.index, len(trail) - 1
    place = (trail.commit(at - 1), trail.commit(at))
    around = (
        trail.commit(max(at - 1 - OFF, 0)),
        trail.commit(last if change.kind == "drift" else min(at + OFF, last)),
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
        "too few runs to be certain" if change.suspected else "by further runs",
        change.worse and not change.suspected,
    )


def _culprit(
    op: str, place: tuple[str, str], around: tuple[str, str], order: Order
) -> tuple[tuple[str, str], str, int]:
    """The range of a step, the commit to name, and the number of candidates.

    That is the one commit in the range that changes the code the op runs. If there is
    none, the range is widened by one run on both sides.
    """
    for old, new in (place, around):
        touching = _implementing(old, new, op, order)
        if len(touching) == 1:
            return place, touching[0], 1
        if touching:
            return place, place[1], len(touching)
    return place, place[1], _count(*place, order)


def _implementing(old: str, new: str, op: str, order: Order) -> list[str]:
    touching = git.implementing(old, new, op, order.root)
    return [commit for commit in touching if commit in order.rank]


def _count(old: str, new: str, order: Order) -> int:
    return max(git.count_between(old, new, order.root), 1)


def _creeping(
    trail: _Trail, settled: Sequence[Alert], order: Order, rules: Rules
) -> Iterator[Alert]:
    """An alert if the whole interval is beyond the budget.

    The part of the change that steps and drift explain is not counted.
    """
    series = trail.series
    floor, _ = _accepted(series, order, rules)
    reference = int((trail.ranks <= floor).sum())
    measured = creep(trail.values, reference)
    explained = math.prod(
        1 + alert.relative_change
        for alert in settled
        if alert.series is series and alert.worse and _explains(alert, trail, order)
    )
    if measured is None or (1 + measured.low) / explained - 1 <= rules.budget(series):
        return
    good, commit = trail.commit(max(reference - 1, 0)), trail.commit(-1)
    name = order.reference[0] or "the first runs"
    yield Alert(
        series,
        "creep",
        good,
        commit,
        _count(good, commit, order),
        (good, commit),
        measured.relative_change,
        measured.low,
        measured.high,
        0.95,
        True,
        "confirmed",
        f"beyond {rules.budget(series):.0%} of {name}",
        True,
    )


def _explains(alert: Alert, trail: _Trail, order: Order) -> bool:
    """Whether an alert fails by itself, or is so new that it still can."""
    newest = trail.ranks[-(LASTING - 1) :]
    recent = order.rank[alert.commit] >= newest[0]
    return alert.state == "confirmed" or (alert.state == "suspected" and recent)


# A short history --------------------------------------------------------------------

# A handful of runs does not tell how much the figures scatter, so no search of the
# series can find a step after the first run or before the last one: two neighbours are
# compared directly. What differs is only suspected, until both are measured again.

#: Runs: in longer series `find_changes` sees steps of 20 % that have three runs on
#: either side (noise of 2 %).
SHORT = LASTING

#: Nothing is known of how often such a report is right.
CONFIDENCE = 0.5


def steps_between(runs: Sequence[Entry], budget: float) -> Iterator[Change]:
    """The steps between neighbours that differ by more than a series' budget.

    There are none in `SHORT` runs or more. The old value must lie outside the new one's
    interval. The other end is not asked: other processes only make a run slower, and
    its interval wide.
    """
    if len(runs) >= SHORT:
        return
    for index, (old, new) in enumerate(pairwise(map(_ends, runs)), 1):
        (before, least, most), (after, low, high) = old, new
        if min(before, after) <= 0 or low <= before <= high:
            continue
        if abs(math.log(after / before)) > math.log1p(budget):
            yield Change(
                index=index,
                relative_change=after / before - 1,
                low=low / most - 1,
                high=high / least - 1 if least > 0 else math.inf,
                before=before,
                after=after,
                kind="step",
                confidence=CONFIDENCE,
                worse=after > before,
                suspected=True,
            )


def _ends(run: Entry) -> tuple[float, float, float]:
    """A run's value, with the ends of its interval: itself, if it has no samples."""
    value = run.value or 0.0
    low, high = (value if end is None else end for end in (run.low, run.high))
    return value, low, high
