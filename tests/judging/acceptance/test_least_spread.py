"""The least that the spread can be is less than the spread."""

import numpy as np
import pytest

from gradwatch.harness.judging.acceptance.least_spread import SURE, least_radii
from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.judging.reference import reference, reference_of_graph
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.impls import catalogue, graph
from gradwatch.impls.contract import Problem

OPS = ("layer_norm", "softmax", "batch_norm", "attention", "glu", "rotary", "swiglu")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", OPS)
def test_neither_radius_is_less(op, dtype):
    page = catalogue.load_op(op)
    case = next(iter(page.cases.values()))
    right = reference(trial(page, case, REGIMES["normal"], dtype).problem)
    errors = right._errors("first", right.arithmetics[-1])
    for name, measured in right.spreads().items():
        node = right.graphs["first"][name]
        if node.value.dtype.kind == "f":
            least = least_radii(node, np.arange(node.size), errors)
            assert (least.spread <= measured.reshape(-1)).all()
            assert (least.bound <= right.truths["first"][name].radius.reshape(-1)).all()


def test_what_goes_two_ways_that_cancel_is_no_rounding_of_the_result():
    """(3 x + t) - 3 x: 3 x is rounded once, and the result does not depend on it."""
    x, t = graph.variable(np.array([1e6 / 3])), graph.variable(np.array([1.5]))
    product = x * 3.0
    right = reference_of_graph(lambda: {"y": (product + t) - product}, "float32")
    node = right.graphs["first"]["y"]
    errors = right._errors("first", right.arithmetics[-1])
    unit = right.arithmetics[-1].roundoff
    least = least_radii(node, np.arange(1), errors).spread[0]
    assert least == pytest.approx(SURE * unit * np.hypot(1e6 + 1.5, 1.5))  # the sum's


@pytest.fixture(scope="module")
def rows():
    """softmax of 16 rows in float64: reference, and PyTorch's formula in NumPy."""
    rng = np.random.default_rng(5)
    x, dy = rng.standard_normal((2, 16, 256))
    problem = Problem(catalogue.load_op("softmax"), {"x": x}, [dy], {"axis": -1})
    e = np.exp(x - x.max(-1, keepdims=True))
    y = e / e.sum(-1, keepdims=True)
    # An element whose gradient nearly cancels: dy there is the row's mean sum(dy y).
    dy[3, 7] = (dy * y).sum(-1)[3] - y[3, 7] * dy[3, 7]
    dy[3, 7] /= 1 - y[3, 7]
    right = reference(problem)
    return right, y * (dy - (dy * y).sum(-1, keepdims=True))


def judged(right, dx):
    dtypes = {"dx": "float64"}
    (found,) = judge_tensors(right, {"dx": dx}, dtypes, dtype="float64")
    return found.verdict


@pytest.mark.parametrize("radii", [0.1, 0.5, 0.9, 1.1, 2.0, 10.0])
def test_an_error_in_a_cancelled_element_has_the_verdict_of_the_spread(rows, radii):
    right, dx = rows
    off = np.where(right.spreads()["dx"] < np.inf, right.spreads()["dx"], 0)
    wrong = dx.copy()
    exact = right.graphs["first"]["dx"].value
    wrong[3, 7] = exact[3, 7] + radii * right.limit * off[3, 7]
    assert (judged(right, wrong) == "agree") == (radii < 1)
