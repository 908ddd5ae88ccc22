"""Inputs without gradient (targets, indices, masks), from the page to the backend."""

import numpy as np
import pytest

from gradwatch.harness.judging.cases import REGIMES, output_shapes, trial
from gradwatch.harness.workers.pool import Task
from gradwatch.impls import catalogue
from gradwatch.impls.contract import Case, Op, Problem


def classes(rng, shape, shapes):
    return rng.integers(0, shapes["x"][-1], shape)


def bits(rng, shape, shapes):
    return rng.random(shape) < 0.5


PICKED = Op("picked", inputs="x index", constants={"index": classes})
PICKED.implement("formula")(lambda xp, x, index: xp.exp(x[..., index]))
PICKED.implement("autograd")(lambda torch, x, index: torch.exp(x[..., index]))
CASE = Case("2x3", x=(2, 3), index=(4,))


def test_constants_have_no_gradient_and_are_drawn_by_their_makers():
    op = Op("e", inputs="x target mask", constants={"target": classes, "mask": bits})
    case = Case("4x3", x=(4, 3), target=(400,), mask=(5,))
    drawn = op.draw_constants(case, np.random.default_rng(0))
    assert op.differentiable == ("x",)
    assert set(drawn["target"].tolist()) == {0, 1, 2}
    assert drawn["mask"].dtype == bool


@pytest.mark.parametrize("role", ["state", "constants"])
def test_a_role_of_an_input_that_is_not_there_is_refused(role):
    with pytest.raises(ValueError, match="'targt' is not an input"):
        Op("e", inputs="x target", **{role: "targt"})


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("regime", ["normal", "infnan", "expanded", "permuted"])
def test_a_constant_travels_unrounded_and_in_its_own_dtype(regime, dtype):
    drawn = trial(PICKED, CASE, REGIMES[regime], dtype)
    assert drawn.problem.wanted == ("x",)
    sent = Task(drawn, "torch_autograd").payload()
    index = sent["inputs"]["index"]
    assert (index.dtype.str, index.shape) == ("<i8", (4,))
    assert sent["layouts"]["index"] == "contiguous"
    assert set(drawn.problem.inputs["index"]) <= {0, 1, 2}
    assert output_shapes(PICKED, CASE) == ((2, 4),)


def test_a_constant_of_fractions_keeps_its_layout_where_inputs_have_a_stride_of_0():
    op = catalogue.load_op("kl_div")
    drawn = trial(op, op.cases["4x5"], REGIMES["expanded"], "float32")
    layouts = Task(drawn, "torch_autograd").payload()["layouts"]
    assert layouts == {"x": "expanded", "target": "contiguous"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("backend", ["numpy_graph", "torch_autograd", "torch_formula"])
def test_a_backend_gets_constants_in_their_own_dtype(backend, dtype):
    if backend.startswith("torch"):
        pytest.importorskip("torch")
    x = np.array([0.0, 1.0, 2.0], dtype)
    index, dy = np.array([2, 0, 2]), np.array([1.0, 3.0, 4.0], dtype)
    problem = Problem(PICKED, {"x": x, "index": index}, [dy], dtype=dtype)
    step = catalogue.load_backend(backend).prepare(problem)
    step.forward()
    step.backward()
    result = step.read()
    assert list(result.gradients) == ["dx"]
    assert result.dtypes["dx"] == dtype
    np.testing.assert_allclose(
        result.gradients["dx"], [3.0, 0.0, 5.0 * np.exp(2.0)], rtol=1e-6
    )
