"""What trials cost before they run: which of them fit."""

from __future__ import annotations

import contextlib
import ctypes
import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gradwatch.harness.check.choice import Trial
from gradwatch.harness.judging.question import MOST, Cost
from gradwatch.harness.project.machines import memory

#: Seconds of processor time for a check where no budget is given. On a busy machine as
#: much is tried as on a quiet one.
BUDGET = 30.0
#: Bytes that judging takes at least for each element that a call computes: a float64.
LEAST = 8
#: Elements of the inputs from which memory is thought of.
MANY = 1 << 20
#: Seconds that an element takes at least; `OPERATION` has where it comes from.
FASTEST = 0.5e-6


@dataclass
class Budget:
    """What is left of time and memory, as far as the trials until now tell.

    What a trial takes is estimated from the sizes of its graph, by the rate of the
    fastest that has run; its `cost` is counted no further than a second number says.
    """

    seconds: float | None
    cost: Callable[[Trial, float], Cost]

    def __post_init__(self) -> None:
        self.allowed = BUDGET if self.seconds is None else self.seconds
        self.clock = time.process_time
        self.began, self.rate, self.most = self.clock(), math.inf, MOST
        self.memory = memory()

    def affordable(self, trials: Sequence[Trial], notes: list[str]) -> Iterator[Trial]:
        """The trials that fit; a note says which do not, and how to have them.

        The caller's own come first, always.

        Raises:
            ValueError: One of these alone needs more memory than there is.
        """
        own = [trial for trial in trials if trial.as_given]
        for trial in own:
            if sum(trial.sizes) >= MANY:
                elements = self.cost(trial, math.inf).elements
                require_memory(trial.name, elements, self.memory)
        for trial in own:
            yield from self._timed(trial)
        waiting = [trial for trial in trials if not trial.as_given]
        for _ in range(2):  # what was too slow by the first times gets another look
            later = list[Trial]()
            for trial in waiting:
                if self._fits(trial):
                    yield from self._timed(trial)
                else:
                    later.append(trial)
            waiting = later
        if waiting:
            more = self.clock() - self.began + sum(map(self._seconds, waiting))
            whole = all(self.cost(trial, 0.0).whole for trial in waiting)
            needs = f"{math.ceil(more)}{'' if whole else ' or more'}"
            names = "; ".join(dict.fromkeys(trial.name for trial in waiting))
            notes.append(
                f"left out, the budget being {self.allowed:g} s: {names};"
                f" budget={needs} has them"
            )

    def _timed(self, trial: Trial) -> Iterator[Trial]:
        before = self.clock()
        yield trial
        took = self.clock() - before
        if all(trial.sizes):  # else another process has spent the time
            cost = self.cost(trial, math.inf)
            self.rate = min(self.rate, took / cost.work or FASTEST)  # a coarse clock
            self.most = max(self.most, cost.elements * trial.as_given)

    @property
    def room(self) -> float:
        """What still fits, in elements."""
        left = self.allowed - (self.clock() - self.began)
        return left / min(self.rate, FASTEST)

    def _seconds(self, trial: Trial) -> float:
        return self.rate * self._cost(trial).work

    def _fits(self, trial: Trial) -> bool:
        if self.seconds is None and self._cost(trial).elements > self.most:
            return False  # hundreds of bytes an element, of no size that was asked for
        return self.clock() - self.began + self._seconds(trial) <= self.allowed

    def _cost(self, trial: Trial) -> Cost:
        """What it takes; without elements nothing, and it may not even run."""
        return self.cost(trial, self.room) if all(trial.sizes) else Cost(0, 0)


def require_memory(name: str, elements: int, has: int) -> None:
    """Refuse what would end the process.

    Raises:
        ValueError: The numbers alone are more than the memory.
    """
    if elements * LEAST > has:
        raise ValueError(
            f"{name} needs some {elements * LEAST / 2**30:.3g} GiB, and this machine"
            f" has {has / 2**30:.3g} GiB: give smaller inputs"
        )


def out_of_memory(error: Exception) -> str:
    """How much was asked for, and how much there is; "" if that is not why."""
    said = re.search(r"allocate ([\d.]+) ?([KMGTP]?i?B|bytes)", str(error))
    if said is None:
        return "needs more memory" if isinstance(error, MemoryError) else ""
    size, unit = float(said[1]), said[2]
    needs = f"{size / 2**30:.3g} GiB" if unit == "bytes" else f"{size:g} {unit}"
    return (
        f"needs {needs} in one piece, and this machine has {memory() / 2**30:.3g} GiB"
    )


def give_back() -> None:
    """Return what a check has freed to the system: glibc keeps it."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
