"""Decides whether a time may be shown, by judging the timed calls themselves.

When the clock has stopped, a worker sends the results of some of the timed calls, which
are judged against the inputs of that very call. And the clock of this process, which a
page in the worker cannot reach, must agree with the worker's.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gradwatch.harness.judging.cases import REGIMES, Trial, is_floating, trial
from gradwatch.harness.judging.orders import nodes_of
from gradwatch.harness.judging.question import Question
from gradwatch.harness.project.records import Phase
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.timing.rotation import Place
from gradwatch.harness.workers import integrity
from gradwatch.harness.workers.arrays import decoded
from gradwatch.harness.workers.lifetime import Died
from gradwatch.harness.workers.pool import why_unfit
from gradwatch.harness.workers.worker import Worker
from gradwatch.impls import graph
from gradwatch.impls.contract import Array, Problem
from gradwatch.impls.graph.elements import terms_of_scatter

#: Bound when this module is imported, which is before any page is.
_now = time.perf_counter

#: Approximate seconds of a request for some calls, and the number of requests of each
#: length in one attempt. The difference of two lengths excludes the trip to the worker;
#: the quickest of each counts, since a busy machine makes some slower, but not all.
ASKED, EACH, LENGTHS = 1e-3, 4, (1, 3)
MOST = 256  # calls of a request: each needs numbers of its own
#: Other load on the machine only adds to the time of calls. So the least of several
#: attempts counts; and where it is more than was claimed, samples and attempts are made
#: again: an honest call is refused only if the machine is slower in each of so many
#: measurements, during all of its attempts, than in half of the samples.
TRIES, MEASURED = 4, 5
WRITTEN = 50  # times that this process writes numbers to measure how long that takes
#: The most that writing may take in the worker, as a multiple of that here; and seconds
#: around a call: two look-ups, an iteration, a cache that is cold after writing.
SLOWEST_WRITING, LOOP = 5.0, 1e-6
#: Results of these calls that are judged in each phase, beside those that were kept.
JUDGED = 2
#: The share of a GPU's work that its events must show: all but an allowance for a wait,
#: which is no longer for many calls than for one.
SHOWN_BY_EVENTS = 0.9
#: The most processor time of one thread, as a multiple of the figure: its caches and
#: allocator are in another state than in a sample; and the most time here, for each
#: thread: threads wait for each other at every barrier (3.6 times was seen for two,
#: beside six processes). No machine state makes the work itself three times as much.
MORE_WORK, LONGER = 1.15, 3.0
#: The share of its work that a worker may do between requests, when it would disturb
#: the others that are timed. With one thread .2 to 1 % were seen, for the messages
#: themselves, and with one more thread, which sorts, 33 to 61 %.
RESTLESS = 0.1

#: Elements in which the large arrays of sources differ. Writing so few between calls
#: takes a microsecond, and hardly changes the caches.
MOVED = 128

#: The beginning of the reason for a step that is refused only because of another one.
BESIDE = "it shared a process with"

T = TypeVar("T")
Refused = dict[str, str]


def variants(one: Trial, seed: int = 0) -> list[Trial]:
    """A trial, and two more with other numbers.

    Large arrays differ at `MOVED` places only: half of them random, half those of the
    largest numbers, on which maxima depend. The last one has the trial's own first and
    last elements: a page that recognises inputs by their ends confuses the two.
    """
    op, problem = one.problem.op, one.problem
    case = {**op.cases, **op.sizes}[one.case]
    others = []
    for n in (1, 2):
        other = trial(op, case, REGIMES[one.regime], problem.dtype, seed + n, one.op)
        rng = np.random.default_rng([seed, n])
        arrays = [*other.problem.inputs.values(), *other.problem.cotangents]
        owns = [*problem.inputs.values(), *problem.cotangents]
        for array, own in zip(arrays, owns, strict=True):
            if array is None or own is None or array.size < 3 or not is_floating(array):
                continue
            kept = np.ones(array.size, bool)
            if array.size > MOVED:
                kept[:] = False
                kept[rng.choice(array.size, MOVED // 2, replace=False)] = True
                kept[np.argpartition(own, -MOVED // 2, axis=None)[-MOVED // 2 :]] = True
            kept[[0, -1]] = n == 1
            np.copyto(array, own, where=~kept.reshape(array.shape))
        others.append(other)
    return [one, *others]


class Judge:
    """The questions of a trial's problems, each asked once for all backends."""

    def __init__(self, sources: Sequence[Problem], device: str = "cpu") -> None:
        self.sources, self.device = sources, device
        self.least = work(sources[0])
        self._questions: dict[tuple[int, int], Question] = {}

    @cached_property
    def place(self) -> Place:
        """The arrays into which this process writes the same numbers."""
        return Place(self.sources)

    @cached_property
    def writing(self) -> float:
        """The median seconds for writing other numbers."""
        self.place.draw(np.zeros((WRITTEN, MOVED), np.int16))
        times = list[float]()
        for row in range(WRITTEN):
            started = _now()
            self.place.write_inputs(row)
            self.place.write_cotangents(row)
            times.append(_now() - started)
        return statistics.median(times)

    def why_any_wrong(self, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
        """Return why one of the kept results is wrong, or ""; they are by phase."""
        for phase, kept in results.items():
            for one in kept:
                inputs, dys = pair = one["inputs"], one["cotangents"]
                if pair not in self._questions:
                    given = self.sources[dys].cotangents
                    problem = replace(self.sources[inputs], cotangents=given)
                    self._questions[pair] = Question.of(problem, device=self.device)
                if why := _why_unfit(self._questions[pair], one):
                    return f"a timed {phase} is wrong: {why}"
        return ""


def _why_unfit(asked: Question, result: Mapping[str, Any]) -> str:
    judged = asked.judge(decoded(result["tensors"]), result["dtypes"])
    return why_unfit((j.verdict, j.message) for j in judged)


#: By the key of a step its worker, and the claimed seconds of a call, by phase.
Claims = Mapping[str, tuple[Worker, Mapping[Phase, float]]]


def proven(take: Callable[[], tuple[T, Claims]], judge: Judge) -> tuple[T, Refused]:
    """Return samples, and the reasons against showing times, by the key of the step.

    Steps of one process are refused together: any of them may have slowed another, or
    made it look as if it cheated.

    Args:
        take: Prepares steps and samples them; called again where there is a doubt that
            the machine may have caused.
        judge: Judges the results.
    """
    refused: Refused = {}
    for _ in range(MEASURED):
        taken, claims = take()
        if why := _unrest(claims):
            return taken, dict.fromkeys(claims, why)
        doubts: Refused = {}
        for step, (worker, claimed) in claims.items():
            if step in refused:
                continue
            try:
                why, surely = _why_refused(worker, step, judge, claimed)
            except Died as reason:
                why, surely = str(reason), True
            if why:
                (refused if surely else doubts)[step] = why
        if not doubts:
            break
    refused |= doubts
    spoilt = {claims[step][0]: step for step in refused}
    for step, (worker, _) in claims.items():
        if worker in spoilt:
            beside = f"{BESIDE} {spoilt[worker]}, which is refused"
            refused.setdefault(step, beside)
    return taken, refused


def _unrest(claims: Claims) -> str:
    """Return a message if a worker has computed while others were timed, else ""."""
    for worker, _ in claims.values():
        # Several threads wait for each other in a loop, and so do polling ones.
        polls = worker.facts["threads"] > 1 or traits_of(worker.framework).polls
        if not polls and worker.unrest() > RESTLESS:
            return f"a process of {worker.framework} works while others are timed"
    return ""


def _why_refused(
    worker: Worker, step: str, judge: Judge, claimed: Mapping[Phase, float]
) -> tuple[str, bool]:
    """Return why no time of a step may be shown, or ""; and whether that is certain."""
    evidence = worker.ask("kept", step=step)
    # Changes by a page to this process count, too.
    for against in (*evidence["against"], *integrity.changes()):
        return str(against), True
    why, surely = judge.why_any_wrong(evidence["results"]), True
    for phase, seconds in claimed.items():
        if not why:
            why, surely = _Bound(worker, step, phase, judge).why_refused(seconds)
    return why, surely


class _Bound:
    """The times of calls on unseen numbers, by clocks that no page can reach.

    The numbers are drawn here when the samples have been taken. Calls on them are timed
    by the clock of this process and by the processor time of all the worker's threads;
    the results of some are judged. So neither a patched clock, nor an answer that is
    looked up, nor a second core helps a page.
    """

    def __init__(self, worker: Worker, step: str, phase: Phase, judge: Judge) -> None:
        self.worker, self.judge, self.phase = worker, judge, phase
        self.asked = {"step": step, "phase": phase}
        self.least = {length: [math.inf] * 4 for length in LENGTHS}
        self.random = np.random.default_rng()
        self.in_place, self.shown, self.surely = False, math.inf, False

    def why_refused(self, claimed: float) -> tuple[str, bool]:
        """Return why a call cannot be so fast, or ""; and whether that is certain.

        It is not where the machine may have caused it.
        """
        calls = max(1, min(MOST, math.ceil(ASKED / claimed)))
        why = ""
        for attempt in range(TRIES):
            lengths = self.random.permutation(LENGTHS * EACH).tolist()
            for at, length in enumerate(lengths):
                picks = self._drawn(calls, length)
                if not attempt and at < JUDGED and (why := self._why_wrong(picks)):
                    return why, True
            if self.shown < SHOWN_BY_EVENTS:  # of a GPU's work
                why = f"its timer shows {self.shown:.0%} of what a {self.phase} takes"
            elif not (why := self._why_quicker(calls, claimed)):
                break
        return why, self.surely

    def _drawn(self, calls: int, length: int) -> Array:
        """Let the worker call a phase, note the times, and return the numbers drawn."""
        count = calls * length
        picks = self.random.integers(1 << 15, size=(count, MOVED), dtype=np.int16)
        drawn = self.worker.ask("draw", **self.asked, picks=picks, calls=calls)
        self.in_place, self.shown = drawn["in_place"], float(drawn["shown"])
        taken = list[float]()
        for only_write in (True, False):
            before = self.worker.waited_seconds()
            started, worked = _now(), self.worker.cpu_seconds()
            self.worker.ask("call", **self.asked, calls=count, only_write=only_write)
            seconds, work = _now() - started, self.worker.cpu_seconds() - worked
            seconds -= self.worker.waited_seconds() - before  # others had the cores
            taken += max(seconds, work / self.worker.facts["threads"]), work
        self.least[length] = list(map(min, self.least[length], taken))
        return picks

    def _why_wrong(self, picks: Array) -> str:
        """Return why the last call's result is wrong, or ""."""
        result = self.worker.ask("computed", **self.asked)
        for against in result.get("against", ()):
            return str(against)
        place, forward = self.judge.place, self.phase == "forward"
        place.draw(picks)
        write = place.write_inputs if forward else place.write_cotangents
        write(len(picks) - 1 if self.in_place else 0)
        asked = Question.of(place.problem, device=self.judge.device)
        why = _why_unfit(asked, result)
        return f"a timed {self.phase} is wrong: {why}" if why else ""

    def _why_quicker(self, calls: int, claimed: float) -> str:
        """Return why the claimed seconds are too few, or ""; only for a CPU.

        Not for threads that poll, which keep cores busy and take them from each other.
        """
        if self.shown < math.inf or traits_of(self.worker.framework).polls:
            return ""
        short, long = (self.least[length] for length in LENGTHS)
        more = calls * (LENGTHS[1] - LENGTHS[0])
        # Where the short requests were less disturbed, the long ones alone bound less.
        count = calls * LENGTHS[1]
        pairs = zip(short, long, strict=True)
        each = [min((b - a) / more, b / count) for a, b in pairs]
        most = SLOWEST_WRITING * self.judge.writing  # whatever a page does to it
        seconds, work = each[2] - min(each[0], most), each[3] - min(each[1], most)
        threads = self.worker.facts["threads"]
        longer = LONGER * threads
        more_work = MORE_WORK if threads == 1 else longer
        self.surely = work > longer * claimed + LOOP
        says = f"a {self.phase} takes {claimed * 1e6:.3g} us when sampled and "
        if work > more_work * claimed + LOOP:
            return f"{says}{work * 1e6:.3g} us of all cores on numbers it has not seen"
        if seconds > longer * claimed + LOOP:
            return f"{says}{seconds * 1e6:.3g} us by the clock here on unseen numbers"
        return ""


# The least work ---------------------------------------------------------------------

# Counted from the formula's graph, so no page has to state it. The bytes are those that
# every implementation must move: each input and each output once. The operations are
# those of the formula as written: one for each element of each primitive, two for each
# term of a matrix product.

_FREE = ("reshape", "permute_dims", "broadcast_to", "stop_gradient", "gather")


class Work(NamedTuple):
    """The work of one phase: bytes in and out, operations."""

    bytes: int
    flops: int


def work(problem: Problem) -> dict[str, Work]:
    """The least work of forward and of backward, without saved tensors."""
    held = next(a for a in problem.inputs.values() if a.dtype.kind not in "biu")
    nodes = nodes_of(problem, held.dtype)
    results = [nodes.pop(name) for name in problem.op.outputs + problem.op.state]
    forward = set(graph.topological_order(results))
    backward = set(graph.topological_order(nodes.values())) - forward
    made, given = (
        sum(node.value.nbytes for node in several)
        for several in (results, nodes.values())
    )
    inputs = sum(array.nbytes for array in problem.inputs.values())
    cotangents = sum(dy.nbytes for dy in problem.cotangents if dy is not None)
    return {
        "forward": Work(inputs + made, sum(map(_flops, forward))),
        "backward": Work(inputs + cotangents + given, sum(map(_flops, backward))),
    }


def _flops(node: graph.Node) -> int:
    name = node.primitive.name if node.primitive else ""
    if not name or name in _FREE:
        return 0
    if name == "matmul":
        return 2 * node.size * node.inputs[0].shape[-1]
    if name in ("sum", "sum_to", "max", "argmax", "pick"):
        return node.inputs[0].size
    if name == "scatter_add":  # the first value at a place is no addition
        more = np.maximum(terms_of_scatter(node) - 1, 0)
        return int(np.broadcast_to(more, node.shape).sum())
    return node.size
