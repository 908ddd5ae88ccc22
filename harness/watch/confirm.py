"""Whether a step is real: both commits measured again, side by side, on this machine.

Times are compared in turn in pairs of fresh processes; accuracy, which depends on no
neighbour, is measured once on either side, memory in a few processes. What was compared
is kept in results/confirmations, so that no night repeats it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.history.asv_results import Series
from harness.history.measure import Figures, NotMeasured, Stand, measure
from harness.judging.cases import REGIMES, Trial, trial, trials
from harness.project import documents, git
from harness.project.paths import ROOT
from harness.timing.compare import PAIRS, SAMPLED, Plan, Side, compare_sides
from harness.watch.alerts import PHASES, Alert, backend_of, series_name
from harness.workers.process import Died
from impls.catalogue import UnknownName, framework_of, load_op

#: What a figure that is measured once is called among harness.history.measure's.
FIGURES = {"track_gradient_ratio": "ratio", "track_peak_memory": "peak"}

#: In how many processes. PyTorch keeps an array more in one of about five: the same
#: commit has 512 KiB or 768. A ratio's ends are those of the processes' figures.
DRAWS = {"track_peak_memory": 3}

#: How often a comparison that is not resolved is repeated, with twice the pairs.
REPEATS = 1


class NotComparable(Exception):
    """A series that cannot be measured again here; the message says why."""


@dataclass(frozen=True)
class Ratio:
    """The figure of one commit over that of another, with its 95 % interval."""

    value: float
    low: float
    high: float

    def is_like(self, factor: float) -> bool | None:
        """Whether it is the factor rather than 1; None where that is not resolved.

        The border is halfway, in logarithms.
        """
        if factor < 1:
            return Ratio(1 / self.value, 1 / self.high, 1 / self.low).is_like(
                1 / factor
            )
        border = math.sqrt(factor)
        if self.low <= border <= self.high:
            return None
        return self.value > border

    def leans_to(self, factor: float) -> bool:
        """The same by the value alone: which of both is the likelier."""
        return Ratio(self.value, self.value, self.value).is_like(factor) is True


#: Compares two commits of a series; `pairs` is how many pairs of processes.
Compare = Callable[[Series, str, str, int], Ratio]


def resolve(compare: Callable[[int], Ratio], factor: float) -> Ratio:
    """Compare in as many pairs of processes as tell the factor from 1, up to a limit.

    Returns:
        The last comparison; all of one limit's pairs may still leave it open.
    """
    for repeat in range(REPEATS + 1):
        ratio = compare(PAIRS << repeat)
        if ratio.is_like(factor) is not None:
            break
    return ratio


# Comparing ----------------------------------------------------------------------


@contextlib.contextmanager
def comparing(root: Path = ROOT, budget: float = SAMPLED) -> Iterator[Compare]:
    """A way to compare commits; each is checked out once, all are gone at the end."""
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
    """Raises NotComparable: the op, size, backend or device is not there or fails."""
    backend, given = backend_of(series), series.parameters
    try:
        op = load_op(series.op)
        size = op.sizes[given["size"]]
        chosen = trial(op, size, REGIMES["normal"], given["dtype"])
        a, b = (Side(name, backend, t) for name, t in zip("ab", trees, strict=True))
        plan = Plan(chosen, PHASES[series.metric], budget, pairs, given["device"])
        found = compare_sides(a, b, plan)
    except KeyError as missing:
        raise NotComparable(f"no size {missing} any more") from None
    except (Died, UnknownName) as reason:
        raise NotComparable(str(reason)) from None
    return Ratio(found["ratio"], found["low"], found["high"])


def _measured(series: Series, trees: tuple[Path, Path]) -> Ratio:
    framework = framework_of(backend_of(series))
    if framework not in ("numpy", "torch"):
        raise NotComparable(f"{series.metric} of {framework} is not measured in pairs")
    times = DRAWS.get(series.metric, 1)
    old, new = (
        [_figure(series, Stand(tree, [framework])) for _ in range(times)]
        for tree in trees
    )
    if not min(old):
        value = math.inf if min(new) else 1.0
        return Ratio(value, value, value)
    return Ratio(min(new) / min(old), min(new) / max(old), max(new) / min(old))


def _figure(series: Series, stand: Stand) -> float:
    """The worst of all cases, as benchmarks/ records it."""
    devices = [series.parameters["device"]]
    try:
        found = measure(
            _trials(series),
            [backend_of(series)],
            devices,
            stand,
            processes=0,
            seconds=0,
        )
    except (NotMeasured, UnknownName, KeyError) as reason:
        raise NotComparable(str(reason)) from None
    figures = [_value(series, one) for one in found.values()]
    known = [figure for figure in figures if figure is not None]
    if not known:
        told = "; ".join(sorted({one.why for one in found.values()} - {""}))
        raise NotComparable(told or f"{series.metric} cannot be seen here")
    return max(known)


def _trials(series: Series) -> list[Trial]:
    op, given = load_op(series.op), series.parameters
    if "size" in given:
        size = op.sizes[given["size"]]
        return [trial(op, size, REGIMES["normal"], given["dtype"])]
    return list(trials(op, regimes=["normal"], dtypes=[given["dtype"]]))


def _value(series: Series, figures: Figures) -> float | None:
    found: float | None = getattr(figures, FIGURES[series.metric])
    return found


# Confirming ---------------------------------------------------------------------


def confirm(
    alerts: Sequence[Alert],
    compare: Compare,
    *,
    machine: str,
    root: Path = ROOT,
    known: Mapping[str, Mapping[str, Any]] | None = None,
    keep: Callable[[str, Mapping[str, Any]], None] = lambda key, found: None,
    enough: Callable[[], bool] = lambda: False,
) -> Iterator[Alert]:
    """Each alert as it stands when both of its commits were measured again.

    Args:
        alerts: What was found; those that are worse and not accepted are compared.
        compare: See `comparing`.
        machine: This one; what was recorded on another is passed on as it is.
        root: The checkout.
        known: Findings of earlier calls, by `key_of`; they are not repeated.
        keep: Called with each new finding.
        enough: Asked before each comparison whether time is out.
    """
    for alert in alerts:
        if not alert.worse or alert.state not in ("suspected", "confirmed"):
            yield alert
        elif git.same_implementation(*alert.around, alert.series.op, root):
            yield alert.settled("cleared", "what the op runs is the same before it")
        elif alert.series.machine != machine:
            yield _still(alert, f"recorded on {alert.series.machine}, not here")
        elif known is not None and key_of(alert) in known:
            yield _settled(alert, known[key_of(alert)])
        elif enough():
            yield _still(alert, "no time was left to compare")
        else:
            yield _compared(alert, compare, keep)


def _compared(
    alert: Alert, compare: Compare, keep: Callable[[str, Mapping[str, Any]], None]
) -> Alert:
    try:
        ratio = resolve(
            partial(compare, alert.series, *alert.around), 1 + alert.relative_change
        )
    except NotComparable as reason:
        return _still(alert, f"not compared: {reason}")
    found = {"ratio": ratio.value, "low": ratio.low, "high": ratio.high}
    keep(key_of(alert), found)
    return _settled(alert, found)


def _settled(alert: Alert, found: Mapping[str, Any]) -> Alert:
    ratio = Ratio(found["ratio"], found["low"], found["high"])
    value, low, high = (
        f"{one:.3f}" if one < 10 else f"{one:.3g}"
        for one in (ratio.value, ratio.low, ratio.high)
    )
    told = f"compared: {value} ({low} to {high})"
    factor = 1 + alert.relative_change
    state = state_after(ratio, factor, alert.state)
    if ratio.is_like(factor) is not None:
        return alert.settled(state, told)
    if ratio.leans_to(factor):
        return _still(alert, f"{told}, not resolved")
    return alert.settled(state, f"{told}, not resolved, rather no change")


def state_after(ratio: Ratio, factor: float, before: str) -> str:
    """Of a change by a factor; where it is not resolved, by what is the likelier."""
    real = ratio.is_like(factor)
    if real is None:
        return before if ratio.leans_to(factor) else "suspected"
    return "confirmed" if real else "cleared"


def _still(alert: Alert, why: str) -> Alert:
    """As it was, and why no comparison has settled it."""
    return replace(alert, why=f"{alert.why}; {why}")


def key_of(alert: Alert) -> str:
    """What a comparison is of: the series on a machine, and the two commits."""
    place = (alert.series.machine, alert.series.environment, series_name(alert.series))
    return " ".join((*place, *alert.around))


class Findings:
    """Comparisons that were made, in a file that is replaced as each comes."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.trouble = ""
        self.known: dict[str, dict[str, Any]] = {}
        if file.exists():
            listed: Iterable[dict[str, Any]] = documents.read(file)["records"]
            self.known = {found["key"]: found for found in listed}

    def keep(self, key: str, found: Mapping[str, Any]) -> None:
        """Add one; where the folder cannot be written, say so in `trouble`."""
        self.known[key] = {"key": key, **found}
        content = documents.document(list(self.known.values()), {})
        try:
            documents.write(content, self.file)
        except OSError as error:
            self.trouble = f"{self.file.name} cannot be written: {error.strerror}"
