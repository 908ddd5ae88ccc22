"""Finds the commit that changed a figure, by measuring commits side by side.

Each comparison is of a candidate with the last good commit, and halves what is left:
log2(n) of them, after one of both ends that says what is looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from harness.timing.compare import PAIRS
from harness.watch.confirm import NotComparable, Ratio, resolve

#: Compares the good commit with another, in so many pairs of processes.
Against = Callable[[str, int], Ratio]


@dataclass
class Bisection:
    """The commit found, and how.

    `commit` is the first that is like the last, or "" where the two ends do not differ;
    `skipped` are those right before it that could not be measured, of which it may be
    one as well. `asked` are the commits measured and their ratio to the good one.
    """

    commit: str = ""
    ratio: Ratio | None = None
    skipped: list[str] = field(default_factory=list)
    asked: list[tuple[str, Ratio]] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)


def bisect(commits: Sequence[str], against: Against) -> Bisection:
    """Find the first commit that is like the last one, rather than like the good one.

    Args:
        commits: The candidates after the good commit, oldest first; the last is bad.
        against: Measures one of them against the good commit.

    Raises:
        ValueError: There is no candidate.
        NotComparable: The last commit cannot be measured.
    """
    if not commits:
        raise ValueError("no commit between the two changes what is measured")
    found = Bisection()
    last = _ask(found, against, commits[-1])
    factor = last.value
    if last.low <= 1 <= last.high:
        return found
    good, bad, broken = -1, len(commits) - 1, set[int]()
    while middle := _middle(good, bad, broken):
        commit = commits[middle[0]]
        try:
            like = _is_like(found, against, commit, factor)
        except NotComparable:
            broken.add(middle[0])
            continue
        good, bad = (good, middle[0]) if like else (middle[0], bad)
    found.commit, found.ratio = commits[bad], last
    found.skipped = [commits[i] for i in sorted(broken) if good < i < bad]
    return found


def _middle(good: int, bad: int, broken: set[int]) -> list[int]:
    """The measurable candidate nearest to the middle of those left, if any is."""
    left = [i for i in range(good + 1, bad) if i not in broken]
    return sorted(left, key=lambda i: abs(2 * i - good - bad))[:1]


def _is_like(found: Bisection, against: Against, commit: str, factor: float) -> bool:
    """Whether a commit is like the last; if that stays unsure, by the ratio alone."""
    ratio = resolve(partial(_ask, found, against, commit), factor)
    if ratio.is_like(factor) is None:
        found.unsure.append(commit)
    return ratio.leans_to(factor)


def _ask(found: Bisection, against: Against, commit: str, pairs: int = PAIRS) -> Ratio:
    ratio = against(commit, pairs)
    found.asked.append((commit, ratio))
    return ratio
