"""Whether a time may be shown, with a worker that is played."""

import contextlib
import math
import time

import pytest

from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.timing import proof
from gradwatch.harness.timing.proof import (
    EACH,
    LENGTHS,
    LONGER,
    MEASURED,
    TRIES,
    Judge,
    proven,
)
from gradwatch.harness.timing.rotation import Place
from gradwatch.harness.workers import integrity
from gradwatch.harness.workers.arrays import encoded
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.harness.workers.worker import Worker
from gradwatch.impls.catalogue import load_op

CLAIMED = 1e-4  # seconds


@pytest.fixture(scope="module")
def judge():
    op = load_op("square")
    return Judge([trial(op, op.sizes["1024"], REGIMES["normal"], "float32").problem])


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch):
    monkeypatch.setattr(integrity, "_originals", {})
    monkeypatch.setattr(integrity, "_settings", {})


def result(judge, wrong=0.0):
    x = judge.sources[0].inputs["x"]
    y = x * x
    y[-1] += wrong
    tensors, dtypes = encoded({"y": y}), {"y": "float32"}
    return {"inputs": 0, "cotangents": 0, "tensors": tensors, "dtypes": dtypes}


class PlayedWorker:
    """A worker that squares; its calls take what it is told, here and of all cores.

    `takes` has that of each look: until it ends, the calls are as claimed.
    """

    facts = {"threads": 1}  # noqa: RUF012  # nobody writes to it
    framework = "torch"

    def __init__(
        self,
        judge,
        results=(),
        against=(),
        takes=(),
        shown=math.inf,
        wrong=0.0,
        seen=(),
        restless=0.0,
    ):
        self.place, self.results, self.against = Place(judge.sources), results, against
        self.takes, self.shown, self.wrong = list(takes), shown, wrong
        self.seen = seen
        self.unrest = lambda: restless
        self.passed, self.worked, self.asked = 0.0, 0.0, 0

    waited_seconds = staticmethod(float)

    def cpu_seconds(self):
        return self.worked

    def ask(self, request, **payload):
        if request == "kept":
            return {"results": {"forward": self.results}, "against": self.against}
        if request == "draw":
            self.place.draw(payload["picks"])
            return {"in_place": True, "shown": self.shown}
        if request == "computed":
            y = self.place.problem.inputs["x"] ** 2
            y[-1] += self.wrong
            tensors, dtypes = encoded({"y": y}), {"y": "float32"}
            return {"tensors": tensors, "dtypes": dtypes, "against": self.seen}
        trip = 3 * CLAIMED  # which says nothing of a call
        if payload["only_write"]:
            self.passed, self.worked = self.passed + trip, self.worked + trip
            return {}
        look = self.asked // (EACH * len(LENGTHS))
        passed, worked = self.takes[look] if look < len(self.takes) else (1.0, 1.0)
        self.asked += 1
        self.place.write_inputs(payload["calls"] - 1)
        self.passed += trip + payload["calls"] * passed * CLAIMED
        self.worked += trip + payload["calls"] * worked * CLAIMED
        return {}


def refusal(line, judge, monkeypatch):
    monkeypatch.setattr(proof, "_now", lambda: line.passed)
    line.measured = 0

    def take():
        line.measured += 1
        return line.measured, {"one": (line, {"forward": CLAIMED})}

    taken, refused = proven(take, judge)
    assert taken == line.measured  # the last samples are those that were proven
    return refused.get("one", "")


def test_an_honest_step_is_not_refused(judge, monkeypatch):
    assert refusal(PlayedWorker(judge, [result(judge)]), judge, monkeypatch) == ""


def test_what_shares_a_process_falls_together_and_nothing_else_does(judge, monkeypatch):
    wrong, line = PlayedWorker(judge, wrong=1), PlayedWorker(judge)
    monkeypatch.setattr(proof, "_now", lambda: wrong.passed + line.passed)
    claimed = {"forward": CLAIMED}
    claims = {"a": (wrong, claimed), "b": (wrong, {}), "c": (line, claimed)}
    _, refused = proven(lambda: (None, claims), judge)
    assert sorted(refused) == ["a", "b"]
    assert refused["b"] == "it shared a process with a, which is refused"


