"""Inputs that change while they are timed, and results kept from timed calls.

Before a sample, outside the clock, other numbers are written into an input or a
cotangent; where a tensor is a copy of its array, the step is made again. The results of
some random calls and of the last one are kept, to be judged when the clock has stopped.
All steps timed in turn share the same arrays: the addresses of these matter more than
most differences between two implementations.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from gradwatch.harness.timing.timers import Reading, Timer, aligned
from gradwatch.harness.workers.arrays import encoded
from gradwatch.harness.workers.evaluate import copied
from gradwatch.harness.workers.integrity import Watch, new_children
from gradwatch.impls.contract import Array, Backend, Problem, Result, Step

PHASES = ("forward", "backward")
#: Results kept of each phase beside the last: an implementation that cheats in half of
#: its calls passes with a chance of 1 in 512.
KEPT = 8
#: The chance that inputs change, so that a backward gets a new graph: in the first
#: `EARLY` samples of a phase, and later. Cotangents change before every sample of a
#: backward. A new graph costs the time of a sample or two, and moves the gradients to
#: other addresses: a backward compared with itself (layer_norm 256x1024, 2 s) had a
#: standard deviation of 0.17 % with the first chance throughout, else 0.14 %.
INPUTS_CHANGE, EARLY, INPUTS_CHANGE_LATER = 0.25, 16, 1 / 16


def unforeseen() -> int:
    """A seed that no page can know, so that none can foresee which calls are judged."""
    return random.SystemRandom().randrange(1 << 31)


class Place:
    """Arrays of a problem at fixed addresses, shared by all steps timed in turn.

    Sources differ at few elements, and only these are overwritten, which leaves the
    caches as they are. A row is one of the sources, or of the sets of numbers drawn
    later. `row` is the one whose inputs are in the arrays, and `written` counts its
    changes: a graph is of the inputs that were there when its forward ran.
    """

    def __init__(self, sources: Sequence[Problem]) -> None:
        self.problem = aligned(sources[0])
        self.row = self.written = 0
        self._inputs = [
            _Moves(array, [one.inputs[name] for one in sources])
            for name, array in self.problem.inputs.items()
            if name not in self.problem.op.state  # it belongs to the op and stays
        ]
        self._cotangents = [
            _Moves(array, [one.cotangents[at] for one in sources])
            for at, array in enumerate(self.problem.cotangents)
            if array is not None
        ]

    def write_inputs(self, row: int) -> None:
        """Write a row's inputs at the same addresses."""
        if row != self.row:
            for moves in self._inputs:
                moves.write(row)
            self.row = row
            self.written += 1

    def write_cotangents(self, row: int) -> None:
        """Write a row's cotangents at the same addresses."""
        for moves in self._cotangents:
            moves.write(row)

    def draw(self, picks: Array | None) -> None:
        """Draw unseen sets of numbers, one for each row of `picks`; write the first.

        They are the numbers of all sources, permuted, at other places in their array.
        Without `picks` the rows are the sources again.
        """
        for moves in (*self._inputs, *self._cotangents):
            moves.draw(picks)
        self.row = -1
        self.write_inputs(0)
        self.write_cotangents(0)


class _Moves:
    """An array, the places where rows differ, and the values of each row there."""

    def __init__(self, array: Array, values: Sequence[Any]) -> None:
        self.flat = array.reshape(-1)
        differs = [value != values[0] for value in values[1:]]
        self.usual = self.places = np.flatnonzero(np.logical_or.reduce(differs))
        self.known = np.stack([value.reshape(-1)[self.usual] for value in values])
        self.rows, self.before = self.known, self.flat[self.usual]

    def write(self, row: int) -> None:
        self.flat[self.places] = self.rows[row]

    def draw(self, picks: Array | None) -> None:
        """Pick values for each row of `picks`; targets and indices stay.

        Their places are drawn, too: a page might compute only at the usual ones. Zeros
        stay: they may be structure.
        """
        self.flat[self.places] = self.before
        self.places, self.rows = self.usual, self.known
        self.write(0)
        if picks is not None and self.flat.dtype.kind == "f" and self.known.size:
            high, low = picks[0].astype(np.int64), np.roll(picks[0], 1)
            places = np.unique(((high << 15) + low) % self.flat.size)
            self.places = places[self.flat[places] != 0]
            columns = np.arange(self.places.size) % picks.shape[1]
            self.rows = self.known.ravel()[picks[:, columns] % self.known.size]
        elif picks is not None:
            self.rows = np.broadcast_to(self.known[0], (len(picks), self.places.size))
        self.before = self.flat[self.places]


