"""Section 1: y = 2**x said on several routes."""

from types import SimpleNamespace

import numpy as np
import pytest

from gradwatch.harness import judge
from gradwatch.impls.catalogue import load_op
from tests.frameworks import observed
from tests.worked.figures import printed

X = np.array([1.0, 2.0, 3.0])


def test_the_printed_gradient_on_every_backend(run, dtype):
    """Row `x = [1, 2, 3], dy = ones gives dx = [1.3863, 2.7726, 5.5452]`."""
    found = run("exp2", {"x": X}, np.ones(3))
    # JAX's is exp(x log 2) by its documentation: two units in the last place, at 8
    eps = np.finfo(dtype).eps
    np.testing.assert_allclose(found.outputs["y"], [2, 4, 8], rtol=2 * eps)
    assert printed(found.gradients["dx"], "1.3863 2.7726 5.5452") == (
        "1.3863 2.7726 5.5452"
    )


def test_the_native_route_of_pytorch_is_its_exp2():
    """Row `PyTorch native`."""
    framework = SimpleNamespace(exp2=lambda x: ("exp2", x))
    assert load_op("exp2").said("autograd", "torch")(framework, 3) == ("exp2", 3)


def test_the_native_route_of_oneflow_is_pow_and_the_page_says_why():
    """Row `OneFlow 0.9.0 has no exp2`: its route is declared, with the reason."""
    route = load_op("exp2").said("autograd", "oneflow")
    framework = SimpleNamespace(pow=lambda base, x: ("pow", base, x))
    assert route(framework, 3) == ("pow", 2.0, 3)
    assert "has no exp2" in route.__doc__


@pytest.mark.parametrize(("framework", "has"), [("torch", True), ("oneflow", False)])
def test_which_framework_has_exp2(framework, has):
    """If OneFlow gets one, the override on the page has to go."""
    assert observed(framework)["has_exp2"] == has


def test_the_custom_function_saves_the_result():
    """Row `custom Function`: forward pow(2, x), backward dy * ln(2) * result."""
    saved = []
    ctx = SimpleNamespace(save_for_backward=saved.append)
    page = load_op("exp2").said("custom")
    y = page.forward(ctx, X)
    assert saved[0] is y
    ctx.saved_tensors = saved
    assert page.backward(ctx, np.ones(3)).tolist() == (np.log(2) * y).tolist()


def test_the_functor_that_recomputes_from_x_agrees(dtype):
    """Row `kExp2BackwardWithDyX`: dy * exp2(x) * log(Src(2.0)), ln 2 in its type."""
    x, dy = X.astype(dtype), np.array([1, -0.5, 3], dtype)
    (found,) = judge("exp2", [x], dy, [dy * np.exp2(x) * np.log(x.dtype.type(2))])
    assert found.verdict == "agree"
