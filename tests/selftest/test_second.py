"""Mistakes planted in double backwards are caught, and a lenient judge is noticed."""

from dataclasses import replace

import pytest

from gradwatch.harness.commands.selftest import FULL, QUICK, chosen, summarise, tasks
from gradwatch.harness.judging.cases import trials
from gradwatch.harness.selftest import examine as examining
from gradwatch.harness.selftest import mutants
from gradwatch.harness.selftest.examine import JUDGE, examine, read
from gradwatch.harness.selftest.mutants import DETACHED, EDGES, Sweep, mistakes
from gradwatch.harness.selftest.scoring import Score
from gradwatch.harness.workers.pool import Task
from gradwatch.impls.catalogue import framework_of, load_op

LINE = "double backward, float64, effect over 1e-06: at least 99.0% caught"


def score_of(ops, *, order="hvp", backends=("numpy_graph",), planted=True):
    score = Score()
    for op in map(load_op, ops):
        for one in trials(op, regimes=["normal"], dtypes=["float64"], orders=[order]):
            options = {"backends": [*backends], "planted": planted, "seed": 3}
            task = Task(one, "numpy_graph", options=options)
            score.add(one, *read(examine(task.payload())))
    return score


def required(score, orders=("hvp",)):
    summary = summarise(score, QUICK, ops=["silu"], orders=orders)
    return {one.required: one for one in summary.requirements}


@pytest.fixture(scope="module")
def tried():
    return score_of(["silu", "softmax"])


@pytest.mark.parametrize("kind", [*EDGES, *DETACHED])
def test_every_kind_of_mistake_is_planted_and_caught(tried, kind):
    (row,) = [
        one
        for one in summarise(tried).second_order
        if one.mistake == f"double backward: {kind}"
    ]
    assert row.caught == row.runs >= 8


def test_right_tensors_and_mistakes_meet_what_is_required(tried):
    assert all(one.met for one in required(tried).values())
    first = tried.of("vjp")  # they are counted apart from first orders
    assert first.runs == first.alarms == []


def test_a_judge_that_sees_nothing_is_noticed(monkeypatch):
    seen = examining.judge_tensors

    def nothing(*given, **named):
        return [replace(one, verdict="agree") for one in seen(*given, **named)]

    monkeypatch.setattr(examining, "judge_tensors", nothing)
    found = required(score_of(["silu"]))
    assert not found[LINE].met
    assert found[LINE].found.startswith("0 of ")


def test_a_right_tensor_that_is_accused_is_noticed(monkeypatch):
    judged = examining.judge_tensors
    monkeypatch.setattr(
        examining,
        "judge_tensors",
        lambda *given, **named: [
            replace(one, verdict="disagree") for one in judged(*given, **named)
        ],
    )
    score = score_of(["silu"], order="jvp", planted=False)
    assert not required(score, ("jvp",))["second order, no false alarm"].met


def test_without_right_tensors_their_least_number_is_not_met():
    found = required(score_of(["silu"], backends=(), planted=False))
    assert not found["1 right tensors of second order or more"].met


def test_when_nothing_was_planted_the_share_is_not_met():
    assert not required(score_of(["silu"], planted=False))[LINE].met


def test_a_mistake_that_moves_nothing_does_not_count(monkeypatch):
    monkeypatch.setitem(mutants.EDGES, "a term 1e-5 off", lambda term: term * 1.0)
    runs = score_of(["silu"]).counted
    assert "double backward: a term 1e-5 off" not in {run.mistake for _, run in runs}


def test_silently_constant_is_every_saved_tensor_without_its_history():
    """The sum of dx v is that of 2 x dy v for square: x is saved, so dx is None."""
    op = load_op("square")
    (one, *_) = trials(op, regimes=["normal"], dtypes=["float64"], orders=["hvp"])
    made = dict(mistakes(Sweep(one.problem), mutants.np.random.default_rng(0)))
    assert made["silently constant"]["hvp.dx"] is None
    assert made["silently constant"]["hvp.ddy"] is not None


def test_mistakes_are_planted_in_float64_by_the_leader_alone():
    asked = [
        (one.order, one.problem.dtype, task.request, framework_of(task.backend))
        for one in chosen(QUICK, ["silu"], 0, ("jvp", "hvp"))
        for task in tasks(one, QUICK, "torch")
        if task.options["planted"]
    ]
    assert asked == [("hvp", "float64", "examine", "torch")]


def test_the_full_extent_plants_in_each_of_its_regimes():
    assert set(mutants.PLANTED[1]) <= set(FULL.second["float64"])


def test_the_rivals_are_not_asked(tried):
    assert {run.asked for _, run in tried.counted} == {(JUDGE,)}
