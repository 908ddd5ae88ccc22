"""What comparing both commits live makes of each change that is found: a simulation.

The comparisons are recorded ones: compared.csv holds 40 of a commit with itself, made
by `gradwatch compare` on cpu-2core (docs/timing.md): PyTorch's layer_norm backward,
beside other work on one core, with the widest intervals seen. Each that is asked for
draws one of them, about the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gradwatch.harness.history.changepoints import Change, find_changes
from gradwatch.harness.timing.compare import LEAST, PAIRS
from gradwatch.harness.timing.intervals import LEVEL, Estimate
from gradwatch.harness.timing.samples import verdict_on
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
        self.kept: dict[int, Estimate] = {}

    def __call__(self, values: Values) -> list[Report]:
        found = find_changes(values)
        return [(c.index, c.relative_change) for c in found if self._fails(c)]

    def _fails(self, change: Change) -> bool:
        if change.index not in self.kept:
            true = math.prod(
                1 + size for at, size in self.steps if abs(at - change.index) <= OFF
            )
            value, low, high = true * np.exp(self.rng.choice(COMPARED))
            self.kept[change.index] = Estimate(value, low, high, PAIRS, LEVEL)
        ratio = self.kept[change.index]
        verdict = verdict_on(ratio, None, same=LEAST)
        if verdict == "not resolved":
            larger = max(ratio.value, 1 / ratio.value)
            return not change.suspected and larger > 1 + LEAST
        return verdict == ("slower" if change.worse else "faster")
