"""Whether a time may be shown: the timed calls themselves are judged.

When the clock has stopped, a worker hands over what some of the timed calls computed.
These results are judged like any other, against the numbers that lay there at that very
call. And the clock of this process, which a page over there cannot reach, must agree
with the worker's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gradwatch.harness.judging.precisions import compute_on
from gradwatch.harness.judging.reference import Reference, reference
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.harness.project.records import Phase
from gradwatch.harness.timing.timers import SHORTEST
from gradwatch.harness.timing.work import work
from gradwatch.harness.workers import integrity
from gradwatch.harness.workers.arrays import unpack
from gradwatch.harness.workers.client import Line
from gradwatch.harness.workers.fitness import why_unfit
from gradwatch.impls.contract import Problem

#: Bound when this module is imported, which is before any page is.
_now = time.perf_counter

#: Seconds that the two clocks are held beside each other, the first time; how much
#: longer ours may be; and what a trip to a worker may take (0.3 ms on an idle machine).
#: A clock that shows less than 1 / 1.63 of what passes here is doubted in any case.
SPUN, LONGER, TRIP = 0.0075, 1.3, 0.0025
#: A doubt is looked at again, for twice as long each time: whatever else runs on the
#: machine makes some calls slower, but not all of them for seconds.
TRIES = 8
#: What a timer must show of a sample's own time, in the sample where it shows most:
#: reading the clock is less than a tenth of the shortest. A GPU's events show all but
#: what is allowed for a wait, of which there is no more in many calls than in one.
SHOWN, SHOWN_BY_EVENTS = 0.5, 0.9
#: How much slower than the figure the quickest call in a row may be, for each thread:
#: it finds other things in the caches and in the allocator, and several threads wait
#: for each other at every barrier (3.6 times was seen of two, beside six processes).
SLOWER = 3.0


class Judge:
    """The references of a trial's problems, each made once for all backends.

    A reference has outputs and gradients, so one will do for an output of its inputs,
    whatever the cotangents. Results of the same bits are judged once.
    """

    def __init__(self, sources: Sequence[Problem], device: str = "cpu") -> None:
        self.sources, self.device = sources, device
        self.least = work(sources[0])
        self._right: dict[tuple[int, int], Reference] = {}
        self._reasons: dict[Hashable, str] = {}

    def right(self, inputs: int, cotangents: int) -> Reference:
        """Return the reference for one source's inputs and another's cotangents."""
        if (inputs, cotangents) not in self._right:
            problem = replace(
                self.sources[inputs], cotangents=self.sources[cotangents].cotangents
            )
            compute = compute_on(self.device, problem.dtype)
            self._right[inputs, cotangents] = reference(problem, compute)
        return self._right[inputs, cotangents]

    def why_any_wrong(self, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
        """Return why a result kept by phase is wrong, or ""."""
        # The backward's first: a forward is judged by a backward's reference.
        reasons = (
            self._why_wrong(result, phase)
            for phase in sorted(results)
            for result in results[phase]
        )
        return next(filter(None, reasons), "")

    def _right_of(self, result: Mapping[str, Any], phase: str) -> Reference:
        """Return the reference of a result."""
        inputs, cotangents = result["inputs"], result["cotangents"]
        if phase == "forward":
            known = (dy for x, dy in self._right if x == inputs)
            cotangents = next(known, inputs)
        return self.right(inputs, cotangents)

    def _why_wrong(self, result: Mapping[str, Any], phase: str) -> str:
        right = self._right_of(result, phase)
        bits = (tuple(sorted(result[kind].items())) for kind in ("tensors", "dtypes"))
        key = phase, right, *bits
        if key not in self._reasons:
            self._reasons[key] = self._why_unfit(right, result)
        why = self._reasons[key]
        return f"a timed {phase} is wrong: {why}" if why else ""

    def _why_unfit(self, right: Reference, result: Mapping[str, Any]) -> str:
        tensors = {
            n: None if packed is None else unpack(packed)
            for n, packed in result["tensors"].items()
        }
        dtype = self.sources[0].dtype
        judged = judge_tensors(right, tensors, result["dtypes"], dtype=dtype)
        return why_unfit((j.verdict, j.message) for j in judged)


def why_refused(
    line: Line,
    step: str,
    judge: Judge,
    seconds: Mapping[Phase, float],
) -> str:
    """Return why the times of a step must not be shown, or "".

    Args:
        line: The worker that has timed it.
        step: The key of the step.
        judge: Knows the right answers.
        seconds: What a call is claimed to take, by phase.
    """
    kept = line.ask("kept", step=step)
    # What a page has changed over here counts, too.
    against = [*kept["against"], *integrity.changes()]
    why = why_not_believed({**kept, "against": against}, judge)
    for phase, claimed in seconds.items():
        why = why or _why_doubted(line, step, phase, claimed)
    return why


def why_not_believed(evidence: Mapping[str, Any], judge: Judge) -> str:
    """Return a reason against the timed calls, seen or judged, or ""."""
    for against in evidence["against"]:
        return str(against)
    return judge.why_any_wrong(evidence["results"])


def _why_doubted(line: Line, step: str, phase: str, claimed: float) -> str:
    """Return why the worker's clock is not believed, beside that of this process."""
    calls = max(1, min(1 << 12, math.ceil(SHORTEST / claimed)))
    least, shown, why = math.inf, 0.0, ""
    for attempt in range(TRIES):
        asked = {"step": step, "phase": phase, "calls": calls}
        started = _now()
        reply = line.ask("spin", **asked, seconds=SPUN * 2**attempt)
        elapsed, spun = _now() - started, reply["spun"]
        least_shown = SHOWN_BY_EVENTS if reply.get("by_events") else SHOWN
        least, shown = min(least, spun[1]), max(shown, spun[2])
        if elapsed > LONGER * spun[0] + TRIP:
            why = (
                f"its clock shows {spun[0] * 1e3:.3g} ms for calls of the {phase} "
                f"during which {elapsed * 1e3:.3g} ms pass here"
            )
        elif shown < least_shown:
            why = f"its timer shows {shown:.0%} of what calls of the {phase} take"
        elif least > SLOWER * line.facts["threads"] * claimed:
            why = (
                f"a {phase} takes {claimed * 1e6:.3g} us when sampled and at least "
                f"{least * 1e6:.3g} us in a row"
            )
        else:
            return ""
    return why
