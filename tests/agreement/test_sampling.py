"""What is judged of a framework that compiles every shape."""

import pytest

from gradwatch.harness.agreement.suite import explained, in_sample, precisions
from gradwatch.harness.judging.cases import trials
from gradwatch.impls.catalogue import load_op

SOFTMAX = list(trials(load_op("softmax"), regimes=["normal", "ties"]))


@pytest.mark.parametrize("backend", ["torch_formula", "autograd_formula"])
def test_what_does_not_compile_is_judged_whole(backend):
    assert all(in_sample(trial, backend) for trial in SOFTMAX)
    assert explained([backend]) == {}


@pytest.mark.parametrize("backend", ["jax_formula", "jax_jit", "jax_custom"])
def test_of_the_others_the_first_case_is_judged_in_every_regime(backend):
    chosen = [trial for trial in SOFTMAX if in_sample(trial, backend)]
    assert {trial.case for trial in chosen} == {"4x5"}
    assert {trial.regime for trial in chosen} == {"normal", "ties"}
    assert {t.problem.dtype for t in chosen} == {*precisions(backend)}


@pytest.mark.parametrize("backend", ["jax_jit", "torch_compile"])
def test_a_sample_is_in_c_order(backend):
    given = trials(load_op("softmax"), regimes=["normal", "sliced"])
    found = {one.layout for one in given if in_sample(one, backend)}
    assert found == {"contiguous"}


def test_the_reason_says_how_to_judge_the_rest():
    assert "--op" in explained(["jax_jit"])["jax_jit"]
    assert "in C order" in explained(["torch_compile"])["torch_compile"]
