"""Section 5: layers, by hand and by the frameworks, on CPU and CUDA."""

import numpy as np
import pytest

from gradwatch.harness import assert_agrees, judge
from gradwatch.impls.catalogue import load_op
from tests.frameworks import ON_EVERY_PAGE, is_torch_like

on_cpu_and_cuda = pytest.mark.parametrize(
    ("backend", "device"),
    [
        *(pytest.param(name, "cpu", id=name) for name in ON_EVERY_PAGE),
        *(
            pytest.param(name, "cuda", id=f"{name}-cuda", marks=pytest.mark.cuda)
            for name in ON_EVERY_PAGE
            if is_torch_like(name)
        ),
    ],
)
in_float32 = pytest.mark.parametrize("dtype", ["float32"])


@pytest.fixture
def normal(dtype):
    """A function that draws normal numbers of a shape."""
    rng = np.random.default_rng(5)
    return lambda *shape: rng.standard_normal(shape).astype(dtype)


def assert_agrees_with(found, op, inputs, dy, **attributes):
    """Every gradient of a result is as right as its precision allows."""
    arrays, gradients = list(inputs.values()), list(found.gradients.values())
    judged = judge(op, arrays, dy, gradients, attributes=attributes)
    assert {j.verdict for j in judged} == {"agree"}, [j.message for j in judged]


# Linear -------------------------------------------------------------------------------


@on_cpu_and_cuda
def test_linear(run):
    """Row `linear`: dx = dy W, dW = dy^T x, db = sum over N of dy.

    Exactly, in small integers.
    """
    rng = np.random.default_rng(5)
    x, weight, bias, dy = (
        rng.integers(-9, 10, shape) for shape in ((4, 5), (3, 5), (3,), (4, 3))
    )
    found = run("linear", {"x": x, "weight": weight, "bias": bias}, dy).gradients
    assert found["dx"].tolist() == (dy @ weight).tolist()
    assert found["dweight"].tolist() == (dy.T @ x).tolist()
    assert found["dbias"].tolist() == dy.sum(axis=0).tolist()


# Norms --------------------------------------------------------------------------------

LAYER = {"eps": 1e-5}
BATCH = {"eps": 1e-5, "momentum": 0.1, "training": True}


def norm_by_hand(x, weight, dy, axes, over):
    """Rows `layer_norm` and `batch_norm`, as the notes write it.

    dx = rstd*(g - mean(g) - h*mean(g*h)) with g = dy*w; dw = sum(dy*h); db = sum(dy)
    """
    rstd = 1 / np.sqrt(x.var(axis=axes, keepdims=True) + 1e-5)
    h, g = (x - x.mean(axis=axes, keepdims=True)) * rstd, dy * weight
    along = (g * h).mean(axis=axes, keepdims=True)
    dx = rstd * (g - g.mean(axis=axes, keepdims=True) - h * along)
    return [dx, (dy * h).sum(axis=over), dy.sum(axis=over)]


def layer_inputs(normal, mean=0):
    x = mean + normal(2, 3, 4, 5)
    return {"x": x, "weight": normal(4, 5), "bias": normal(4, 5)}


def batch_inputs(normal):
    channels = ("weight", "bias", "running_mean", "running_var")
    inputs = {"x": normal(2, 4, 3)} | {name: normal(4) for name in channels}
    return inputs | {"running_var": np.square(inputs["running_var"])}


@on_cpu_and_cuda
def test_layer_norm(run, normal):
    """Row `layer_norm`, (2,3,4,5) over (4,5): agrees in float64, and in float32."""
    inputs, dy = layer_inputs(normal), normal(2, 3, 4, 5)
    found = run("layer_norm", inputs, dy, **LAYER)
    assert_agrees_with(found, "layer_norm", inputs, dy, **LAYER)


def test_layer_norm_by_hand(normal):
    inputs, dy = layer_inputs(normal), normal(2, 3, 4, 5)
    by_hand = norm_by_hand(inputs["x"], inputs["weight"], dy, (2, 3), (0, 1))
    assert_agrees("layer_norm", [*inputs.values()], dy, by_hand, attributes=LAYER)


@in_float32
@pytest.mark.parametrize("backend", ["torch_autograd"])
def test_why_layer_norm_in_float32_differs_from_pytorch(run, normal):
    """Row `float32 differs from PyTorch`, the question that the notes leave open.

    Around a mean of 1e4 the two differ by more than the usual tolerances allow, and
    both are right: rounding alone may make a difference as large as that.
    """
    inputs, dy = layer_inputs(normal, mean=10_000), normal(2, 3, 4, 5)
    native = [*run("layer_norm", inputs, dy, **LAYER).gradients.values()]
    by_hand = norm_by_hand(inputs["x"], inputs["weight"], dy, (2, 3), (0, 1))
    assert not np.allclose(native[0], by_hand[0], rtol=1e-5, atol=1e-5)
    for gradients in (native, by_hand):
        assert_agrees(
            *("layer_norm", [*inputs.values()], dy, gradients),
            attributes=LAYER,
            allow_vacuous=True,  # so much that it hides most of dx
        )


@on_cpu_and_cuda
@in_float32
def test_batch_norm(run, normal):
    """Row `batch_norm`, (2,4,3), training: no tolerance of 1e-5 is needed for dx."""
    inputs, dy = batch_inputs(normal), normal(2, 4, 3)
    found = run("batch_norm", inputs, dy, **BATCH)
    assert_agrees_with(found, "batch_norm", inputs, dy, **BATCH)


