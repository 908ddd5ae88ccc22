"""The rules for a series: how far it may move from the reference, and what is accepted.

The reference is the newest release, a git tag such as v1.2, because that is what users
have. Every release has a tag, and it is the same in every clone. Before the first
release the reference is the beginning of the history.

The rules are in asv.conf.json, where asv reads them, too: `regressions_thresholds` (by
default 10 %), and `regressions_first_commits`, which accepts all up to a commit.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from gradwatch.harness.history.series import Series
from gradwatch.harness.project.documents import Unreadable, bytes_of
from gradwatch.harness.project.paths import ROOT

BUDGET = 0.1  # relative; a requirement of the project
NIGHTS = 5  # runs at either end: their median is robust to two outliers
FEWEST = 6  # runs in a series; a shorter one can have steps, but no creep
LEVEL = 0.975  # quantile: a 95 % interval
MEDIAN = math.sqrt(math.pi / 2)  # standard error of a median over that of a mean


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


def rules(file: Path = ROOT / "asv.conf.json") -> Rules:
    """Read the rules from asv's configuration, which may contain comments.

    Raises:
        Unreadable: The file is missing or damaged, or a pattern is not a regular
            expression.
    """
    import json5  # as asv does

    try:
        text = bytes_of(file).decode()
        read = msgspec.convert(json5.loads(text), Rules)
        for key in (*read.thresholds, *read.first_commits):
            re.compile(key)
    except RecursionError:
        raise Unreadable("nested too deeply", file.name) from None
    except re.error as error:
        why = f"{key!r} is not a regular expression ({error})"
        raise Unreadable(why, file.name) from None
    except ValueError as error:  # of json5, of UTF-8 or of msgspec
        raise Unreadable(" ".join(str(error).split())[:200], file.name) from None
    return read


def asv_name(series: Series) -> str:
    """The name that asv matches: the benchmark and the repr of its parameters."""
    values = ", ".join(map(repr, series.parameters.values()))
    return f"{series.benchmark}({values})" if values else series.benchmark


@dataclass(frozen=True)
class Creep:
    """The change from the reference to the newest runs, with its 95 % interval."""

    relative_change: float
    low: float
    high: float


def creep(values: ArrayLike, reference: int) -> Creep | None:
    """Compare the newest runs with the runs up to the reference; None of too few.

    `reference` is their number; with 0 the first runs are the reference.
    """
    values = np.asarray(values)
    count = min(NIGHTS, (len(values) - max(reference, 1)), len(values) // 2)
    if len(values) < FEWEST or count < 2 or values.min() <= 0:
        return None
    before = np.log(values[max(reference - NIGHTS, 0) : reference or count])
    now = np.log(values[-count:])
    height = float(np.median(now) - np.median(before))
    squares = sum(float(((v - np.median(v)) ** 2).sum()) for v in (before, now))
    freedom = len(before) + len(now) - 2
    spread = math.sqrt(squares / freedom * (1 / len(before) + 1 / len(now)))
    margin = float(special.stdtrit(freedom, LEVEL)) * MEDIAN * spread
    ends = (height, height - margin, height + margin)
    return Creep(*(math.expm1(end) for end in ends))