class Rotation:
    """One backend's step at two places, forwards timed at one, backwards at the other.

    Args:
        backend: Prepares the steps.
        places: Two, shared by all steps that are timed in turn.
        sources: Problems that differ in their numbers; results are judged by them.
        seed: The seed of all draws, equal for all steps timed in turn, so that they get
            the same changes in the same order; see `unforeseen`.
    """

    def __init__(
        self,
        backend: Backend,
        places: Sequence[Place],
        sources: Sequence[Problem],
        seed: int,
    ) -> None:
        self.backend, self.places, self.sources = backend, places, sources
        self.random = random.Random(seed)
        self.steps = [backend.prepare(place.problem) for place in places]
        # The types that results may have: those of tensors before any call.
        given: Any = self.steps[0]
        self.types = {type(one) for one in (*given.cotangents, None)}
        if np.ndarray in self.types:
            self.types |= {*np.sctypeDict.values()}
        self.graphs = [-1, -1]  # what `written` was when each step's forward ran
        self.inputs, self.cotangents = [0, 0], [0, 0]  # their source, at each place
        self.kept: dict[str, list[dict[str, Any]]] = {"forward": [], "backward": []}
        self.timed = {"forward": 0, "backward": 0}
        self.odd: set[str] = set()
        self.calls_seen: set[str] = set()
        self.next = 0  # the source that is written before the next sample
        self.in_place = self._sees_what_is_written()

    def step(self, phase: str) -> Step:
        """Return the step whose phase is timed."""
        return self.steps[PHASES.index(phase)]

    def run(self, phase: str, place: int) -> None:
        """Call a phase at a place once, and wait for it."""
        step = self.steps[place]
        getattr(step, phase)()
        step.wait()
        if phase == "forward":
            self.graphs[place] = self.places[place].written

    def change(self, phase: str) -> None:
        """Write other inputs in some samples, outside the clock, and make their graph.

        A new graph is swept once, and later with other cotangents.
        """
        place = PHASES.index(phase)
        often = INPUTS_CHANGE if self.timed[phase] < EARLY else INPUTS_CHANGE_LATER
        if self.random.random() < often:
            self._write_inputs(place, self.random.randrange(len(self.sources)))
        stale = self.in_place and self.graphs[place] != self.places[place].written
        if phase == "backward" and stale:
            self.inputs[place] = self.places[place].row
            self.run("forward", place)
            self.run("backward", place)
        if phase == "forward":
            self.next = self.random.randrange(len(self.sources))
        else:  # cotangents of the graph's source or the next: a pair is a reference
            after = self.inputs[1] + self.random.randrange(2)
            self.next = after % len(self.sources)

    def refresh(self, phase: str) -> None:
        """Write other numbers where the next call of a phase reads them; not timed."""
        if phase == "forward":
            self._write_inputs(0, self.next)
        elif self.in_place:
            self.cotangents[1] = self.next
            self.places[1].write_cotangents(self.next)

    def _write_inputs(self, place: int, source: int) -> None:
        self.inputs[place] = source
        if self.in_place:
            self.places[place].write_inputs(source)
        else:  # a copy in another precision, or on a device: made again
            self.cotangents[place] = source
            self.steps[place] = self.backend.prepare(self.sources[source])
            self.run("forward", place)
            self.run("backward", place)

    def _sees_what_is_written(self) -> bool:
        """Return whether the tensors of a step share memory with its arrays."""
        seen = set()
        for source, place in ((-1, 0), (0, 0), (0, 1)):
            self.places[place].write_inputs(source % len(self.sources))
            self.places[place].write_cotangents(0)
            self.run("forward", place)
            self.run("backward", place)
            if not place:
                seen.add(_bytes(self.steps[0].read()))
        return len(seen) > 1

    # --- results --------------------------------------------------------------------

    def note(self, phase: str) -> None:
        """Count a sample, and perhaps keep the result of its last call.

        Every sample has the same chance (reservoir sampling, Vitter 1985).
        """
        self.timed[phase] += 1
        kept = self.kept[phase]
        at = len(kept) if len(kept) < KEPT else self.random.randrange(self.timed[phase])
        if at < KEPT:
            kept[at : at + 1] = [self._result(phase)]

    # --- unseen numbers -------------------------------------------------------------

    def draw(self, phase: str, picks: Array) -> None:
        """Draw numbers for calls to come; a backward gets a graph of its own."""
        at = PHASES.index(phase)
        place = self.places[at]
        place.draw(picks)
        if not self.in_place:
            self.steps[at] = self.backend.prepare(place.problem)
        self.run("forward", at)
        self.run("backward", at)

    def call(self, phase: str, calls: int, *, only_write: bool = False) -> None:
        """Call a phase, each time on other drawn numbers where it shares the arrays.

        With `only_write`, only write the numbers, to measure how long that takes.
        """
        at = PHASES.index(phase)
        place, step = self.places[at], self.steps[at]
        forward = phase == "forward"
        write = place.write_inputs if forward else place.write_cotangents
        run, wait = (int, int) if only_write else (getattr(step, phase), step.wait)
        for row in range(calls):
            if self.in_place:
                write(row)
            run()
            wait()

    def computed(self, phase: str) -> dict[str, Any]:
        """Return the results of the last call, and write known numbers again."""
        result = self._result(phase)
        self.places[PHASES.index(phase)].draw(None)
        return result

    def results(self, phase: str) -> list[dict[str, Any]]:
        """Return the kept results and that of a last call; the same bits only once."""
        self.places[PHASES.index(phase)].draw(None)  # another step may have drawn
        self.change(phase)
        self.refresh(phase)
        self.run(phase, PHASES.index(phase))
        distinct = list[dict[str, Any]]()
        for result in (*self.kept[phase], self._result(phase)):
            if result not in distinct:
                distinct.append(result)
        return distinct

    def _result(self, phase: str) -> dict[str, Any]:
        """The result of a phase, encoded at once: no array of it stays in memory."""
        place = PHASES.index(phase)
        step: Any = self.steps[place]
        # A tensor of another type than those that the adapter makes may compute only
        # when it is read.
        for held in (getattr(step, "outputs", ()), getattr(step, "gradients", ())):
            values = held.values() if isinstance(held, dict) else held
            for kind in set(map(type, values)) - self.types:
                self.odd.add(f"returns a {kind.__name__}, which may compute later")
        result = step.read()
        tensors = result.outputs if phase == "forward" else result.gradients
        return {
            "inputs": self.inputs[place],
            "cotangents": self.cotangents[place],
            "tensors": encoded(copied(tensors)),
            "dtypes": dict(result.dtypes),
        }

    def against(self) -> list[str]:
        """Return a line for each act of timed calls that no honest backward needs."""
        seen = [f"{what} while it is timed" for what in sorted(self.calls_seen)]
        if more := new_children():
            seen.append(f"{more} processes that it started still run")
        return [*sorted(self.odd), *seen]


