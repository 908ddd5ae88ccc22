"""A platform that flushes subnormal numbers: right as that, and in nothing else."""

from dataclasses import replace

import numpy as np
import pytest

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.judgement import FLUSHED
from gradwatch.harness.judging.question import Question
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.workers.pool import Outcome, Task
from gradwatch.impls.catalogue import load_op
from gradwatch.impls.contract import Problem, Result

TINY = np.finfo(np.float32).tiny
X = np.array([TINY / 4, -TINY / 4, 1.0, -1.0], np.float32)
DY = np.array([3.0, 3.0, 3.0, 3.0], np.float32)
PROBLEM = Problem(load_op("relu"), {"x": X}, [DY], dtype="float32")
DTYPES = {"y": "float32", "dx": "float32"}
FLUSHING = ("jax", "tensorflow")

#: relu of X where the first two are zero, and slopes that are right there: any share.
Y, DX = np.array([0.0, 0, 1, 0]), np.array([1.5, 1.5, 3, 0])


def judged(dx, *, framework="jax", y=Y, problem=PROBLEM):
    result = Result({"y": y.astype("f4")}, {"dx": dx.astype("f4")}, {}, DTYPES)
    task = Task(Trial("relu", "", "", problem), f"{framework}_formula", problem.device)
    return list(Outcome(task, "result", result).judged(Question.of(problem)))


@pytest.mark.parametrize("framework", FLUSHING)
def test_what_is_right_for_flushed_inputs_is_right_where_that_is_declared(framework):
    dx, _ = judged(DX, framework=framework)
    assert (dx.verdict, dx.convention) == ("convention", FLUSHED)


def test_it_is_wrong_where_nothing_is_declared():
    assert not judged(DX, framework="torch")[0].passes


def test_it_is_wrong_on_another_device():
    assert not judged(DX, problem=replace(PROBLEM, device="cuda"))[0].passes


@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("framework", FLUSHING)
def test_a_planted_error_in_the_same_problem_is_still_wrong(place, framework):
    planted = DX.copy()
    planted[place] -= 3.5
    assert not judged(planted, framework=framework)[0].passes


def test_what_is_right_as_it_stands_is_not_called_flushed():
    exact = np.where(X > 0, X, 0)
    assert {j.convention for j in judged(np.where(X > 0, DY, 0), y=exact)} == {""}


def test_zeros_keep_the_signs_of_what_they_replace():
    zeros = reference(PROBLEM).flush(X)
    assert np.signbit(zeros).tolist() == [False, True, False, True]
    assert zeros.tolist() == [0, 0, 1, -1]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_without_subnormal_numbers_nothing_is_judged_again(dtype):
    inputs = {"x": DY.astype(dtype)}
    normal = replace(PROBLEM, inputs=inputs, cotangents=[DY], dtype=dtype)
    assert reference(normal).flushed is None


def test_those_of_float16_are_computed_in_float32():
    x = np.array([1e-7], np.float16)
    inputs = {"x": x}
    narrow = replace(PROBLEM, inputs=inputs, cotangents=[x], dtype="float16")
    assert reference(narrow).flushed is None


def test_the_precision_inside_stays_where_inputs_are_flushed():
    flushed = reference(PROBLEM, "tf32").flushed
    assert [arithmetic.name for arithmetic in flushed.arithmetics] == ["tf32"]