SLOW, TWO_CORES = (3.1, 0.5), (1.0, 1.6)
LOOKS = TRIES * MEASURED
LIES = {
    "against": ({"against": ["opens a file"]}, "opens a file"),
    "slow": ({"takes": [SLOW] * LOOKS}, "310 us by the clock here on unseen numbers"),
    "cores": ({"takes": [TWO_CORES] * LOOKS}, "and 160 us of all cores"),
    "device": ({"shown": 0.1}, "its timer shows 10% of what a forward takes"),
    "unrest": ({"restless": 0.2}, "a process of torch works while others are timed"),
    "callers": ({"seen": ["looks at its callers"]}, "looks at its callers"),
    "numbers": ({"wrong": 0.01}, "a timed forward is wrong: disagree: y["),
}


@pytest.mark.parametrize("lie", LIES)
def test_each_lie_of_a_worker_is_refused_by_name(lie, judge, monkeypatch):
    options, expected = LIES[lie]
    assert expected in refusal(PlayedWorker(judge, **options), judge, monkeypatch)


def test_what_a_page_writes_into_the_environment_allows_no_second_core(
    judge, monkeypatch
):
    """A worker's threads are those that it told before any page was read."""
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "2")
    line = PlayedWorker(judge, takes=[TWO_CORES] * LOOKS)
    assert "and 160 us of all cores" in refusal(line, judge, monkeypatch)
    with contextlib.closing(Worker(interpreter_of("numpy"))) as worker:
        assert worker.facts["threads"] == 1


def test_a_wrong_result_among_right_ones_is_refused(judge, monkeypatch):
    line = PlayedWorker(judge, [result(judge), result(judge, wrong=0.01)])
    assert "a timed forward is wrong: disagree: y[" in refusal(line, judge, monkeypatch)


@pytest.mark.parametrize("once", [SLOW, TWO_CORES])
@pytest.mark.parametrize("looks", [1, TRIES, LOOKS - 1])
def test_a_disturbance_that_ends_is_no_lie(looks, once, judge, monkeypatch):
    """However long it is: where a measurement has none without it, there is another."""
    line = PlayedWorker(judge, takes=[once] * looks)
    assert refusal(line, judge, monkeypatch) == ""
    assert line.measured == 1 + looks // TRIES


def test_work_that_no_machine_makes_so_much_is_measured_once(judge, monkeypatch):
    line = PlayedWorker(judge, takes=[(1.0, LONGER + 0.1)] * LOOKS)
    assert "310 us of all cores" in refusal(line, judge, monkeypatch)
    assert line.measured == 1


@pytest.mark.parametrize("takes", [4.0, 20.0])
def test_a_wait_for_a_core_is_no_lie_however_long(takes, judge, monkeypatch):
    line = PlayedWorker(judge, takes=[(takes, 1.0)] * LOOKS)
    line.waited_seconds = lambda: line.passed - line.worked
    assert refusal(line, judge, monkeypatch) == ""


def test_a_clock_that_was_replaced_over_here_is_seen(judge, monkeypatch):
    integrity.remember()
    monkeypatch.setattr(time, "perf_counter", lambda: 0.0)
    line = PlayedWorker(judge, [result(judge)])
    told = refusal(line, judge, monkeypatch)
    assert told == "time.perf_counter has been replaced"


@pytest.mark.parametrize("wrong", range(4))
def test_one_wrong_result_among_those_of_several_sources_is_found(wrong):
    op, seeds = load_op("square"), range(4)
    sources = [
        trial(op, op.cases["3"], REGIMES["normal"], "float64", seed).problem
        for seed in seeds
    ]
    results = [
        {
            "inputs": seed,
            "cotangents": seed,
            "tensors": encoded({"y": sources[seed].inputs["x"] ** 2}),
            "dtypes": {"y": "float64"},
        }
        for seed in seeds
    ]
    assert Judge(sources).why_any_wrong({"forward": results}) == ""
    results[wrong]["tensors"] = encoded({"y": 2 * sources[wrong].inputs["x"] ** 2})
    why = Judge(sources).why_any_wrong({"backward": [], "forward": results})
    assert why.startswith("a timed forward is wrong: disagree")


def test_numbers_of_two_sources_are_told_apart():
    """The kept result says whose inputs and whose cotangents it is of."""
    op = load_op("square")
    both = [
        trial(op, op.cases["3"], REGIMES["normal"], "float64", seed).problem
        for seed in (0, 1)
    ]
    gradient = 2 * both[1].inputs["x"] * both[0].cotangents[0]
    result = {"tensors": encoded({"dx": gradient}), "dtypes": {"dx": "float64"}}
    judge = Judge(both)
    one, other = (
        {"backward": [{**result, "inputs": inputs, "cotangents": 1 - inputs}]}
        for inputs in (1, 0)
    )
    assert judge.why_any_wrong(one) == ""
    assert judge.why_any_wrong(other) != ""
