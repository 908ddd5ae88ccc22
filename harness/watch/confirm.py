"""Checks whether a step is real: compares both commits again, on this machine.

Times are compared in turn, in pairs of fresh processes. Accuracy does not depend on
other processes and is measured once for each commit; memory is measured in a few
processes. Results are kept in results/confirmations, so no run repeats a comparison.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from gradwatch.harness.history.environments import WrongCall, interpreter_with
from gradwatch.harness.history.measure import (
    MeasurementTarget,
    NotMeasured,
    measure,
)
from gradwatch.harness.history.series import Series
from gradwatch.harness.judging.cases import REGIMES, trial, trials
from gradwatch.harness.project import documents, git
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import (
    CONFIRMATIONS,
    AlertState,
    ConfirmationRecord,
    NoSummary,
    finite,
)
from gradwatch.harness.timing.compare import PAIRS, SAMPLED, Plan, Side, compare_sides
from gradwatch.harness.watch.alerts import PHASES, WRONG, Alert
from gradwatch.harness.workers.pythons.interpreters import Interpreter, interpreter_of
from gradwatch.harness.workers.worker import Died
from gradwatch.impls.catalogue import UnknownName, framework_of, load_op

#: The fields of harness.history.measure.Figures for metrics that are not timed.
FIGURES = {"track_gradient_ratio": "ratio", "track_peak_memory": "peak"}

#: Number of processes. In about one of five, PyTorch keeps one more array: the same
#: commit needs 512 KiB or 768. The interval of the ratio spans all processes.
DRAWS = {"track_peak_memory": 3}

#: How often an unresolved comparison is repeated, each time with twice the pairs.
REPEATS = 1

#: A ratio beyond this shows that something changed, however large the change looked in
#: the history, which scatters. Forty comparisons of a commit with itself, beside other
#: work, differed from 1 by at most 3.1 % (docs/timing.md).
SHOWN = 1.05


class NotComparable(Exception):
    """A series that cannot be measured again here; the message says why."""


@dataclass(frozen=True)
class Ratio:
    """The figure of one commit over that of another, with its 95 % interval."""

    value: float
    low: float
    high: float

    def is_like(self, factor: float) -> bool | None:
        """Whether the ratio is nearer to the factor than to 1; None if not resolved.

        The border is halfway between both on a log scale.
        """
        if factor < 1:
            inverse = Ratio(1 / self.value, 1 / self.high, 1 / self.low)
            return inverse.is_like(1 / factor)
        border = math.sqrt(factor)
        if self.low <= border <= self.high:
            return None
        return self.value > border

    def leans_to(self, factor: float) -> bool:
        """The same, decided by the value alone: which of both is more likely."""
        return Ratio(self.value, self.value, self.value).is_like(factor) is True


def sought(relative_change: float) -> float:
    """The factor that a comparison must resemble to confirm a change of this size.

    At most the square of SHOWN, whose border to 1 is SHOWN: a step that the history
    puts at 35 % and the comparison at 16 % is real, though nearer to none.
    """
    return min(1 + relative_change, SHOWN**2)


#: Compares a series at two commits, in the given number of pairs of processes.
Compare = Callable[[Series, str, str, int], Ratio]


def resolve(compare: Callable[[int], Ratio], factor: float) -> Ratio:
    """Compare with more and more pairs of processes until the factor differs from 1.

    Returns:
        The last comparison, which may still be unresolved at the largest number.
    """
    for repeat in range(REPEATS + 1):
        ratio = compare(PAIRS << repeat)
        if ratio.is_like(factor) is not None:
            break
    return ratio


# Comparing ----------------------------------------------------------------------


@contextlib.contextmanager
def comparing(root: Path = ROOT, budget: float = SAMPLED) -> Iterator[Compare]:
    """A function that compares commits; it reuses checkouts, removed at the end."""
    with contextlib.ExitStack() as stack:
        trees: dict[str, Path] = {}

        def tree(commit: str) -> Path:
            if commit not in trees:
                trees[commit] = stack.enter_context(git.checked_out(commit, root))
            return trees[commit]

        def compare(series: Series, old: str, new: str, pairs: int) -> Ratio:
            sides = (tree(old), tree(new))
            if series.metric in PHASES:
                return _timed(series, sides, pairs, budget * pairs / PAIRS)
            if series.metric in FIGURES:
                return _measured(series, sides)
            raise NotComparable(f"{series.metric} cannot be measured in pairs")

        yield compare


def _timed(
    series: Series, trees: tuple[Path, Path], pairs: int, budget: float
) -> Ratio:
    """Raises NotComparable if op, size, backend or device are missing or fail."""
    backend, given = series.backend, series.parameters
    try:
        op = load_op(series.op)
        size = op.sizes[given["size"]]
        chosen = trial(op, size, REGIMES["normal"], given["dtype"])
        python = _version(series)
        a, b = (Side(n, backend, t, python) for n, t in zip("ab", trees, strict=True))
        plan = Plan(chosen, budget, pairs, given["device"])
        compared = compare_sides(a, b, plan, PHASES[series.metric])
    except KeyError as missing:
        raise NotComparable(f"size {missing} no longer exists") from None
    except (Died, UnknownName) as reason:
        raise NotComparable(str(reason)) from None
    return Ratio(compared.ratio, compared.low, compared.high)


def _version(series: Series) -> Interpreter | None:
    """The interpreter of the version that a series is of; None: there is none here."""
    framework = framework_of(series.backend)
    with contextlib.suppress(WrongCall):
        return interpreter_with(f"{framework}=={series.versions.get(framework, '')}")
    return None


def _measured(series: Series, trees: tuple[Path, Path]) -> Ratio:
    framework = framework_of(series.backend)
    python = (_version(series) or interpreter_of(framework)).python
    targets = (MeasurementTarget(tree, [framework], python) for tree in trees)
    draws = range(DRAWS.get(series.metric, 1))
    old, new = ([_figure(series, target) for _ in draws] for target in targets)
    if not min(old):
        value = math.inf if min(new) else 1.0
        return Ratio(value, value, value)
    return Ratio(min(new) / min(old), min(new) / max(old), max(new) / min(old))


def _figure(series: Series, target: MeasurementTarget) -> float:
    """The worst figure of all cases, as benchmarks/ records it."""
    given = series.parameters
    where = ([series.backend], [given["device"]], target)
    try:
        op = load_op(series.op)
        asked = trials(op, regimes=["normal"], dtypes=[given["dtype"]])
        if "size" in given:
            size = op.sizes[given["size"]]
            asked = iter([trial(op, size, REGIMES["normal"], given["dtype"])])
        by_point = measure(asked, *where, processes=0, seconds=0)
    except (NotMeasured, UnknownName, KeyError) as reason:
        raise NotComparable(str(reason)) from None
    found = by_point.values()
    figures = [getattr(one, FIGURES[series.metric]) for one in found]
    known: list[float] = [figure for figure in figures if figure is not None]
    if not known:
        reasons = "; ".join(sorted({one.why for one in found} - {""}))
        raise NotComparable(reasons or f"{series.metric} cannot be measured here")
    return max(known)


# Confirming ---------------------------------------------------------------------


def confirm(
    alerts: Sequence[Alert],
    compare: Compare | None,
    *,
    machine: str,
    root: Path = ROOT,
    known: Mapping[str, ConfirmationRecord] | None = None,
    keep: Callable[[ConfirmationRecord], None] = lambda record: None,
    enough: Callable[[], bool] = lambda: False,
) -> Iterator[Alert]:
    """Yield each alert, with its state after both commits were measured again.

    Only what is worse and not accepted is measured again, on this `machine`, and no
    wrong gradient: that is a verdict. Comparisons that are `known`, by `key_of`, are
    not repeated; without `compare` they alone decide. `keep` is called with each new
    one; `enough` says whether to stop before it.
    """
    for alert in alerts:
        open_to_it = alert.worse and alert.state in ("suspected", "confirmed")
        if alert.why == WRONG or not open_to_it:
            yield alert
        elif known is not None and key_of(alert) in known:
            record = known[key_of(alert)]
            ends = (record.ratio, record.low, record.high)
            yield _settled(alert, Ratio(*(math.inf if e is None else e for e in ends)))
        elif compare is None:
            yield alert
        elif git.same_implementation(*alert.around, alert.series.op, root):
            yield alert.settled("cleared", "both commits run the same code for this op")
        elif alert.series.machine != machine:
            yield _still(alert, f"recorded on {alert.series.machine}, not here")
        elif enough():
            yield _still(alert, "no time was left to compare")
        else:
            yield _compared(alert, compare, keep)


def _compared(
    alert: Alert, compare: Compare, keep: Callable[[ConfirmationRecord], None]
) -> Alert:
    factor = sought(alert.relative_change)
    try:
        ratio = resolve(partial(compare, alert.series, *alert.around), factor)
    except NotComparable as reason:
        return _still(alert, f"not compared: {reason}")
    ends = (finite(one) for one in (ratio.value, ratio.low, ratio.high))
    keep(ConfirmationRecord(key_of(alert), *ends))
    return _settled(alert, ratio)


def _settled(alert: Alert, ratio: Ratio) -> Alert:
    ends = (ratio.value, ratio.low, ratio.high)
    value, low, high = (f"{one:{'.3f' if one < 10 else '.3g'}}" for one in ends)
    summary = f"compared: {value} ({low} to {high})"
    factor = sought(alert.relative_change)
    state = state_after(ratio, factor, alert.state)
    if ratio.is_like(factor) is not None:
        return alert.settled(state, summary)
    if ratio.leans_to(factor):
        return _still(alert, f"{summary}, not resolved")
    return alert.settled(state, f"{summary}, not resolved, more likely no change")


def state_after(ratio: Ratio, factor: float, before: AlertState) -> AlertState:
    """The state of a change by a factor; if unresolved, the likelier of both."""
    real = ratio.is_like(factor)
    if real is None:
        return before if ratio.leans_to(factor) else "suspected"
    return "confirmed" if real else "cleared"


def _still(alert: Alert, why: str) -> Alert:
    """The alert unchanged, with the reason why no comparison decided it."""
    return replace(alert, why=f"{alert.why}; {why}")


def key_of(alert: Alert) -> str:
    """Identifies a comparison: series, machine, environment and both commits."""
    place = (alert.series.machine, alert.series.environment, alert.series.name)
    return " ".join((*place, *alert.around))


class Findings:
    """The comparisons made so far, in a file that is rewritten after each one.

    `troubles` says what of the file cannot be read, or that it cannot be written.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.troubles: list[str] = []
        self.known: dict[str, ConfirmationRecord] = {}
        self._damaged = False
        if not file.exists():
            return
        try:
            odd = list[Unreadable]()
            records = documents.read(file, CONFIRMATIONS, odd).records
            self.troubles += map(str, odd)
            self.known = {one.key: one for one in records}
        except Unreadable as error:
            self.troubles.append(f"{error}; it is left as it is, nothing is added")
            self._damaged = True

    def keep(self, record: ConfirmationRecord) -> None:
        """Add a comparison; if it cannot be written, `trouble` says so."""
        self.known[record.key] = record
        if self._damaged:
            return
        content = documents.document(self.known.values(), NoSummary())
        try:
            documents.write(content, self.file)
        except OSError as error:
            why = f"{self.file.name} cannot be written: {error.strerror}"
            self.troubles = [*self.troubles, *({why} - set(self.troubles))]
