"""Checks whether a step in time is real: compares both commits again, on this machine.

The answer is that of `gradwatch compare`: in turn, in pairs of fresh processes. Results
are kept in results/confirmations, so no run repeats a comparison.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gradwatch.harness.history.asv_results import Series
from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.project import documents, git
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import (
    CONFIRMATIONS,
    ConfirmationRecord,
    NoSummary,
    finite,
)
from gradwatch.harness.project.requested import affected
from gradwatch.harness.timing.compare import (
    LEAST,
    PAIRS,
    SAMPLED,
    Plan,
    Side,
    compare_phases,
)
from gradwatch.harness.timing.samples import LEVEL, Estimate, verdict_on
from gradwatch.harness.watch.alerts import PHASES, WRONG, Alert
from gradwatch.harness.workers.worker import Died
from gradwatch.impls.catalogue import UnknownName, load_op


class NotComparable(Exception):
    """A series that cannot be measured again here; the message says why."""


#: The time of a series at the second of two commits over that at the first.
Compare = Callable[[Series, str, str], Estimate]


@contextlib.contextmanager
def comparing(
    root: Path = ROOT,
    budget: float = SAMPLED,
    enough: Callable[[], bool] = lambda: False,
) -> Iterator[Compare]:
    """A function that compares commits; it reuses checkouts, removed at the end.

    `enough` says whether to begin no further pair of processes.
    """
    with contextlib.ExitStack() as stack:
        trees: dict[str, Path] = {}

        def side(name: str, series: Series, commit: str) -> Side:
            if commit not in trees:
                trees[commit] = stack.enter_context(git.checked_out(commit, root))
            return Side(name, series.backend, trees[commit])

        def compare(series: Series, old: str, new: str) -> Estimate:
            given = series.parameters
            try:
                op = load_op(series.op)
                size = op.sizes[given["size"]]
                chosen = trial(op, size, REGIMES["normal"], given["dtype"])
                sides = side("a", series, old), side("b", series, new)
                plan = Plan(chosen, budget, device=given["device"])
                plan = replace(plan, enough=lambda pairs: enough())
                (found,) = compare_phases(*sides, plan, [PHASES[series.metric]])
            except KeyError as missing:
                raise NotComparable(f"size {missing} no longer exists") from None
            except (Died, UnknownName) as reason:
                raise NotComparable(str(reason)) from None
            ratio, low, high = found.ratio, found.low, found.high
            return Estimate(ratio, low, high, found.pairs, found.level or 0.0)

        yield compare


def confirm(
    alerts: Sequence[Alert],
    compare: Compare | None,
    *,
    machine: str,
    root: Path = ROOT,
    findings: Findings,
    enough: Callable[[], bool] = lambda: False,
) -> Iterator[Alert]:
    """Yield each alert, with its state after both commits were measured again.

    Only times that got worse and are not accepted are measured again, on this
    `machine`. What is in the `findings`, by `key_of`, is not compared again; without
    `compare` it alone decides. New ones are added; `enough` says whether to stop before
    the next one.
    """
    for alert in alerts:
        place = [alert.series.op], [alert.series.backend]
        open_to_it = alert.worse and alert.state in ("suspected", "confirmed")
        if alert.why == WRONG or not open_to_it:
            yield alert
        elif record := findings.known.get(key_of(alert)):
            ends = (record.ratio, record.low, record.high)
            value, low, high = (math.inf if e is None else e for e in ends)
            yield _settled(alert, Estimate(value, low, high, PAIRS, LEVEL))
        elif compare is None:
            yield alert
        elif not affected(*alert.around, *place, root):
            yield alert.settled("cleared", "both commits run the same code for this op")
        elif alert.series.metric not in PHASES:
            yield alert
        elif alert.series.machine != machine:
            yield _still(alert, f"recorded on {alert.series.machine}, not here")
        elif enough():
            yield _still(alert, "no time was left to compare")
        else:
            yield _compared(alert, compare, findings)


def _compared(alert: Alert, compare: Compare, findings: Findings) -> Alert:
    try:
        found = compare(alert.series, *alert.around)
    except NotComparable as reason:
        return _still(alert, f"not compared: {reason}")
    if found.resolved:
        stored = map(finite, (found.value, found.low, found.high))
        findings.keep(ConfirmationRecord(key_of(alert), *stored))
    return _settled(alert, found)


def _settled(alert: Alert, ratio: Estimate) -> Alert:
    """The alert with the state that a comparison gives it.

    If that is not resolved, the likelier of both: the change stays as it is, or what
    further runs had confirmed is suspected.
    """
    ends = (ratio.value, ratio.low, ratio.high)
    value, low, high = (f"{one:{'.3f' if one < 10 else '.3g'}}" for one in ends)
    summary = f"compared: {value} ({low} to {high})"
    verdict = verdict_on(ratio, None, same=LEAST)
    if verdict != "not resolved":
        return alert.settled("confirmed" if verdict == "slower" else "cleared", summary)
    if ratio.value > 1 + LEAST:
        return _still(alert, f"{summary}, not resolved")
    return alert.settled("suspected", f"{summary}, not resolved, more likely no change")


def _still(alert: Alert, why: str) -> Alert:
    """The alert unchanged, with the reason why no comparison decided it."""
    return replace(alert, why=f"{alert.why}; {why}")


def key_of(alert: Alert) -> str:
    """Identifies a comparison: series, machine, environment and both commits."""
    place = (alert.series.machine, alert.series.environment, alert.series.name)
    return " ".join((*place, *alert.around))


class Findings:
    """The comparisons made so far, in a file that is rewritten after each one.

    The first of the `troubles` is that it cannot be read in whole, or written: it is
    left as it is from there on.
    """

    def __init__(self, file: Path) -> None:
        self.file, self.troubles = file, list[str]()
        self.known: dict[str, ConfirmationRecord] = {}
        try:
            kept = documents.read(file, CONFIRMATIONS).records if file.exists() else ()
            self.known = {one.key: one for one in kept}
        except Unreadable as error:
            self.troubles = [f"{error}; it is left as it is, nothing is added"]

    def keep(self, record: ConfirmationRecord) -> None:
        """Add a comparison; it counts in this run, whether it can be written or not."""
        self.known[record.key] = record
        if not self.troubles:
            try:
                content = documents.document(self.known.values(), NoSummary())
                documents.write(content, self.file)
            except OSError as error:
                why = f"{self.file.name} cannot be written: {error.strerror}"
                self.troubles = [why]
