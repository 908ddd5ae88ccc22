"""How the judge's one constant is chosen: what a smaller or larger one would do.

A ratio beyond c + sqrt(n)/2 is a wrong gradient
(`limit_for` in harness/judging/rounding/errors.py). Every run keeps its ratio, so that
c can be moved without running anything again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.rounding.errors import limit_for
from gradwatch.harness.selftest import scoring
from gradwatch.harness.selftest.examine import JUDGE
from gradwatch.harness.selftest.scoring import Goal, Score
from scripts.studies.detection import SETTINGS, write_figure

SHIPPED = limit_for(0)
CONSTANTS = 2.0 ** np.arange(-1, 8.01, 0.25)  # from half a rounding to 256 of them
#: The bands of which detection could suffer from a larger constant.
CURVES = tuple(r for r in scoring.GOALS if r.dtype in ("float64", "float32"))


@dataclass(frozen=True)
class Excess:
    """Ratios with their allowance for the length of sums, sqrt(n)/2, taken off.

    `right` holds those of right tensors; `wrong[i]` those of the planted errors that
    `CURVES[i]` speaks of.
    """

    right: NDArray[np.float64]
    wrong: Sequence[NDArray[np.float64]]

    @property
    def largest_right(self) -> float:
        """The smallest constant that accuses no right tensor."""
        return float(self.right.max(initial=0.0))

    def accused(self, constants: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of the right tensors that each constant accuses."""
        return _beyond(self.right, constants)

    def caught(self, constants: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Share of the planted errors that each constant catches, for each curve."""
        return [_beyond(ratios, constants) for ratios in self.wrong]


def excess(score: Score, entries: Sequence[known.Known]) -> Excess:
    """The ratios of a selftest, without listed framework defects.

    What is `imprecise` is excused by another rule: its ratio may be anything.
    """
    right = [
        alarm.ratio - (alarm.limit - SHIPPED)
        for trial, alarm in score.alarms
        if JUDGE in alarm.asked
        and alarm.verdict != "imprecise"
        and not scoring.listed(trial, alarm, entries)
    ]
    wrong = [_array(_of(score, wanted)) for wanted in CURVES]
    return Excess(_array(r for r in right if r == r), wrong)


def _of(score: Score, wanted: Goal) -> Iterable[float]:
    for trial, run in score.counted:
        if trial.problem.dtype == wanted.dtype and wanted.speaks_of(run):
            yield run.ratio - (run.limit - SHIPPED)


def _array(values: Iterable[float]) -> NDArray[np.float64]:
    return np.array(list(values), dtype=np.float64)


def _beyond(
    ratios: NDArray[np.float64], constants: NDArray[np.float64]
) -> NDArray[np.float64]:
    if not ratios.size:
        return np.full(len(constants), np.nan)
    shares: NDArray[np.float64] = (ratios[:, None] > constants).mean(axis=0)
    return shares


def chart_calibration(chosen: Excess, confirmed: Excess, target: Path) -> None:
    """Caught and accused shares over c, on the set it was chosen on and on another."""
    with mpl.rc_context(SETTINGS):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        left, right = figure.subplots(1, 2, sharex=True)
        for ratios, dash in ((chosen, "-"), (confirmed, ":")):
            _curves(left, right, ratios, dash)
        for ax, what in ((left, "planted errors caught"), (right, "right accused")):
            ax.axvline(SHIPPED, color="black", linewidth=0.8)
            ax.set_xscale("log", base=2)
            ax.set(xlabel="constant c, in rounding radii", ylabel=f"{what}, %")
            ax.grid(alpha=0.3)
        left.legend(fontsize=7, title="solid: chosen on; dotted: confirmed on")
        write_figure(figure, target)


def _curves(left: Axes, right: Axes, ratios: Excess, dash: Any) -> None:
    shades = ("0.0", "0.35", "0.6")
    markers = "osD"
    for wanted, shares, shade, marker in zip(
        CURVES, ratios.caught(CONSTANTS), shades, markers, strict=True
    ):
        label = str(wanted).partition(":")[0] if dash == "-" else None
        style: Any = {"marker": marker, "markevery": 4, "markersize": 4}
        left.plot(CONSTANTS, 100 * shares, dash, color=shade, label=label, **style)
    right.plot(CONSTANTS, 100 * ratios.accused(CONSTANTS), dash, color="black")
