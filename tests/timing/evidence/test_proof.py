"""Whether a time may be shown, with a worker that is played."""

import math
import time

import pytest

from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.timing.evidence import proof
from gradwatch.harness.timing.evidence.proof import (
    EACH,
    LENGTHS,
    TRIES,
    Judge,
    why_refused,
)
from gradwatch.harness.timing.evidence.rotation import Place
from gradwatch.harness.workers import integrity
from gradwatch.harness.workers.arrays import pack, unpack
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
    tensors, dtypes = {"y": pack(y)}, {"y": "float32"}
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
    ):
        self.place, self.results, self.against = Place(judge.sources), results, against
        self.takes, self.shown, self.wrong = list(takes), shown, wrong
        self.seen = seen
        self.passed, self.worked, self.asked = 0.0, 0.0, 0

    waited_seconds = staticmethod(dict)

    def cpu_seconds(self):
        return self.worked

    def ask(self, request, **payload):
        if request == "kept":
            return {"results": {"forward": self.results}, "against": self.against}
        if request == "draw":
            self.place.draw(unpack(payload["picks"]))
            return {"in_place": True, "shown": self.shown}
        if request == "computed":
            y = self.place.problem.inputs["x"] ** 2
            y[-1] += self.wrong
            tensors, dtypes = {"y": pack(y)}, {"y": "float32"}
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
    return why_refused(line, "one", judge, {"forward": CLAIMED})


def test_an_honest_step_is_not_refused(judge, monkeypatch):
    assert refusal(PlayedWorker(judge, [result(judge)]), judge, monkeypatch) == ""


SLOW, TWO_CORES = (3.1, 0.5), (1.0, 1.6)
LIES = {
    "against": ({"against": ["opens a file"]}, "opens a file"),
    "slow": ({"takes": [SLOW] * TRIES}, "310 us by the clock here on unseen numbers"),
    "cores": ({"takes": [TWO_CORES] * TRIES}, "and 160 us of all cores"),
    "device": ({"shown": 0.1}, "its timer shows 10% of what a forward takes"),
    "callers": ({"seen": ["looks at its callers"]}, "looks at its callers"),
    "numbers": ({"wrong": 0.01}, "a timed forward is wrong: disagree: y["),
}


@pytest.mark.parametrize("lie", LIES)
def test_each_lie_of_a_worker_is_refused_by_name(lie, judge, monkeypatch):
    options, expected = LIES[lie]
    assert expected in refusal(PlayedWorker(judge, **options), judge, monkeypatch)


def test_a_wrong_result_among_right_ones_is_refused(judge, monkeypatch):
    line = PlayedWorker(judge, [result(judge), result(judge, wrong=0.01)])
    assert "a timed forward is wrong: disagree: y[" in refusal(line, judge, monkeypatch)


@pytest.mark.parametrize("once", [SLOW, TWO_CORES])
def test_a_disturbance_that_ends_is_no_lie(once, judge, monkeypatch):
    line = PlayedWorker(judge, takes=[once] * (TRIES - 1))
    assert refusal(line, judge, monkeypatch) == ""


@pytest.mark.parametrize(("takes", "refused"), [(4.0, False), (20.0, True)])
def test_a_thread_that_waits_hides_no_more_than_work_on_a_busy_machine_waits(
    takes, refused, judge, monkeypatch
):
    """The calls' own work is as claimed; the rest is done elsewhere, meanwhile."""
    line = PlayedWorker(judge, takes=[(takes, 1.0)] * TRIES)
    line.waited_seconds = lambda: {(1, 2): line.passed - line.worked}
    told = refusal(line, judge, monkeypatch)
    assert ("by the clock here on unseen numbers" in told) is refused


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
            "tensors": {"y": pack(sources[seed].inputs["x"] ** 2)},
            "dtypes": {"y": "float64"},
        }
        for seed in seeds
    ]
    assert Judge(sources).why_any_wrong({"forward": results}) == ""
    results[wrong]["tensors"] = {"y": pack(2 * sources[wrong].inputs["x"] ** 2)}
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
    result = {"tensors": {"dx": pack(gradient)}, "dtypes": {"dx": "float64"}}
    judge = Judge(both)
    one, other = (
        {"backward": [{**result, "inputs": inputs, "cotangents": 1 - inputs}]}
        for inputs in (1, 0)
    )
    assert judge.why_any_wrong(one) == ""
    assert judge.why_any_wrong(other) != ""
