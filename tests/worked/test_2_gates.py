"""Section 2: gates and small graphs."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gradwatch.harness import judge
from gradwatch.impls import graph
from gradwatch.impls.catalogue import load_op
from tests.frameworks import FRAMEWORKS, observed
from tests.worked.figures import printed

GATE_PICTURE = str(Path(__file__).parent / "pages" / "gate_picture.py")


def test_a_mul_gate_swaps_its_inputs(run):
    """Row `f = x*y`: x=4, y=-3 gives f=-12, df/dx=-3, df/dy=4."""
    found = run("mul", {"a": 4, "b": -3})
    assert found.outputs["y"] == -12
    assert (found.gradients["da"], found.gradients["db"]) == (-3, 4)


def test_a_max_gate_routes_the_gradient_to_the_winner(run):
    """Row `f = max(x, y)`: the gradient is one-hot."""
    found = run("maximum", {"a": 4, "b": -3})
    assert found.outputs["y"] == 4
    assert (found.gradients["da"], found.gradients["db"]) == (1, 0)


def test_the_tie_rule_of_a_max_gate_is_a_convention(run, dtype):
    """Row `f = max(x, y)`: "x >= y takes all" is one, an even split another."""
    found = run("maximum", {"a": 2, "b": 2})
    gradients = [found.gradients["da"], found.gradients["db"]]
    assert sum(gradients) == 1
    two = np.array(2, dtype)
    verdicts = {j.verdict for j in judge("maximum", [two, two], 1.0, gradients)}
    assert verdicts == {"convention"}


@pytest.mark.parametrize("backend", ["torch_custom", "oneflow_custom"])
def test_x_takes_all_at_a_tie_as_in_the_notes(run):
    """Row `f = max(x, y)`: x >= y takes all of the gradient."""
    found = run("maximum", {"a": 2, "b": 2})
    assert (found.gradients["da"], found.gradients["db"]) == (1, 0)


def test_a_sum_multiplied(run):
    """Row `f = (x+y)*z`: x=-2, y=5, z=-4 gives f=-12, dx=dy=-4, dz=3."""
    found = run("sum_product", {"a": -2, "b": 5, "c": -4})
    assert found.outputs["y"] == -12
    assert [found.gradients[f"d{n}"] for n in "abc"] == [-4, -4, 3]


def test_the_gradient_that_reaches_the_sum_itself():
    """Row `f = (x+y)*z`: dq = -4 with q = x + y."""
    x, y, z = (graph.variable(np.array(v)) for v in (-2.0, 5.0, -4.0))
    q = x + y
    (dq,) = graph.gradient([q * z], [1.0], [q])
    assert dq.value == -4


def test_the_gate_picture(run):
    """Row `gate picture`: 2*(x*y + max(z,w)) at x=3, y=-4, z=2, w=-1."""
    inputs = {"x": 3, "y": -4, "z": 2, "w": -1}
    found = run(GATE_PICTURE, inputs)
    gradients = [found.gradients[f"d{name}"] for name in inputs]
    assert found.outputs["f"] == -20
    assert printed(gradients, "-8.00 6.00 2.00 0.00") == "-8.00 6.00 2.00 0.00"


def test_the_add_gate_of_the_picture_passes_its_gradient_to_both():
    """Row `gate picture`: add passes 2.00 to both."""
    x, y, z, w = (graph.variable(np.array(v)) for v in (3.0, -4.0, 2.0, -1.0))
    product, larger = x * y, graph.maximum(z, w)
    parts = graph.gradient([2.0 * (product + larger)], [1.0], [product, larger])
    assert printed([p.value for p in parts], "2.00 2.00") == "2.00 2.00"


def test_a_neuron(run):
    """Row `neuron sigmoid(w0*x0 + w1*x1 + w2)`: w=[2,-3,-3], x=[-1,-2]."""
    found = run("neuron", {"w": [2, -3, -3], "x": [-1, -2]})
    assert printed(found.outputs["y"], "0.7311") == "0.7311"
    assert printed(found.gradients["dx"], "0.3932 -0.5898") == "0.3932 -0.5898"
    dw = "-0.1966 -0.3932 0.1966"
    assert printed(found.gradients["dw"], dw) == dw


def test_a_ratio_in_which_each_input_takes_several_paths(run):
    """Row `f = (x + s(y)) / (s(x) + (x+y)^2)`: x=3, y=-4."""
    found = run("sigmoid_ratio", {"x": 3, "y": -4})
    assert printed(found.outputs["f"], "1.5456") == "1.5456"
    gradients = [found.gradients["dx"], found.gradients["dy"]]
    assert printed(gradients, "2.0596 1.5922") == "2.0596 1.5922"


def test_a_matrix_product(run):
    """Row `D = W @ X`: dW = dD @ X.T and dX = W.T @ dD, exactly, in small integers."""
    rng = np.random.default_rng(2)
    w, x, dd = (rng.integers(-9, 10, shape) for shape in ((5, 10), (10, 3), (5, 3)))
    found = run("matmul", {"a": w, "b": x}, dd)
    assert found.outputs["y"].tolist() == (w @ x).tolist()
    assert found.gradients["da"].tolist() == (dd @ x.T).tolist()
    assert found.gradients["db"].tolist() == (w.T @ dd).tolist()


@pytest.mark.parametrize(("op", "dy"), [("dot", 1.0), ("mul", np.ones(3))])
def test_the_same_tensor_used_twice_accumulates(run, op, dy):
    """Rows `y = dot(x, x)` and `y = x*x`, then `sum`: dx = 2x."""
    x = [1, 2, 3]
    found = run(op, {"a": x}, dy, aliases={"b": "a"})
    assert found.gradients["da"].tolist() == [2, 4, 6]


def test_a_square_then_a_sum(run):
    """Row `y = x*x`, then `sum`: its cotangent of ones gives dx = 2x."""
    found = run("square", {"x": [1, 2, 3]}, np.ones(3))
    assert found.gradients["dx"].tolist() == [2, 4, 6]


def test_the_custom_square_saves_its_input_and_returns_four(run):
    """Row `Square as a custom Function`: x=[2.0] gives dy*2*x = 4."""
    saved = []
    ctx = SimpleNamespace(save_for_backward=saved.append)
    x = np.array([2.0])
    load_op("square").said("custom").forward(ctx, x)
    assert saved[0] is x
    found = run("square", {"x": x}, [1.0])
    assert found.gradients["dx"].tolist() == [4]


def test_a_polynomial_of_two_variables(run):
    """Row `y = x1*x2 + x2*4.3 + 30`: x1=2, x2=3 gives dy/dx1=3, dy/dx2=6.3."""
    found = run("affine_pair", {"x1": 2, "x2": 3})
    gradients = [found.gradients["dx1"], found.gradients["dx2"]]
    assert printed(gradients, "3 6.3") == "3 6.3"
    assert printed(found.outputs["y"], "48.9") == "48.9"


# Framework behaviour ----------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_gradients_accumulate_over_backward_calls_until_cleared(framework):
    """y = sum(x*x) at x = [1, 2]: once [2, 4], twice [4, 8], cleared [2, 4] again."""
    assert observed(framework)["accumulation"] == [[2, 4], [4, 8], [2, 4]]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_requires_grad_set_after_the_computation_fails(framework):
    assert "error" in observed(framework)["requires_grad_too_late"]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_non_scalar_output_needs_a_cotangent(framework):
    """Rows `y = x*x`: backward() fails, backward(ones) gives dx = 2x."""
    assert "error" in observed(framework)["non_scalar_without_cotangent"]
    assert observed(framework)["non_scalar_with_cotangent"] == [2, 4]