def test_batch_norm_by_hand(normal):
    """Row `batch_norm`: as layer_norm, over axes (0, 2); so are dw and db."""
    inputs, dy = batch_inputs(normal), normal(2, 4, 3)
    weight = inputs["weight"][:, None]
    by_hand = norm_by_hand(inputs["x"], weight, dy, (0, 2), (0, 2))
    assert_agrees("batch_norm", [*inputs.values()], dy, by_hand, attributes=BATCH)


@on_cpu_and_cuda
def test_batch_norm_moves_its_running_values(run, normal):
    """Row `running_mean and running_var updated with momentum`.

    The tolerance is a few roundings of float32, in which OneFlow keeps the momentum. A
    biased variance of n = 6 would be a sixth off.
    """
    inputs = batch_inputs(normal)
    state = run("batch_norm", inputs, normal(2, 4, 3), **BATCH).state
    x = inputs["x"].astype("float64")
    mean = 0.9 * inputs["running_mean"] + 0.1 * x.mean(axis=(0, 2))
    var = 0.9 * inputs["running_var"] + 0.1 * x.var(axis=(0, 2), ddof=1)
    np.testing.assert_allclose(state["running_mean"], mean, rtol=0, atol=1e-6)
    np.testing.assert_allclose(state["running_var"], var, rtol=0, atol=1e-6)


@on_cpu_and_cuda
def test_batch_norm_in_evaluation_leaves_its_running_values(run, normal):
    """Row `batch_norm`, in the mode that the notes leave out."""
    inputs, evaluation = batch_inputs(normal), {**BATCH, "training": False}
    state = run("batch_norm", inputs, normal(2, 4, 3), **evaluation).state
    assert {n: a.tolist() for n, a in state.items()} == {
        n: inputs[n].tolist() for n in ("running_mean", "running_var")
    }


# Softmax ------------------------------------------------------------------------------


def softmax_by_hand(x, dy):
    """Row `softmax`, as the notes write it: dx = y*(dy - sum(dy*y))."""
    e = np.exp(x - x.max(axis=1, keepdims=True))
    y = e / e.sum(axis=1, keepdims=True)
    return y * (dy - (dy * y).sum(axis=1, keepdims=True))


def log_softmax_by_hand(x, dy):
    """Row `log_softmax`, as the notes write it: dx = dy - exp(y)*sum(dy)."""
    shifted = x - x.max(axis=1, keepdims=True)
    y = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return dy - np.exp(y) * dy.sum(axis=1, keepdims=True)


BY_HAND = {"softmax": softmax_by_hand, "log_softmax": log_softmax_by_hand}
SHAPES = [(37, 300), (1, 1024), (512, 2)]  # of random (1..512, 1..1024)

for_both = pytest.mark.parametrize("op", BY_HAND)
for_shapes = pytest.mark.parametrize("shape", SHAPES, ids=["37x300", "1x1024", "512x2"])


@on_cpu_and_cuda
@in_float32
@for_both
@for_shapes
def test_softmax_and_its_logarithm(run, backend, normal, op, shape):
    """Rows `softmax` and `log_softmax`, float32: no tolerance of 1e-5 is needed."""
    x, dy = normal(*shape), normal(*shape)
    found = run(op, {"x": x}, dy, axis=1)
    if (op, backend) == ("log_softmax", "oneflow_autograd"):
        # Its forward, which dx is made of, is a known defect (defects/outcomes.json).
        by_hand = log_softmax_by_hand(x, dy)
        assert np.allclose(found.gradients["dx"], by_hand, atol=1e-5)
        return
    assert_agrees_with(found, op, {"x": x}, dy, axis=1)


@for_both
@for_shapes
def test_softmax_and_its_logarithm_by_hand(normal, op, shape):
    x, dy = normal(*shape), normal(*shape)
    assert_agrees(op, [x], dy, [BY_HAND[op](x, dy)], attributes={"axis": 1})


# Two outputs --------------------------------------------------------------------------

X = np.array([[[3.0, -1.0], [2.0, 5.0]]])
DVALUES, DX = np.array([[7.0, -4.0]]), [[[7, 0], [0, -4]]]


@on_cpu_and_cuda
def test_max_with_indices(run):
    """Row `max_with_indices`, (1,2,2), axis 1: dx is scattered to the index."""
    found = run("max_with_indices", {"x": X}, DVALUES, None, axis=1)
    assert found.outputs["values"].tolist() == [[3, 5]]
    assert found.outputs["indices"].tolist() == [[0, 1]]
    assert found.dtypes["indices"] == "int64"
    assert found.gradients["dx"].tolist() == DX


@pytest.mark.parametrize("dindices", [None, np.array([[6, 6]])])
def test_the_cotangent_of_the_indices_is_ignored(dindices):
    """Row `max_with_indices`: it arrives, and whatever it is changes nothing."""
    _, backward = load_op("max_with_indices").said("manual")(X, axis=1)
    (dx,) = backward(DVALUES, dindices)
    assert dx.tolist() == DX


@on_cpu_and_cuda
@pytest.mark.parametrize(("dy1", "dy2", "dx"), [(1, 1, 3), (1, 0, 2), (0, 1, 1)])
def test_double_output(run, dy1, dy2, dx):
    """Row `double_output` at 1.0: together 3; one after the other 2 + 1, also 3."""
    found = run("double_output", {"x": 1.0}, dy1, dy2)
    assert list(found.outputs.values()) == [2, 4]
    assert found.gradients["dx"] == dx
