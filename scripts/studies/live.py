"""What comparing both commits live makes of each change that is found: a simulation.

The comparisons are recorded ones: compared.csv holds 40 of a commit with itself, made
by `gradwatch compare` on cpu-2core (docs/timing.md): PyTorch's layer_norm backward,
beside other work on one core, with the widest intervals seen. Each that is asked for
draws one of them, about the truth, narrower by sqrt(2) for twice the pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradwatch.harness.history.changepoints import Change, find_changes
from gradwatch.harness.timing.compare import PAIRS
from gradwatch.harness.watch.confirm import Ratio, resolve, sought, state_after
from gradwatch.harness.watch.search import OFF
from scripts.studies.planted_series import Report, Values

COMPARED = np.log(
    np.loadtxt(Path(__file__).with_name("compared.csv"), delimiter=",", skiprows=1)
)


class Live:
    """`find_changes` on one series as it grows, as `gradwatch watch --confirm` fails.

    steps: what is true of the series, by which a comparison comes out.
    """

    def __init__(self, steps: Sequence[Report], rng: np.random.Generator) -> None:
        self.steps = steps
        self.rng = rng
        self.kept: dict[int, Ratio] = {}

    def __call__(self, values: Values) -> list[Report]:
        found = find_changes(values)
        return [(c.index, c.relative_change) for c in found if self._fails(c)]

    def _fails(self, change: Change) -> bool:
        factor = sought(change.relative_change)
        if change.index not in self.kept:
            true = math.prod(
                1 + size for at, size in self.steps if abs(at - change.index) <= OFF
            )
            self.kept[change.index] = resolve(lambda n: self._draw(true, n), factor)
        before = "suspected" if change.suspected else "confirmed"
        return state_after(self.kept[change.index], factor, before) == "confirmed"

    def _draw(self, true: float, pairs: int) -> Ratio:
        value, low, high = self.rng.choice(COMPARED) / math.sqrt(pairs / PAIRS)
        return Ratio(*(true * math.exp(off) for off in (value, low, high)))
