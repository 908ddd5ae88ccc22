"""What a series may do: how far it may creep from a fixed commit, and what is accepted.

The fixed commit is the newest release, a git tag such as v1.2: what its users have. A
tag is made with every release anyway, cannot be forgotten in a file, and is the same in
every clone. Before the first release it is where the history begins.

How far is in asv.conf.json, where asv itself reads it: `regressions_thresholds` (by
default 10 %), and `regressions_first_commits`, which accepts all before a commit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from harness.history.asv_results import Series
from harness.project.documents import Unreadable
from harness.project.paths import ROOT

BUDGET = 0.1  # relative; what issue 9 asks for
NIGHTS = 5  # runs at either end: their median is deaf to two stray ones
FEWEST = 6  # runs in a series; with fewer there is no creep, only steps
LEVEL = 0.975  # quantile: a 95 % interval
MEDIAN = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean


@dataclass(frozen=True)
class Rules:
    """What asv.conf.json says of series, by regular expressions on asv's names."""

    thresholds: Mapping[str, float] = field(default_factory=dict)
    first_commits: Mapping[str, str | None] = field(default_factory=dict)

    def budget(self, series: Series) -> float:
        """By which share it may get worse; of several the largest, as in asv."""
        name = asv_name(series)
        found = [v for key, v in self.thresholds.items() if re.match(key, name)]
        return max(found, default=BUDGET)

    def tolerance(self, series: Series) -> float:
        """Up to which size a step of it does not fail: 0 unless more is allowed it."""
        budget = self.budget(series)
        return budget if budget > BUDGET else 0.0

    def accepted_until(self, series: Series) -> Sequence[str]:
        """Commits whose changes, and those before, are accepted; "" for all."""
        name = asv_name(series)
        found = [v for key, v in self.first_commits.items() if re.match(key, name)]
        return [commit or "" for commit in found]


def rules(file: Path = ROOT / "asv.conf.json") -> Rules:
    """The rules in asv's configuration, which may hold comments.

    Raises:
        Unreadable: It is not there, damaged, or a pattern is no regular expression.
    """
    from asv.util import UserError, load_json

    try:
        content: dict[str, Any] = load_json(str(file), js_comments=True)
        found = Rules(
            content.get("regressions_thresholds", {}),
            content.get("regressions_first_commits", {}),
        )
        for key in (*found.thresholds, *found.first_commits):
            _compiled(key)
    except (OSError, UserError, ValueError) as error:
        raise Unreadable(f"{file.name}: {error}") from None
    return found


def _compiled(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression ({error})") from None


def asv_name(series: Series) -> str:
    """As asv matches it: the benchmark with its parameters as Python writes them."""
    values = ", ".join(map(repr, series.parameters.values()))
    return f"{series.benchmark}({values})" if values else series.benchmark


@dataclass(frozen=True)
class Creep:
    """How far the newest runs are from those at the reference, with a 95 % interval."""

    relative_change: float
    low: float
    high: float


def creep(values: Sequence[float], reference: int) -> Creep | None:
    """Compare the newest runs with those up to the reference.

    Args:
        values: One a run, oldest first, all positive.
        reference: How many of them are up to the reference; 0 for none, then it is
            where the series begins.

    Returns:
        None where there are too few runs to tell.
    """
    count = min(NIGHTS, (len(values) - max(reference, 1)), len(values) // 2)
    if len(values) < FEWEST or count < 2 or min(values) <= 0:
        return None
    before = np.log(values[max(reference - NIGHTS, 0) : reference or count])
    now = np.log(values[-count:])
    height = float(np.median(now) - np.median(before))
    squares = sum(float(((v - np.median(v)) ** 2).sum()) for v in (before, now))
    freedom = len(before) + len(now) - 2
    spread = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(now)))
    margin = float(stats.t.ppf(LEVEL, freedom)) * MEDIAN * spread
    ends = (height, height - margin, height + margin)
    return Creep(*(math.expm1(end) for end in ends))
