"""Values change under the clock: an honest page is right, one that remembers is not.

Pages are played in NumPy; each planted one passes a judge that looks at one call.
"""

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.timing.proof import MOVED, Judge, variants
from gradwatch.harness.timing.rotation import (
    KEPT,
    PHASES,
    Place,
    Rotation,
    _bytes,
    witnessed,
)
from gradwatch.harness.timing.timers import HostTimer, Reading, timer_of
from gradwatch.impls.backends._functional import Functional
from gradwatch.impls.catalogue import load_backend, load_op
from gradwatch.impls.contract import Case, Op


def cube(x):
    return x * x * x, lambda dy: (3 * x * x * dy,)


def remembering(key):
    """A page that looks its output up by something else than its input's values."""
    known = {}

    def manual(x):
        if key(x) not in known:
            known[key(x)] = x * x * x
        return known[key(x)], lambda dy: (3 * x * x * dy,)

    return manual


def forgetful():
    """A page that stops working after so many calls."""
    calls = [0]

    def manual(x):
        calls[0] += 1
        y = x * x * x if calls[0] < 20 else np.zeros_like(x)
        return y, lambda dy: (3 * x * x * dy,)

    return manual


def keeping_its_gradient():
    """A page whose second sweep of a graph takes no notice of the cotangent."""

    def manual(x):
        made = []

        def backward(dy):
            made.append(3 * x * x * dy)
            return (made[0],)

        return x * x * x, backward

    return manual


PLANTED = {
    "by address": (remembering(lambda x: x.ctypes.data), "forward"),
    "by shape": (remembering(lambda x: x.shape), "forward"),
    "by its ends": (remembering(lambda x: (x.flat[0], x.flat[-1])), "forward"),
    "after some calls": (forgetful(), "forward"),
    "gradient kept": (keeping_its_gradient(), "backward"),
}


def sources_of(manual, size=64):
    op = Op("cube", inputs="x", cases=[], sizes=[Case("n", x=(size,))])
    op.implement("formula")(lambda xp, x: x * x * x)
    op.implement("manual")(manual)
    one = trial(op, op.sizes["n"], REGIMES["normal"], "float32")
    case = op.sizes["n"]
    others = (trial(op, case, REGIMES["normal"], "float32", s) for s in (1, 2))
    first, *rest = (each.problem for each in (one, *others))
    for each in rest[1:]:
        each.inputs["x"][[0, -1]] = first.inputs["x"][[0, -1]]
    return [first, *rest]


def rotation_of(manual=cube, seed=0):
    sources = sources_of(manual)
    places = [Place(sources), Place(sources)]
    return Rotation(load_backend("numpy_manual"), places, sources, seed)


def sampled(rotation, phase, samples=30):
    for _ in range(samples):
        witnessed(rotation, phase, timer_of(rotation.steps[0]), 2)
    return rotation


def reasons(rotation, phase):
    judge = Judge(rotation.sources)
    return [judge.why_any_wrong({phase: [r]}) for r in rotation.results(phase)]


@pytest.mark.parametrize("phase", PHASES)
def test_what_an_honest_page_computes_while_it_is_timed_is_right(phase):
    found = reasons(sampled(rotation_of(), phase), phase)
    assert set(found) == {""}
    assert 2 <= len(found) <= 6  # of three inputs, a backward's with two cotangents


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("phase", PHASES)
def test_where_a_step_has_copies_each_result_is_of_the_numbers_it_names(phase, seed):
    """As on a device; another step that is timed in turn has drawn meanwhile."""
    numpy = load_backend("numpy_manual")

    def prepare(problem):
        inputs = {name: array.copy() for name, array in problem.inputs.items()}
        dys = [array.copy() for array in problem.cotangents]
        return numpy.prepare(replace(problem, inputs=inputs, cotangents=dys))

    sources = sources_of(cube)
    places = [Place(sources), Place(sources)]
    copying = SimpleNamespace(prepare=prepare)
    rotation = sampled(Rotation(copying, places, sources, seed), phase)
    assert not rotation.in_place
    for place in places:
        place.draw(np.zeros((1, MOVED), np.int16))
    assert set(reasons(rotation, phase)) == {""}


def test_equal_results_are_handed_over_once():
    rotation = rotation_of()
    rotation._result = lambda phase: {"inputs": len(rotation.kept[phase]) % 2}
    for _ in range(KEPT):
        rotation.note("forward")
    assert rotation.results("forward") == [{"inputs": 0}, {"inputs": 1}]


@pytest.mark.parametrize("planted", PLANTED)
def test_a_page_that_remembers_is_wrong_while_it_is_timed(planted):
    manual, phase = PLANTED[planted]
    found = reasons(sampled(rotation_of(manual), phase), phase)
    assert any(why.startswith(f"a timed {phase} is wrong: disagree") for why in found)


def test_every_sample_has_the_same_chance_to_be_kept():
    """20 samples, 8 kept, 200 seeds: 80 of each; 5 standard deviations are 35."""
    kept = Counter()
    for seed in range(200):
        rotation = rotation_of(seed=seed)
        rotation._result = lambda phase, r=rotation: r.timed[phase]
        for _ in range(20):
            rotation.note("forward")
        kept.update(rotation.kept["forward"])
    assert sum(kept.values()) == 200 * KEPT
    assert all(45 <= kept[sample] <= 115 for sample in range(1, 21))


