"""One cell for each op and backend: verdict, worst ratio, speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from gradwatch.harness.agreement.overall import Overall, overall
from gradwatch.harness.dashboard.machine import MachineResults
from gradwatch.harness.dashboard.sources import Source
from gradwatch.harness.judging.defects import known
from gradwatch.harness.project.verdicts import SIGNS, VERDICTS

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
    speed: float | None = None
    untimed: str = ""
    older: str = ""
    orders: Mapping[str, Overall] = field(default_factory=dict)

    @property
    def judged(self) -> bool:
        """Whether it has a verdict of the judge's."""
        return self.verdict not in ("none", "missing")

    @property
    def has_run(self) -> bool:
        """Whether there is anything to show."""
        return self.judged or bool(self.speed or self.orders)

    @property
    def wrong(self) -> bool:
        """Whether some tensor is wrong and is not a known defect."""
        return self.unexpected > 0

    @property
    def astray(self) -> bool:
        """Whether a tensor of another order is wrong and is not a known defect."""
        return any(order.unexpected for order in self.orders.values())

    @property
    def description(self) -> str:
        """The cell in words."""
        allowed = f" of {short(self.limit)} allowed" if self.limit else ""
        counted = f"{self.unexpected} of {self.tensors} tensors not as expected"
        parts = (
            f"{self.op} on {self.runner}: {self.verdict}",
            self.defect and f"known defect: {self.defect}",
            self.ratio is not None
            and f"worst error {short(self.ratio)} rounding radii{allowed}",
            self.unexpected and counted,
            self.speed and f"takes {short(self.speed)} times as long as the fastest",
            self.untimed,
            self.older,
            *(f"{name}: {one.verdict}" for name, one in self.orders.items()),
        )
        return "; ".join(str(part) for part in parts if part)

    @property
    def rank(self) -> tuple[bool, bool, bool, int, int, float]:
        """Sorts cells, the worst last: wrong, then a known defect, then by verdict."""
        verdict = self.verdict
        calm = _CALM.index(verdict) if verdict in _CALM else len(_CALM)
        severe = VERDICTS.index(verdict) if verdict in VERDICTS else 0
        listed = bool(self.defect)
        return self.wrong, self.astray, listed, calm, severe, self.ratio or 0.0


# What a cell says that has no error to show; the least comes first.
_CALM = ("none", "missing", "unsupported", "agree", "vacuous")

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
    entries, head = known.load(), here.newest("agree")
    cells: dict[str, dict[str, Cell]] = {}
    for op in here.ops:
        row = {
            runner: _cell(op, runner, here, entries, head) for runner in here.runners
        }
        cells[op] = _with_speed(row, here)
    return cells


def _cell(
    op: str,
    runner: str,
    here: MachineResults,
    entries: Sequence[known.Known],
    head: Source | None,
) -> Cell:
    """The cell of an op on a runner; `head` is the newest run of the suite."""
    several = here.orders.get((op, runner), {})
    orders = {name: overall(of_it) for name, of_it in several.items()}
    records = here.judged.get((op, runner))
    if not records:
        why = here.missing.get(runner)
        verdict, sign = ("none", "·") if why is None else ("missing", "?")
        message = "not judged" if why is None else why
        return Cell(op, runner, verdict, sign, message=message, orders=orders)
    judged, origin = overall(records), here.origin["agree"][op, runner].environment
    # Each record of results/latest may be of another commit.
    commit = max((r.date, r.commit) for r in records)[1] or origin.commit
    worst, defect = judged.worst, ""
    if judged.listed and not judged.unexpected:
        defect = next((e.reason for e in entries if e.is_expected_in(worst)), "listed")
    current = head is None or commit == head.environment.commit
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
        older="" if current else f"from the older commit {commit[:8]}",
        orders=orders,
    )


# Speed --------------------------------------------------------------------------


def _with_speed(row: dict[str, Cell], here: MachineResults) -> dict[str, Cell]:
    """Add to each cell its time relative to the fastest backend that is right.

    For each size, precision and pass, the time is divided by the shortest time of a
    right backend on the same device; `speed` is the geometric mean of these ratios.
    """
    times = {
        runner: {
            (r.case, r.device, r.dtype, r.phase): r.seconds
            for r in here.timed.get((cell.op, runner), [])
        }
        for runner, cell in row.items()
    }
    best: dict[tuple[str, ...], float] = {}
    for runner, cell in row.items():
        if not cell.wrong and not cell.defect:
            for key, seconds in times[runner].items():
                best[key] = min(seconds, best.get(key, math.inf))
    for runner, cell in row.items():
        logs = [math.log(s / best[k]) for k, s in times[runner].items() if k in best]
        if cell.wrong and times[runner]:
            untimed = "no time is shown for a wrong gradient"
            row[runner] = replace(cell, untimed=untimed)
        elif logs:
            row[runner] = replace(cell, speed=math.exp(fmean(logs)))
    return row
