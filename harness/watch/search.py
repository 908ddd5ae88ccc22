"""Searches the history for changes: their commits, sizes and confidence.

There are three kinds: a lasting step and a slow drift (`harness.find_changes` finds
both), and a creep, which is further from the reference than the series' budget allows.
A new change is suspected until further runs or a paired comparison confirm it. Only a
confirmed change for the worse fails, and a gradient that became wrong.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from gradwatch.harness.history import asv_results
from gradwatch.harness.history.asv_results import GRADIENT, Entry, Series, step_to_wrong
from gradwatch.harness.history.changepoints import LASTING, Change, Values, find_changes
from gradwatch.harness.project import documents, git
from gradwatch.harness.project.documents import Document, Unreadable
from gradwatch.harness.project.machines import machine_name
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import AlertRecord, WatchSummary
from gradwatch.harness.timing.compare import SAMPLED
from gradwatch.harness.watch.alerts import (
    SMALL,
    STATES,
    WRONG,
    Alert,
    Findings,
    Order,
    Rules,
    asv_name,
    comparing,
    confirm,
    off_branch,
    read_rules,
    record,
)

#: Runs by which the position of a step can be wrong; the mean is 0.3 (docs/changes.md).
OFF = 1


@dataclass(frozen=True)
class Survey:
    """All alerts, the worst first; `series` is the number of series searched."""

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
    """Search the history for changes; if `confirming`, measure worse times again.

    An unreadable file is a warning; if no file is readable, it is an error.

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
    rules, machine = read_rules(root / "asv.conf.json"), machine_name(results / "asv")
    findings = Findings(results / "confirmations" / f"{machine}.json")
    watched = list[Series]()
    for one in series:
        there = (entry for entry in one.entries if entry.value is not None)
        kept = tuple(entry for entry in there if entry.commit in order.rank)
        watched += [replace(one, entries=kept)] if kept else []
    moved = [alert for one in watched for alert in _moves(one, order, rules)]
    with comparing(root, budget, enough) as compare:
        settle = partial(
            confirm,
            compare=compare if confirming else None,
            machine=machine,
            root=root,
            findings=findings,
            enough=enough,
        )
        # A cleared step explains no creep, so a creep that looks like one is reported.
        alerts = list(settle(sorted(moved, key=_urgency)))
        crept = [a for one in watched for a in _creeping(one, alerts, order, rules)]
        alerts += settle(sorted(crept, key=_urgency))
    warnings += findings.troubles
    return Survey(order, len(series), sorted(alerts, key=_urgency), warnings)


def _urgency(alert: Alert) -> tuple[Any, ...]:
    rank = (not alert.fails, STATES.index(alert.state), not alert.worse)
    return (*rank, -abs(alert.relative_change), alert.series.name)


def _values(series: Series) -> Values:
    return np.array([entry.value for entry in series.entries], np.float64)


def _moves(series: Series, order: Order, rules: Rules) -> list[Alert]:
    """The alerts of steps and drift in a series, and of a newly wrong gradient."""
    entries, values, wrong = series.entries, _values(series), None
    if series.metric == GRADIENT:
        dtype = series.parameters.get("dtype", "")
        wrong = step_to_wrong(series.op, dtype, values)
    changes, sure = list(find_changes(values)), {wrong.index} if wrong else set[int]()
    for change in steps_between(entries, rules.budget(series)):
        old, new = entries[change.index - 1], entries[change.index]
        far = all(abs(change.index - one.index) > OFF for one in changes)
        if far and _implementing(old.commit, new.commit, series.op, order):
            changes.append(change)
            sure.add(change.index)
    if wrong:
        others = (c for c in changes if abs(c.index - wrong.index) > OFF)
        changes = [wrong, *others]
    floor, why = _accepted(series, order, rules) if changes else (-1, "")
    alerts, most = [], rules.tolerance(series)
    for change in changes:
        alert = _alert(series, change, order, OFF * (change.index not in sure))
        if change is wrong:
            alert = replace(alert, why=WRONG)
        if order.rank[alert.commit] <= floor:
            alert = alert.settled("accepted", why)
        elif change is not wrong and alert.worse and change.relative_change <= most:
            alert = replace(alert, why=SMALL, fails=False)
        alerts.append(alert)
    return alerts


def _accepted(series: Series, order: Order, rules: Rules) -> tuple[int, str]:
    """The rank of the commit up to which changes are accepted, and why; -1 for none."""
    why = "accepted in asv.conf.json"
    name = asv_name(series)
    first = rules.first_commits.items()
    names = [commit or "" for key, commit in first if re.match(key, name)]
    if "" in names:
        return len(order.rank), why
    release = order.rank.get(order.reference[1], -1)
    # asv.conf.json may abbreviate a hash.
    known = [r for c, r in order.rank.items() if any(map(c.startswith, names))]
    floor = max(known, default=-1)
    before = release, f"before {order.reference[0]}"
    return (floor, why) if floor > release else before


