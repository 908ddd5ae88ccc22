"""Section 6: the mistakes in the notes, planted and rejected.

That autograd is taken for numerical differentiation is answered in section 3.
"""

import numpy as np
import pytest

from gradwatch.harness import judge
from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.harness.project.requested import by_default
from gradwatch.impls import graph
from gradwatch.impls.catalogue import framework_of, load_op
from gradwatch.impls.contract import Problem
from tests.agreed import agree

RNG = np.random.default_rng(6)
X, W, B = (RNG.standard_normal(shape) for shape in ((4, 5), (3, 5), (3,)))
SQUARE, DY = RNG.standard_normal((2, 6, 6))
LAYER = {"eps": 1e-5}
BATCH = {"eps": 1e-5, "momentum": 0.1, "training": True}


def verdicts(op, inputs, dy, gradients, **more):
    return {j.tensor: j.verdict for j in judge(op, inputs, dy, gradients, **more)}


def gradients_of(formula, inputs, dy):
    """The exact gradients of a forward, which may be a wrong one."""
    leaves = [graph.variable(array) for array in inputs]
    return [g.value for g in graph.gradient([formula(*leaves)], [dy], leaves)]


def test_a_bias_gradient_that_is_not_summed_over_the_batch():
    """Row `linear: db = dy`: of the wrong shape, which broadcasting would hide."""
    dy = RNG.standard_normal((4, 3))
    right = [dy @ W, dy.T @ X, dy.sum(axis=0)]
    assert set(verdicts("linear", [X, W, B], dy, right).values()) == {"agree"}
    assert verdicts("linear", [X, W, B], dy, [*right[:2], dy])["dbias"] == "malformed"


def normalised(x, weight, bias, *, axes, outside):
    """Divides by sqrt(var + eps), or by sqrt(var) + eps where eps stands outside."""
    centred = x - graph.mean(x, axis=axes, keepdims=True)
    var = graph.mean(centred * centred, axis=axes, keepdims=True)
    inside = 0.0 if outside else 1e-5
    deviation = graph.sqrt(var + inside) + (1e-5 - inside)
    return centred / deviation * weight + bias


@pytest.mark.parametrize(("outside", "verdict"), [(False, "agree"), (True, "disagree")])
def test_a_layer_norm_with_eps_beside_the_root(outside, verdict):
    """Row `norms: xhat = (x - mean) / (sigma + eps)`."""
    inputs = [X, *RNG.standard_normal((2, 5))]
    dy = RNG.standard_normal((4, 5))

    def formula(x, weight, bias):
        return normalised(x, weight, bias, axes=(1,), outside=outside)

    gradients = gradients_of(formula, inputs, dy)
    found = verdicts("layer_norm", inputs, dy, gradients, attributes=LAYER)
    assert found == {"dx": verdict, "dweight": verdict, "dbias": "agree"}


@pytest.mark.parametrize(("outside", "verdict"), [(False, "agree"), (True, "disagree")])
def test_a_batch_norm_with_eps_beside_the_root(outside, verdict):
    """Row `norms: xhat = (x - mean) / (sigma + eps)`."""
    inputs = [X, *RNG.standard_normal((2, 5))]
    dy = RNG.standard_normal((4, 5))

    def formula(x, weight, bias):
        return normalised(x, weight, bias, axes=(0,), outside=outside)

    gradients = gradients_of(formula, inputs, dy)
    running = [np.zeros(5), np.ones(5)]
    found = verdicts("batch_norm", inputs + running, dy, gradients, attributes=BATCH)
    assert found == {"dx": verdict, "dweight": verdict, "dbias": "agree"}


@pytest.mark.parametrize(("ddof", "verdict"), [(1, "agree"), (0, "disagree")])
def test_a_running_variance_updated_with_the_biased_one(ddof, verdict):
    """Row `batch_norm`: frameworks use the unbiased variance for the running value."""
    op, parameters = load_op("batch_norm"), [np.ones(5), np.zeros(5)]
    running_mean, running_var = np.zeros(5), np.ones(5)
    arrays = [X, *parameters, running_mean, running_var]
    right = reference(
        Problem(op, dict(zip(op.inputs, arrays, strict=True)), [X], BATCH)
    )
    state = {
        "running_mean": 0.9 * running_mean + 0.1 * X.mean(axis=0),
        "running_var": 0.9 * running_var + 0.1 * X.var(axis=0, ddof=ddof),
    }
    dtypes = dict.fromkeys(state, "float64")
    found = judge_tensors(right, state, dtypes)
    assert [j.verdict for j in found] == ["agree", verdict]


def log_softmax(x, *, shifts):
    """log_softmax whose exponentials are divided by exp(shift) so many times."""
    shift = x.max(axis=1, keepdims=True)
    e = np.exp(x - shifts * shift)
    return x - shift - np.log(e.sum(axis=1, keepdims=True))


@pytest.mark.parametrize(("shifts", "verdict"), [(1, "agree"), (2, "disagree")])
def test_a_log_softmax_whose_shift_is_divided_twice(shifts, verdict):
    """Row `log_softmax`: any shift cancels in the gradient; the output shows it."""
    y = log_softmax(SQUARE, shifts=shifts)
    dx = DY - np.exp(log_softmax(SQUARE, shifts=1)) * DY.sum(axis=1, keepdims=True)
    found = verdicts(
        "log_softmax", [SQUARE], DY, [dx], outputs=[y], attributes={"axis": 1}
    )
    assert found == {"dx": "agree", "y": verdict}


@pytest.mark.parametrize(("axis", "verdict"), [(1, "agree"), (0, "disagree")])
def test_a_log_softmax_gradient_summed_along_the_other_axis(axis, verdict):
    """Row `log_softmax`: dx = dy - softmax*sum(dy), along the axis of softmax."""
    softmax = np.exp(log_softmax(SQUARE, shifts=1))
    dx = DY - softmax * DY.sum(axis=axis, keepdims=True)
    found = verdicts("log_softmax", [SQUARE], DY, [dx], attributes={"axis": 1})
    assert found == {"dx": verdict}


def test_every_record_names_its_framework_version_device_and_dtype(fleet):
    """Row `a framework's output printed as the other's`."""
    op = load_op("exp2")
    asked = trial(op, op.cases["3"], REGIMES["normal"], "float64")
    found = agree([asked], by_default(), fleet=fleet)
    named = {record.backend for record in found.records}
    assert named | set(found.missing) == set(by_default())
    for record in found.records:
        assert record.framework == framework_of(record.backend)
        assert record.framework_version
        assert (record.device, record.dtype) == ("cpu", "float64")


def test_a_result_of_another_dtype_than_its_program_says():
    """The same row: float32 under a float64 program is malformed, however close."""
    x = np.array([1.0, 2.0])
    right = reference(Problem(load_op("square"), {"x": x}, [x]))
    dx = {"dx": 2 * x * x}
    for dtype, verdict in (("float64", "agree"), ("float32", "malformed")):
        (found,) = judge_tensors(right, dx, {"dx": dtype})
        assert found.verdict == verdict
