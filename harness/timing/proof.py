"""Whether a time may be shown: the timed calls themselves are judged.

When the clock has stopped, a worker hands over what some of the timed calls computed,
to be judged against the numbers that lay there at that very call. And the clock of this
process, which a page over there cannot reach, must agree with the worker's.
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
from gradwatch.harness.judging.rounding.analysis import terms_of_scatter
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

#: Bound when this module is imported, which is before any page is.
_now = time.perf_counter

#: Seconds that a request for some calls takes about, and how many there are of each
#: length in one look. Two lengths, whose difference leaves out the trip to the worker;
#: the quickest of each, since a busy machine makes some of them slower, but not all.
ASKED, EACH, LENGTHS = 1e-3, 4, (1, 3)
MOST = 256  # calls that a request is for: each needs numbers of its own
#: What else runs on the machine only adds to what calls take. So the least of several
#: looks counts; and where it is more than was claimed, all is measured again, samples
#: too: an honest call is refused only if the machine is slower in each of so many
#: measurements, all the time in which it was looked at, than in half of the samples.
TRIES, MEASURED = 4, 5
WRITTEN = 50  # times that this process writes numbers to learn what that takes
#: How many times that the worker's writing may take, and seconds of what else is around
#: a call: two look-ups, an iteration, a cache that is cold after writing.
SLOWEST_WRITING, LOOP = 5.0, 1e-6
#: Results of these calls that are judged in each phase, beside those that were kept.
JUDGED = 2
#: What the events of a GPU must show of its work: all but what is allowed for a wait,
#: of which there is no more in many calls than in one.
SHOWN_BY_EVENTS = 0.9
#: How many times the figure one thread may work, which finds other things in the caches
#: and in the allocator than in a sample; and how many times the figure, for each
#: thread, may pass here: threads wait for each other at every barrier (3.6 times was
#: seen of two, beside six processes). No machine makes work three times as much.
MORE_WORK, LONGER = 1.15, 3.0
#: The share of its work that a worker may do while it is not asked: what it does then,
#: it does to whoever is timed. With one thread .2 to 1 % were seen, for the messages
#: themselves, and with one more that sorts 33 to 61 %.
RESTLESS = 0.1

#: Elements in which large arrays differ that are exchanged under the clock. To write so
#: few takes a microsecond, and leaves the caches to the calls that are timed.
MOVED = 128

#: How the reason begins of a step that is refused for another one alone.
BESIDE = "it shared a process with"

T = TypeVar("T")
Refused = dict[str, str]


def variants(one: Trial, seed: int = 0) -> list[Trial]:
    """A trial, and the same with other numbers, twice.

    Large arrays differ at `MOVED` places only: half are drawn, half are those of the
    largest numbers, on which maxima depend. The last has the trial's own first and last
    elements: whoever knows an input by its ends takes one for the other.
    """
    op, problem = one.problem.op, one.problem
    case = {**op.cases, **op.sizes}[one.case]
    others = []
    for extra in (1, 2):
        other = trial(
            op, case, REGIMES[one.regime], problem.dtype, seed + extra, one.op
        )
        rng = np.random.default_rng([seed, extra])
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
            kept[[0, -1]] = extra == 1
            np.copyto(array, own, where=~kept.reshape(array.shape))
        others.append(other)
    return [one, *others]


class Judge:
    """The questions of a trial's problems, each asked once for all backends."""

    def __init__(self, sources: Sequence[Problem], device: str = "cpu") -> None:
        self.sources, self.device = sources, device
        self.least = work(sources[0])
        self._questions: dict[tuple[int, int], Question] = {}

    def question(self, problem: Problem) -> Question:
        """What a result for a problem on this device is judged against."""
        return Question.of(problem, device=self.device)

    @cached_property
    def place(self) -> Place:
        """Where numbers are written over here, too."""
        return Place(self.sources)

    @cached_property
    def writing(self) -> float:
        """Seconds that it takes to write other numbers; the median of some."""
        self.place.draw(np.zeros((WRITTEN, MOVED), np.int16))
        times = list[float]()
        for row in range(WRITTEN):
            started = _now()
            self.place.write_inputs(row)
            self.place.write_cotangents(row)
            times.append(_now() - started)
        return statistics.median(times)

    def why_any_wrong(self, results: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
        """Return why a result kept by phase is wrong, or ""."""
        for phase, kept in results.items():
            for one in kept:
                inputs, dys = pair = one["inputs"], one["cotangents"]
                if pair not in self._questions:
                    given = self.sources[dys].cotangents
                    problem = replace(self.sources[inputs], cotangents=given)
                    self._questions[pair] = self.question(problem)
                if why := _why_unfit(self._questions[pair], one):
                    return f"a timed {phase} is wrong: {why}"
        return ""


def _why_unfit(asked: Question, result: Mapping[str, Any]) -> str:
    judged = asked.judge(decoded(result["tensors"]), result["dtypes"])
    return why_unfit((j.verdict, j.message) for j in judged)


#: By the key of a step its worker, and what a call is claimed to take, by phase.
Claims = Mapping[str, tuple[Worker, Mapping[Phase, float]]]


def proven(take: Callable[[], tuple[T, Claims]], judge: Judge) -> tuple[T, Refused]:
    """Return samples, and why times must not be shown, by the key of the step.

    Steps of one process stand or fall together: nobody can say which of them has slowed
    another, or made it look as if it cheated.

    Args:
        take: Prepares steps and samples them; called again where there is a doubt for
            which the machine may be to blame.
        judge: Knows the right answers.
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
    """Return that a worker has worked while others were timed, or ""."""
    for worker, _ in claims.values():
        # Several threads wait for each other in a loop, as do those that poll.
        polls = worker.facts["threads"] > 1 or traits_of(worker.framework).polls
        if not polls and worker.unrest() > RESTLESS:
            return f"a process of {worker.framework} works while others are timed"
    return ""


def _why_refused(
    worker: Worker, step: str, judge: Judge, claimed: Mapping[Phase, float]
) -> tuple[str, bool]:
    """Return why no time of a step may be shown, or "", and if no machine causes it."""
    evidence = worker.ask("kept", step=step)
    # What a page has changed over here counts, too.
    for against in (*evidence["against"], *integrity.changes()):
        return str(against), True
    why, surely = judge.why_any_wrong(evidence["results"]), True
    for phase, seconds in claimed.items():
        if not why:
            why, surely = _Bound(worker, step, phase, judge).why_refused(seconds)
    return why, surely


class _Bound:
    """What calls of a phase take by clocks that no page can reach, on unseen numbers.

    The numbers are drawn here when the samples have been taken. Calls on them are timed
    by the clock of this process and by the time of all cores that the kernel accounts
    to the worker; the results of some are judged. So neither a clock that is patched,
    nor an answer that is looked up, nor a second core is worth anything.
    """

    def __init__(self, worker: Worker, step: str, phase: Phase, judge: Judge) -> None:
        self.worker, self.judge, self.phase = worker, judge, phase
        self.asked = {"step": step, "phase": phase}
        self.least = {length: [math.inf] * 4 for length in LENGTHS}
        self.random = np.random.default_rng()
        self.in_place, self.shown, self.surely = False, math.inf, False

    def why_refused(self, claimed: float) -> tuple[str, bool]:
        """Return why a call cannot take so many seconds, or "", and if surely so.

        It is not sure of what may be the machine's doing.
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
        """Let the worker call a phase, note what that takes; return the numbers."""
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
        why = _why_unfit(self.judge.question(place.problem), result)
        return f"a timed {self.phase} is wrong: {why}" if why else ""

    def _why_quicker(self, calls: int, claimed: float) -> str:
        """Return why the claimed seconds are too few, or ""; of a CPU's time alone.

        Threads that poll keep their cores at work, and take them from each other.
        """
        if self.shown < math.inf or traits_of(self.worker.framework).polls:
            return ""
        short, long = (self.least[length] for length in LENGTHS)
        more = calls * (LENGTHS[1] - LENGTHS[0])
        # Where the short ones were luckier than the long ones, these alone say less.
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

_FREE = {
    *("reshape", "permute_dims", "broadcast_to", "stop_gradient", "gather"),
    *("take", "put"),  # primitives of older commits' engines
}


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