def _alert(series: Series, change: Change, order: Order, off: int) -> Alert:
    """The alert of a change whose position can be wrong by `off` runs.

    It names the one commit in the range of a step that changes the code the op runs. If
    there is none, the range is widened by one run on both sides.
    """
    commits, at = [entry.commit for entry in series.entries], change.index
    last = len(commits) - 1
    after = last if change.kind == "drift" else min(at + off, last)
    around = (commits[max(at - 1 - off, 0)], commits[after])
    place, touching = (commits[at - 1], commits[at]), list[str]()
    if change.kind == "drift":
        place = (place[0], around[1])
    else:
        ranges = (_implementing(*r, series.op, order) for r in (place, around))
        touching = next(filter(None, ranges), [])
    return Alert(
        **vars(change),
        series=series,
        good=place[0],
        commit=touching[0] if len(touching) == 1 else place[1],
        candidates=len(touching) or _count(*place, order),
        around=around,
        state="suspected" if change.suspected else "confirmed",
        why="too few runs to be certain" if change.suspected else "by further runs",
        fails=change.worse and not change.suspected,
    )


def _implementing(old: str, new: str, op: str, order: Order) -> list[str]:
    touching = git.implementing(old, new, op, order.root)
    return [commit for commit in touching if commit in order.rank]


def _count(old: str, new: str, order: Order) -> int:
    count = git.git("rev-list", "--count", f"{old}..{new}", root=order.root)
    return max(int(count), 1)


def _creeping(
    series: Series, settled: Sequence[Alert], order: Order, rules: Rules
) -> Iterator[Alert]:
    """The alert of a creep whose whole interval is beyond the budget, if any.

    The part of the change that steps and drift explain is not counted: of those that
    fail by themselves, or are so new that they still can.
    """
    floor, _ = _accepted(series, order, rules)
    commits = [entry.commit for entry in series.entries]
    reference = sum(order.rank[commit] <= floor for commit in commits)
    measured = creep(_values(series), reference)
    recent = order.rank[commits[-(LASTING - 1) :][0]]
    explained = math.prod(
        1 + alert.relative_change
        for alert in settled
        if alert.series is series and alert.worse
        if alert.state == "confirmed"
        or (alert.state == "suspected" and order.rank[alert.commit] >= recent)
    )
    if measured is None or (1 + measured.low) / explained - 1 <= rules.budget(series):
        return
    good, commit = commits[max(reference - 1, 0)], commits[-1]
    name = order.reference[0] or "the first runs"
    yield Alert(
        **vars(measured),
        series=series,
        good=good,
        commit=commit,
        candidates=_count(good, commit, order),
        around=(good, commit),
        state="confirmed",
        why=f"beyond {rules.budget(series):.0%} of {name}",
        fails=True,
    )


# A short history --------------------------------------------------------------------

# A handful of runs does not show how much the figures scatter, so no search of the
# series can find a step after the first run or before the last one: two neighbours are
# compared directly. A difference is only suspected, until both are measured again.

#: Runs from which `find_changes` sees steps of 20 % that have three runs on either side
#: (noise of 2 %).
SHORT = LASTING

#: It is not known how often such a report is right.
CONFIDENCE = 0.5


def steps_between(runs: Sequence[Entry], budget: float) -> Iterator[Change]:
    """The steps between neighbours that differ by more than a series' budget.

    There are none in `SHORT` runs or more. The old value must lie outside the new one's
    interval, but the new one may lie within the old one's: other processes only make a
    run slower, and its interval wide.
    """
    if len(runs) >= SHORT:
        return
    for index, (old, new) in enumerate(pairwise(map(_ends, runs)), 1):
        (before, least, most), (after, low, high) = old, new
        if min(before, after) <= 0 or low <= before <= high:
            continue
        if abs(math.log(after / before)) > math.log1p(budget):
            grown, shrunk = high / least - 1 if least > 0 else math.inf, low / most - 1
            yield Change(
                *(index, after / before - 1, shrunk, grown, before, after),
                *("step", CONFIDENCE, after > before, True),
            )


def _ends(run: Entry) -> tuple[float, float, float]:
    """A run's value, and the ends of its interval: the value, if it has no samples."""
    value = run.value or 0.0
    low, high = (value if end is None else end for end in (run.low, run.high))
    return value, low, high


# Creep ------------------------------------------------------------------------------

NIGHTS = 5  # runs at either end: their median is robust to two outliers
FEWEST = 6  # runs in a series; a shorter one can have steps, but no creep
LEVEL = 0.975  # quantile: a 95 % interval
MEDIAN = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean


def creep(values: ArrayLike, reference: int) -> Change | None:
    """Compare the newest runs with the runs up to the reference; None for too few.

    `reference` is their number; with 0 the first runs are the reference.
    """
    values = np.asarray(values)
    count = min(NIGHTS, (len(values) - max(reference, 1)), len(values) // 2)
    if len(values) < FEWEST or count < 2 or values.min() <= 0:
        return None
    before = np.log(values[max(reference - NIGHTS, 0) : reference or count])
    now = np.log(values[-count:])
    levels = float(np.median(before)), float(np.median(now))
    squares = sum(float(((v - np.median(v)) ** 2).sum()) for v in (before, now))
    freedom = len(before) + len(now) - 2
    spread = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(now)))
    margin = float(special.stdtrit(freedom, LEVEL)) * MEDIAN * spread
    height = levels[1] - levels[0]
    grown, low, high = (math.expm1(height + part) for part in (0, -margin, margin))
    old, new = map(math.exp, levels)
    place = len(values) - 1
    return Change(place, grown, low, high, old, new, "creep", 0.95, True, False)
