"""Changes of level in a series: their rules, names and confirmation.

The rules are in asv.conf.json, where asv reads them, too: `regressions_thresholds` (by
default 10 %), and `regressions_first_commits`, which accepts all up to a commit. A step
in time is measured again as by `gradwatch compare`: both commits in turn, in pairs of
fresh processes. Results are kept in results/confirmations, so none is repeated.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import msgspec

from gradwatch.harness.history.asv_results import Series
from gradwatch.harness.history.changepoints import Change
from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.project import documents, git, records
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.requested import affected
from gradwatch.harness.timing import compare as paired
from gradwatch.harness.timing.samples import LEVEL, Estimate, verdict_on
from gradwatch.harness.workers.lifetime import Died
from gradwatch.impls.catalogue import UnknownName, load_op

STATES: tuple[records.AlertState, ...] = get_args(records.AlertState)

PHASES = dict[str, records.Phase](time_forward="forward", time_backward="backward")


@dataclass(frozen=True)
class Alert(Change):
    """A change of level in a series: a step, a drift or a creep.

    good: the newest measured commit at the old level.
    commit: the first measured commit at the new level; for a step, the commit that
        caused it, if only one between the two changes the code that the op runs.
    candidates: the number of commits that can have caused it.
    around: measured commits that are certainly before and certainly after it.
    why: the reason for the state.
    fails: whether it makes the exit code 1.
    """

    series: Series
    good: str
    commit: str
    candidates: int
    around: tuple[str, str]
    state: records.AlertState
    why: str = ""
    fails: bool = False

    @property
    def where(self) -> str:
        """The commit of a step, after "at", or that before a drift, after "since"."""
        step = self.kind == "step"
        return f"at {self.commit[:10]}" if step else f"since {self.good[:10]}"

    def settled(self, state: records.AlertState, why: str) -> Alert:
        """A copy with a state that something other than the series decided."""
        fails = self.worse and state == "confirmed" and self.why != SMALL
        return replace(self, state=state, why=why, fails=fails)


#: The reason for a wrong gradient: a verdict, which no comparison confirms or clears.
WRONG = "the gradient is wrong: its error is past what is allowed"
#: The reason why a change for the worse does not fail.
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
    """A warning about commits with results that are not on this branch, if any.

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

