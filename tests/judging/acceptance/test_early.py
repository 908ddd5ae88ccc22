"""Large right tensors are accepted early; whatever else comes is judged in full."""

import numpy as np
import pytest

from harness import judge
from harness.judging.acceptance.early import accepted
from harness.judging.reference import reference
from harness.judging.verdict import judge_tensors
from impls import catalogue
from impls.contract import Problem

SHAPES = {
    "layer_norm": ([(64, 256), (256,), (256,)], {"eps": 1e-5}),
    "softmax": ([(64, 256)], {"axis": -1}),
    "matmul": ([(128, 128), (128, 128)], {}),
    "exp2": ([(16384,)], {}),
    "sigmoid": ([(16384,)], {}),
    "rms_norm": ([(64, 256), (256,)], {"eps": 1e-5}),
}


def problem(op, dtype, change=lambda x: x):
    shapes, attributes = SHAPES[op]
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    arrays[0] = change(arrays[0])
    arrays = [a.astype(dtype) for a in arrays]
    page = catalogue.load_op(op)
    forward = page.said("manual")(*(a.copy() for a in arrays), **attributes)
    dy = rng.standard_normal(forward[0].shape).astype(dtype)
    names = dict(zip(page.inputs, arrays, strict=True))
    made = Problem(page, names, [dy], attributes, dtype=dtype)
    gradients = forward[1](dy)
    return made, {f"d{n}": g for n, g in zip(names, gradients, strict=True)}


def early(made, got):
    return accepted(made, got, {n: g.dtype.name for n, g in got.items()})


def in_full(made, got):
    dtypes = {n: g.dtype.name for n, g in got.items()}
    return judge_tensors(reference(made), got, dtypes, dtype=made.dtype)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("op", SHAPES)
def test_right_gradients_are_accepted_and_agree_in_full(op, dtype):
    made, got = problem(op, dtype)
    found, full = early(made, got), in_full(made, got)
    assert found is not None
    assert [j.tensor for j in found] == [j.tensor for j in full]
    assert {j.verdict for j in (*found, *full)} == {"agree"}
    assert [j.limit for j in found] == [j.limit for j in full]
    assert all(j.ratio <= j.limit for j in found)
    assert max(j.vacuous for j in full) < 0.01
    assert all("agrees, seen without its rounding radius" in j.message for j in found)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("op", ["layer_norm", "softmax", "matmul", "exp2"])
def test_what_is_accepted_agrees_however_large_a_planted_error(op, dtype):
    """From far within the limit to far beyond it, in elements of all magnitudes."""
    made, got = problem(op, dtype)
    name, right = next(iter(got.items()))
    by_size = np.argsort(np.abs(right), axis=None)
    places = by_size[np.linspace(0, right.size - 1, 9).astype(int)]
    truth = reference(made)
    radius = truth.truths["first"][name].radius.reshape(-1)
    dtypes = {name: dtype}
    outcomes = []
    for factor in (0.25, 0.75, 1.5, 4.0):
        wrong = right.copy()
        off = factor * truth.limit * radius[places]
        wrong.reshape(-1)[places] += off.astype(dtype)
        found = accepted(made, {name: wrong}, dtypes)
        (full,) = judge_tensors(truth, {name: wrong}, dtypes, dtype=dtype)
        assert found is None or full.verdict == "agree"
        outcomes.append(full.verdict)
    assert outcomes[-1] == "disagree"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_one_wrong_element_among_many_is_rejected_by_judge(dtype):
    made, got = problem("softmax", dtype)
    dx = got["dx"].copy()
    dx[17, 5] *= 1 + 1e4 * np.finfo(dtype).eps
    arrays, attributes = list(made.inputs.values()), made.attributes
    (found,) = judge("softmax", arrays, made.cotangents[0], [dx], attributes=attributes)
    assert (found.verdict, found.worst_index) == ("disagree", (17, 5))


@pytest.mark.parametrize(("dtype", "mean"), [("float64", 1e12), ("float32", 1e4)])
def test_a_vacuous_tensor_is_left_to_the_judgement(dtype, mean):
    """Constant rows of a norm: what is left of them is rounding error."""
    made, _ = problem("layer_norm", dtype, lambda x: mean + 0 * x)
    full = reference(made).truths["first"]
    got = {"dx": full["dx"].value.astype(dtype)}
    assert early(made, got) is None
    assert in_full(made, got)[0].verdict == "vacuous"


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_is_left_to_the_judgement(wrong):
    made, got = problem("exp2", "float32")
    got["dx"][3] = wrong
    assert early(made, got) is None


def test_another_dtype_shape_or_none_is_left_to_the_judgement():
    made, got = problem("exp2", "float32")
    assert accepted(made, got, {"dx": "float64"}) is None
    assert accepted(made, {"dx": None}, {"dx": "float32"}) is None
    assert early(made, {"dx": got["dx"][:-1]}) is None


def test_choices_are_left_to_the_judgement():
    x, dy = np.random.default_rng(1).standard_normal((2, 16384))
    made = Problem(catalogue.load_op("relu"), {"x": x}, [dy], {})
    assert early(made, {"dx": np.where(x > 0, dy, 0.0)}) is None


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_sum_of_equal_terms_one_by_one_is_imprecise_as_ever(dtype):
    rows, page = 1 << 14, catalogue.load_op("linear")
    x, weight, bias = np.ones((rows, 1)), np.ones((1, 1)), np.ones(1)
    inputs = {"x": x, "weight": weight, "bias": bias}
    inputs = {n: a.astype(dtype) for n, a in inputs.items()}
    dy = np.full((rows, 1), 0.1, dtype)
    made = Problem(page, inputs, [dy], {}, dtype=dtype)
    got = {"dbias": np.cumsum(dy[:, 0], dtype=dtype)[-1:]}
    assert early(made, got) is None
    assert in_full(made, got)[0].verdict == "imprecise"