def _bytes(result: Result) -> bytes:
    # An old commit's Result has no `tensors`.
    every = (result.gradients, result.outputs, result.state)
    arrays = (array for one in every for array in one.values())
    return b"".join(array.tobytes() for array in arrays if array is not None)


# The timer --------------------------------------------------------------------------


#: The watch of this process: an audit hook cannot be removed.
_watch = cache(Watch)


@contextlib.contextmanager
def watched(rotation: Rotation) -> Iterator[None]:
    """Note forbidden calls in this block."""
    watch = _watch()
    watch.on = True
    yield
    watch.on = False
    rotation.calls_seen |= watch.seen
    watch.seen.clear()


def witnessed(
    rotation: Rotation, phase: str, timer: Timer, calls: int, *, least: int = 0
) -> Reading:
    """Change the values, take a sample of a phase, keep the result of its last call.

    Calls that are not timed come first: one, or as many as fit into `least` ns. After a
    process has slept, its core is slow, the caches are as the other steps left them and
    the threads of its framework sleep: beside four others, log_softmax takes OneFlow
    four times as long as alone. That is no property of it, and would change in the
    history whenever one of the others changes. Code right before a timed call slows it
    down by leaving its own code and data in the caches, so little is run after these.
    """
    rotation.change(phase)
    step = rotation.step(phase)
    with watched(rotation):
        begun = timer.now()
        while True:
            getattr(step, phase)()
            step.wait()
            if not 0 <= timer.now() - begun < least:
                break  # the page may have patched the clock
        rotation.refresh(phase)
        step = rotation.step(phase)  # `refresh` may have made another
        reading = timer(getattr(step, phase), calls, step.wait)
    rotation.note(phase)
    return reading