# The reference is the newest release, a git tag such as v1.2: users have it, and it is
# the same in every clone. Before the first release the reference is the beginning of
# the history.

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
        Unreadable: The file is missing or damaged, or a pattern in it is invalid.
    """
    import json5  # as asv does

    try:
        text = documents.bytes_of(file).decode()
        read = msgspec.convert(json5.loads(text), Rules)
        for key in (*read.thresholds, *read.first_commits):
            re.compile(key)
    except re.error as error:
        why = f"{error.pattern!r} is not a regular expression ({error})"
        raise Unreadable(why, file.name) from None
    except (RecursionError, ValueError) as error:
        deep = isinstance(error, RecursionError)
        why = "nested too deeply" if deep else " ".join(str(error).split())[:200]
        raise Unreadable(why, file.name) from None
    return read


def asv_name(series: Series) -> str:
    """The name that asv matches: the benchmark and the repr of its parameters."""
    values = ", ".join(map(repr, series.parameters.values()))
    return f"{series.benchmark}({values})" if values else series.benchmark


# Names ---------------------------------------------------------------------------


def size(change: float) -> str:
    """A relative change as text: +12.3%, or ×12.3 from a factor of 10 on."""
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


def record(alert: Alert, order: Order) -> records.AlertRecord:
    """An alert as a record of a document; see docs/watch.md."""
    series = alert.series
    own = ("machine", "environment", "op", "backend", "metric", "unit")
    said = ("kind", "commit", "candidates", "worse", "state", "fails", "why")
    numbers = ("relative_change", "low", "high", "confidence")
    of_it: dict[str, Any] = {name: getattr(series, name) for name in own}
    of_it |= {name: getattr(alert, name) for name in said}
    of_it |= {name: records.finite(getattr(alert, name)) for name in numbers}
    return records.AlertRecord(
        series=series.name,
        subject=git.subject(alert.commit, order.root),
        range=f"{alert.good}..{alert.commit}",
        suspected=alert.state == "suspected",
        repro=repro(alert),
        **of_it,
    )


# Measuring again -----------------------------------------------------------------


class NotComparable(Exception):
    """A series that cannot be measured again here; the message says why."""


#: A function of a series and two commits: the time at the second over the first's.
Compare = Callable[[Series, str, str], Estimate]


@contextlib.contextmanager
def comparing(
    root: Path = ROOT,
    budget: float = paired.SAMPLED,
    enough: Callable[[], bool] = lambda: False,
) -> Iterator[Compare]:
    """Yield a function that compares commits; its checkouts are removed at the end.

    `enough` says whether to begin no further pair of processes.
    """
    with contextlib.ExitStack() as stack:
        trees: dict[str, Path] = {}

        def side(name: str, series: Series, commit: str) -> paired.Side:
            if commit not in trees:
                trees[commit] = stack.enter_context(git.checked_out(commit, root))
            return paired.Side(name, series.backend, trees[commit])

        def compare(series: Series, old: str, new: str) -> Estimate:
            given = series.parameters
            try:
                op = load_op(series.op)
                size = op.sizes[given["size"]]
                chosen = trial(op, size, REGIMES["normal"], given["dtype"])
                sides = side("a", series, old), side("b", series, new)
                plan = paired.Plan(chosen, budget, device=given["device"])
                plan = replace(plan, enough=lambda pairs: enough())
                (found,) = paired.compare_phases(*sides, plan, [PHASES[series.metric]])
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
    `machine`. Comparisons in the `findings`, by `key_of`, are not repeated; without
    `compare` only these decide. New ones are added; `enough` says whether to stop
    before the next one.
    """
    for alert in alerts:
        place = [alert.series.op], [alert.series.backend]
        open_to_it = alert.worse and alert.state in ("suspected", "confirmed")
        if alert.why == WRONG or not open_to_it:
            yield alert
        elif record := findings.known.get(key_of(alert)):
            ends = (record.ratio, record.low, record.high)
            value, low, high = (math.inf if e is None else e for e in ends)
            yield _settled(alert, Estimate(value, low, high, paired.PAIRS, LEVEL))
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
        stored = map(records.finite, (found.value, found.low, found.high))
        findings.keep(records.ConfirmationRecord(key_of(alert), *stored))
    return _settled(alert, found)


def _settled(alert: Alert, ratio: Estimate) -> Alert:
    """A copy with the state that follows from a comparison.

    If that is not resolved, the likelier of two: the alert stays as it is, or becomes
    suspected even if further runs had confirmed it.
    """
    ends = (ratio.value, ratio.low, ratio.high)
    value, low, high = (f"{one:{'.3f' if one < 10 else '.3g'}}" for one in ends)
    summary = f"compared: {value} ({low} to {high})"
    verdict = verdict_on(ratio, None, same=paired.LEAST)
    if verdict != "not resolved":
        return alert.settled("confirmed" if verdict == "slower" else "cleared", summary)
    if ratio.value > 1 + paired.LEAST:
        return _still(alert, f"{summary}, not resolved")
    return alert.settled("suspected", f"{summary}, not resolved, more likely no change")


def _still(alert: Alert, why: str) -> Alert:
    """A copy with the same state, and the reason why no comparison decided it."""
    return replace(alert, why=f"{alert.why}; {why}")


def key_of(alert: Alert) -> str:
    """The key of a comparison: series, machine, environment and both commits."""
    place = (alert.series.machine, alert.series.environment, alert.series.name)
    return " ".join((*place, *alert.around))


class Findings:
    """The comparisons made so far, in a file that is rewritten after each one.

    If it cannot be read or written, `troubles` says so, and it is not changed again.
    """

    def __init__(self, file: Path) -> None:
        kept, troubles = documents.kept(file, records.CONFIRMATIONS)
        self.file, self.known = file, {one.key: one for one in kept}
        self.troubles = [f"{w}; it is left as it is, nothing added" for w in troubles]

    def keep(self, record: records.ConfirmationRecord) -> None:
        """Add a comparison; it counts in this run even if it cannot be written."""
        self.known[record.key] = record
        if not self.troubles:
            try:
                content = documents.document(self.known.values(), records.NoSummary())
                documents.write(content, self.file)
            except OSError as error:
                why = f"{self.file.name} cannot be written: {error.strerror}"
                self.troubles = [why]
