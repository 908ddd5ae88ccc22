"""A timer that looks at the calls it times: nothing may go on outside its clock.

Around each sample the values of the step change, and forbidden calls are noted. All of
it is outside the clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from gradwatch.harness.timing.evidence.rotation import Rotation
from gradwatch.harness.timing.timers import Reading, Run, Timer
from gradwatch.harness.workers.integrity import Watch


@cache
def _watch() -> Watch:
    """One for the process: an audit hook stays for good."""
    return Watch()


def call_watched(rotation: Rotation, phase: str, calls: int) -> None:
    """Call a phase on drawn numbers, and note forbidden calls."""
    watch = _watch()
    watch.on = True
    rotation.call(phase, calls)
    watch.on = False
    rotation.calls_seen |= watch.seen
    watch.seen.clear()


class RotatingPhase:
    """A forward or a backward of a step that moves, called and waited for."""

    def __init__(self, rotation: Rotation, phase: str) -> None:
        self.rotation, self.phase = rotation, phase
        self.settle()

    def settle(self) -> None:
        """Look up the methods of the step at its turn: not inside the clock."""
        step = self.rotation.step(self.phase)
        self.run: Callable[[], None] = getattr(step, self.phase)
        self.wait = step.wait

    def __call__(self) -> None:
        """Run it once."""
        self.run()


@dataclass(frozen=True)
class WitnessedTimer:
    """Times calls on values that have just changed, and keeps some results.

    With `warm`, calls that are not timed come first: once, or for `least` nanoseconds.
    A process that slept until it was asked finds its core slow, and in turn with others
    a call finds the caches as they left them and the threads of its framework asleep:
    beside four others, log_softmax takes OneFlow four times what it takes it alone.
    That is no property of it, and would change in the history whenever a neighbour
    does.
    """

    timer: Timer
    warm: bool = False
    least: int = 0

    @property
    def now(self) -> Callable[[], int]:
        """The host's nanoseconds."""
        return self.timer.now

    @property
    def shortest(self) -> float:
        """Seconds of the shortest sample."""
        return self.timer.shortest

    def __call__(self, run: Run, calls: int) -> Reading:
        """Change the values, take the sample, keep what its last call computed.

        What runs right before a call slows it down by leaving its own code and data in
        the caches, so there is little of it after the warm-up.
        """
        assert isinstance(run, RotatingPhase)
        rotation, watch = run.rotation, _watch()
        rotation.change(run.phase)
        run.settle()
        watch.on = True
        if self.warm:
            self._warm_up(run)
        rotation.refresh(run.phase)
        if not rotation.in_place:
            run.settle()
        reading = self.timer(run, calls)
        watch.on = False
        rotation.calls_seen |= watch.seen
        watch.seen.clear()
        rotation.note(run.phase)
        return reading

    def _warm_up(self, run: RotatingPhase) -> None:
        begun = self.now() if self.least else 0
        while True:
            run()
            run.wait()
            if not self.least or not 0 <= self.now() - begun < self.least:
                return  # the page may have patched the clock