def test_steps_timed_in_turn_meet_the_same_changes():
    met = []
    for _ in range(2):
        rotation = rotation_of(seed=3)
        met.append([])
        for _ in range(20):
            rotation.change("backward")
            rotation.refresh("backward")
            met[-1].append((rotation.inputs[1], rotation.cotangents[1]))
    assert met[0] == met[1]
    assert len(set(met[0])) > 2


def test_state_belongs_to_the_op_and_is_not_written():
    op = load_op("batch_norm")
    case = next(iter(op.cases.values()))
    one = trial(op, case, REGIMES["normal"], "float32")
    first, second, _ = (each.problem for each in variants(one))
    place = Place([first, second])
    place.write_inputs(1)
    for name, array in place.problem.inputs.items():
        written = first if name in op.state else second
        np.testing.assert_array_equal(array, written.inputs[name])


def test_large_arrays_are_exchanged_in_few_elements():
    """Among them the largest, and the ends only once: they may be somebody's key."""
    op = load_op("square")
    one = trial(op, op.sizes["65536"], REGIMES["normal"], "float32")
    own, first, second = (each.problem.inputs["x"] for each in variants(one))
    for other, ends in ((first, 2), (second, 0)):
        differ = own != other
        assert MOVED // 2 < differ.sum() <= MOVED + 2
        assert differ[own.argmax()]
        assert differ[[0, -1]].sum() == ends


def test_drawn_numbers_lie_where_none_has_changed_and_go_again():
    op = load_op("square")
    one = trial(op, op.sizes["1024"], REGIMES["normal"], "float32")
    place = Place([source.problem for source in variants(one)])
    (moves,) = place._inputs
    known, random = moves.flat.copy(), np.random.default_rng(1)
    usual = {*moves.usual.tolist()}
    for _ in range(3):
        picks = random.integers(1 << 15, size=(4, MOVED), dtype=np.int16)
        place.draw(picks)
        place.write_inputs(3)
        changed = {*np.flatnonzero(moves.flat != known).tolist()}
        assert changed - usual
        assert changed <= {*moves.places.tolist()}
    place.draw(None)
    assert np.array_equal(moves.flat, known)


def test_a_place_has_the_numbers_of_the_source_that_was_written_last():
    sources = sources_of(cube, size=1000)
    place = Place(sources)
    for source in (1, 2, 0, 2):
        place.write_inputs(source)
        place.write_cotangents(source)
        for mine, theirs in (
            (place.problem.inputs["x"], sources[source].inputs["x"]),
            (place.problem.cotangents[0], sources[source].cotangents[0]),
        ):
            np.testing.assert_array_equal(mine, theirs)


# --- the timer around it --------------------------------------------------------------


class Still:
    """A rotation that stays where it is, of a step that writes down what is done."""

    def __init__(self):
        self.told, self.calls_seen, self.wait = [], set(), lambda: None
        self.step = lambda phase: self
        self.change = self.refresh = self.note = lambda phase: None
        self.in_place = True

    def forward(self):
        self.told.append("call")


class Timer:
    """Reads how many calls there were; each takes 2 ms."""

    def __init__(self, still):
        self.still = still

    def now(self):
        return len(self.still.told) * 2_000_000

    def __call__(self, run, calls, wait):
        self.still.told.append(f"sample of {calls}")
        return Reading(len(self.still.told) - 1)


def test_a_sample_is_taken_after_a_call_that_is_not_timed():
    still = Still()
    assert witnessed(still, "forward", Timer(still), 3) == Reading(1)
    assert still.told == ["call", "sample of 3"]


def test_a_process_that_slept_is_kept_awake_before_a_sample():
    """A call takes 2 ms by this clock: 5 ms are three."""
    still = Still()
    timer = Timer(still)
    assert witnessed(still, "forward", timer, 1, least=5_000_000) == Reading(3)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("waits", [True, False], ids=["waits", "forgets to"])
def test_what_an_asynchronous_framework_queues_is_waited_for_in_the_clock(waits, phase):
    """The door's wait takes 5 ms by this clock; a call returns at once."""
    queue, spent = [], [0]

    def vjp(call, wanted, others):
        queue.append("work")
        return {"y": wanted[0]}, lambda cotangents: queue.append("work")

    def wait(computed):
        spent[0] += 5_000_000 * len(queue)
        queue.clear()

    door = Functional("toy", "1", "formula", np, np.array, np.array, vjp)
    step = (replace(door, wait=wait) if waits else door).prepare(sources_of(cube)[0])
    step.forward()
    step.wait()
    timer = HostTimer(now=lambda: spent[0])
    reading = timer(getattr(step, phase), 2, step.wait)
    assert reading.seconds == (pytest.approx(5e-3) if waits else 0)


def test_a_file_that_is_opened_by_a_timed_call_is_seen():
    def manual(x):
        with open("/dev/null", encoding="ascii"):
            return cube(x)

    rotation = sampled(rotation_of(manual), "forward", samples=2)
    assert rotation.against() == ["opens a file while it is timed"]
    assert sampled(rotation_of(), "forward", samples=2).against() == []


def test_the_bytes_of_an_old_commit_s_result_are_read():
    """Its `Result` has no property `tensors`."""
    x, dx = np.array([1.0, 2.0]), np.array([3.0])
    old = SimpleNamespace(outputs={"y": x}, gradients={"dx": dx, "dw": None}, state={})
    assert _bytes(old) == dx.tobytes() + x.tobytes()
