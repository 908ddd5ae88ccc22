"""One cell for each op and backend: verdict, worst ratio, speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from gradwatch.harness.agreement.overall import Overall, overall
from gradwatch.harness.dashboard.machine import MachineResults
from gradwatch.harness.judging.defects import known
from gradwatch.harness.project.records import AgreeRecord, TimeRecord
from gradwatch.harness.project.verdicts import SIGNS

# The range of the bars, on a log scale: float64 results are rarely closer to the
# reference than a hundredth of a radius, and limits are about 17.
FAINTEST, STRONGEST = 1e-2, 1e3


@dataclass(frozen=True)
class Cell:
    """The results of one op on one backend.

    `verdict` is one of the judge's, or "missing" (the backend cannot run here), or
    "none" (nothing was judged). `defect` is the reason of a known defect. `speed` is
    the time divided by that of the fastest backend that is right. `orders` are the
    verdicts on other orders of differentiation: all else is of the first one.
    """

    op: str
    runner: str
    verdict: str
    sign: str
    ratio: float | None = None
    limit: float | None = None
    tensors: int = 0
    unexpected: int = 0
    defect: str = ""
    message: str = ""
    case: str = ""
    speed: float | None = None
    untimed: str = ""
    older: str = ""
    orders: Mapping[str, Overall] = field(default_factory=dict)

    @property
    def wrong(self) -> bool:
        """Whether some tensor is wrong and is not a known defect."""
        return self.unexpected > 0

    @property
    def astray(self) -> bool:
        """Whether a tensor of another order is wrong and is not a known defect."""
        return any(order.unexpected for order in self.orders.values())

    @property
    def length(self) -> float:
        """Length of the bar of the worst ratio, 0 to 1."""
        return bar_length(self.ratio)

    @property
    def description(self) -> str:
        """The cell in words."""
        parts = [f"{self.op} on {self.runner}: {self.verdict}"]
        if self.defect:
            parts.append(f"known defect: {self.defect}")
        if self.ratio is not None:
            parts.append(f"worst error {short(self.ratio)} rounding radii")
        if self.limit:
            parts[-1] += f" of {short(self.limit)} allowed"
        if self.unexpected:
            parts.append(f"{self.unexpected} of {self.tensors} tensors not as expected")
        if self.speed:
            parts.append(f"takes {short(self.speed)} times as long as the fastest")
        if self.untimed:
            parts.append(self.untimed)
        if self.older:
            parts.append(self.older)
        parts += [f"{name}: {one.verdict}" for name, one in self.orders.items()]
        return "; ".join(parts)


Cells = Mapping[str, Mapping[str, Cell]]  # by op, then by runner


def short(value: float | None) -> str:
    """A number with two digits: 1.6, 17, 5.4e8, ∞."""
    if value is None:
        return ""
    if math.isinf(value):
        return "∞"
    if 0.01 <= abs(value) < 100 or value == 0:
        return f"{value:.2g}"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{value:.0f}" if 100 <= value < 1e4 else f"{digits}e{int(exponent)}"


def bar_length(ratio: float | None) -> float:
    """Position of a ratio between FAINTEST and STRONGEST, on a log scale, 0 to 1."""
    if not ratio or ratio <= FAINTEST:
        return 0.0
    span = math.log(STRONGEST / FAINTEST)
    return min(1.0, math.log(ratio / FAINTEST) / span)


def matrix(here: MachineResults) -> dict[str, dict[str, Cell]]:
    """All cells, by op and then by runner."""
    entries = known.load()
    head = here.newest("agree")
    cells: dict[str, dict[str, Cell]] = {}
    for op in here.ops:
        row = {}
        for runner in here.runners:
            records = here.judged.get((op, runner), [])
            older = _older(here, (op, runner), head.commit if head else "")
            cell = _cell(op, runner, records, here, entries, older)
            orders = here.orders.get((op, runner), {})
            verdicts = {name: overall(several) for name, several in orders.items()}
            row[runner] = replace(cell, orders=verdicts)
        cells[op] = _with_speed(row, here)
    return cells


def _older(here: MachineResults, place: tuple[str, str], commit: str) -> str:
    source = here.origin["agree"].get(place)
    if source is None or source.commit == commit:
        return ""
    return f"from the older commit {source.commit[:8]}"


def _cell(
    op: str,
    runner: str,
    records: Sequence[AgreeRecord],
    here: MachineResults,
    entries: Sequence[known.Known],
    older: str,
) -> Cell:
    if not records:
        if runner in here.missing:
            return Cell(op, runner, "missing", "?", message=here.missing[runner])
        return Cell(op, runner, "none", "·", message="not judged")
    judged = overall(records)
    worst, defect = judged.worst, ""
    if judged.listed and not judged.unexpected:
        defect = next((e.reason for e in entries if e.is_expected_in(worst)), "listed")
    return Cell(
        op,
        runner,
        judged.verdict,
        SIGNS[judged.verdict][0],
        ratio=worst.distance,
        limit=worst.limit,
        tensors=len(records),
        unexpected=judged.unexpected,
        defect=defect,
        message=worst.message,
        case=worst.case,
        older=older,
    )


# Speed --------------------------------------------------------------------------


def _with_speed(row: dict[str, Cell], here: MachineResults) -> dict[str, Cell]:
    """Add to each cell its time relative to the fastest backend that is right.

    For each size, precision and pass, the time is divided by the shortest time of a
    right backend on the same device; `speed` is the geometric mean of these ratios.
    """
    times = {
        runner: {_key(r): r.seconds for r in here.timed.get((cell.op, runner), [])}
        for runner, cell in row.items()
    }
    best: dict[tuple[str, ...], float] = {}
    for runner, cell in row.items():
        if not cell.wrong and not cell.defect:
            for key, seconds in times[runner].items():
                best[key] = min(seconds, best.get(key, math.inf))
    timed = {}
    for runner, cell in row.items():
        logs = [math.log(s / best[k]) for k, s in times[runner].items() if k in best]
        if cell.wrong and times[runner]:
            cell = replace(cell, untimed="no time is shown for a wrong gradient")
        elif logs:
            cell = replace(cell, speed=math.exp(fmean(logs)))
        timed[runner] = cell
    return timed


def _key(record: TimeRecord) -> tuple[str, ...]:
    return record.case, record.device, record.dtype, record.phase
