"""Finds the commit that changed a figure, by comparing commits with the good one.

The first comparison, of both ends, gives the size of the change. Each further one
halves the candidates that are left, so log2(n) of them are needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from gradwatch.harness.timing.compare import PAIRS
from gradwatch.harness.watch.confirm import NotComparable, Ratio, resolve

#: Compares a commit with the good one, in the given number of pairs of processes.
Against = Callable[[str, int], Ratio]


@dataclass
class Bisection:
    """The commit that changed the figure, and the comparisons that led to it.

    `commit` is the first one that is like the last, or "" if both ends are equal.
    `skipped` are commits right before it that could not be measured: one of them may be
    the cause instead. `asked` holds the measured commits and their ratio to the good
    one; `unsure` those whose ratio was not resolved.
    """

    commit: str = ""
    ratio: Ratio | None = None
    skipped: list[str] = field(default_factory=list)
    asked: list[tuple[str, Ratio]] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)


def bisect(commits: Sequence[str], against: Against) -> Bisection:
    """Find the first commit that is more like the last one than like the good one.

    The candidates are oldest first, and the last is bad.

    Raises:
        ValueError: There is no candidate.
        NotComparable: The last commit cannot be measured.
    """
    if not commits:
        raise ValueError("no commit between the two changes what is measured")
    bisection = Bisection()

    def ask(commit: str, pairs: int = PAIRS) -> Ratio:
        ratio = against(commit, pairs)
        bisection.asked.append((commit, ratio))
        return ratio

    last = ask(commits[-1])
    factor = last.value
    if last.low <= 1 <= last.high:
        return bisection
    good, bad, broken = -1, len(commits) - 1, set[int]()
    while left := [i for i in range(good + 1, bad) if i not in broken]:
        middle = min(left, key=lambda i: abs(2 * i - good - bad))
        try:
            ratio = resolve(partial(ask, commits[middle]), factor)
        except NotComparable:
            broken.add(middle)
            continue
        if ratio.is_like(factor) is None:
            bisection.unsure.append(commits[middle])
        good, bad = (good, middle) if ratio.leans_to(factor) else (middle, bad)
    bisection.commit, bisection.ratio = commits[bad], last
    bisection.skipped = [commits[i] for i in sorted(broken) if good < i < bad]
    return bisection
