"""Section 3: a nested scalar function and its loss."""

import math

import mpmath
import numpy as np
import pytest

from gradwatch.impls import graph
from tests.worked.figures import printed

POINT = {"x": 2.3, "y": 2.0, "b0": 1.0, "b1": 2.0, "b2": -3.0, "b3": 0.4}
POINT |= {"w0": 0.1, "w1": -0.4, "w2": 2.0, "w3": 3.0}

FORWARD = "f0 h1 f1 h2 f2 h3 f3 l"
FORWARD_VALUES = "1.230 0.942 1.623 5.068 7.137 0.657 2.372 0.139"
BACKWARD = "f3 h3 f2 h2 f1 h1 f0"
BACKWARD_VALUES = "0.745 2.234 -1.683 -3.366 -17.060 6.824 2.281"
PARAMETERS = "b3 w3 b2 w2 b1 w1 b0 w0"
PARAMETER_VALUES = "0.745 0.489 -1.683 -8.530 -17.060 -16.079 2.281 5.246"

EPSILON = np.finfo(np.float64).eps
CENTRAL = EPSILON ** (1 / 3)  # balances truncation h**2 against cancellation eps / h

in_float64 = pytest.mark.parametrize("dtype", ["float64"])


@pytest.fixture(scope="module")
def stages():
    """The graph of the loss, its stages and parameters by name."""
    at = {name: graph.variable(np.array(value)) for name, value in POINT.items()}
    at["f0"] = at["b0"] + at["w0"] * at["x"]
    at["h1"] = graph.sin(at["f0"])
    at["f1"] = at["b1"] + at["w1"] * at["h1"]
    at["h2"] = graph.exp(at["f1"])
    at["f2"] = at["b2"] + at["w2"] * at["h2"]
    at["h3"] = graph.cos(at["f2"])
    at["f3"] = at["b3"] + at["w3"] * at["h3"]
    at["l"] = graph.square(at["f3"] - at["y"])
    return at


def test_the_forward_table(stages):
    """Row `forward`: each stage's value."""
    values = [stages[name].value for name in FORWARD.split()]
    assert printed(values, FORWARD_VALUES) == FORWARD_VALUES


def test_the_backward_table(stages):
    """Row `backward`: a stage is a node, so its gradient is to be had."""
    nodes = [stages[name] for name in BACKWARD.split()]
    gradients = graph.gradient([stages["l"]], [1.0], nodes)
    assert printed([g.value for g in gradients], BACKWARD_VALUES) == BACKWARD_VALUES


def test_the_parameter_table_on_every_backend(run, dtype):
    """Row `dl/d.`: the gradient of each parameter; row `forward`: the loss."""
    found = run("nested_trig", POINT)
    gradients = [found.gradients[f"d{name}"] for name in PARAMETERS.split()]
    figures = np.array(PARAMETER_VALUES.split(), float)
    # half a unit of the last printed digit, and a rounding of each of some 30 steps:
    # db1 is -17.06047
    limit = 0.5e-3 + 30 * np.finfo(dtype).eps * np.abs(figures)
    assert np.all(np.abs(gradients - figures) <= limit)
    assert printed(found.outputs["loss"], "0.139") == "0.139"


# The finite difference is one more judge --------------------------------------------


def exact():
    """dl/dw0 in closed form, to 40 digits."""
    with mpmath.workdps(40):
        p = {name: mpmath.mpf(value) for name, value in POINT.items()}
        f0 = p["b0"] + p["w0"] * p["x"]
        h2 = mpmath.exp(p["b1"] + p["w1"] * mpmath.sin(f0))
        f2 = p["b2"] + p["w2"] * h2
        f3 = p["b3"] + p["w3"] * mpmath.cos(f2)
        outer = 2 * (f3 - p["y"]) * -p["w3"] * mpmath.sin(f2)
        return outer * p["w2"] * h2 * p["w1"] * mpmath.cos(f0) * p["x"]


def digits(value):
    """Decimal digits in which a value agrees with the closed form."""
    with mpmath.workdps(40):
        error = abs(mpmath.mpf(float(value)) / exact() - 1)
        return float(-mpmath.log10(error)) if error else math.inf


@pytest.fixture
def loss(run):
    """The loss at a displaced w0."""

    def loss(step):
        point = POINT | {"w0": POINT["w0"] + step}
        return float(run("nested_trig", point).outputs["loss"])

    return loss


def forward_difference(loss, step):
    return (loss(step) - loss(0)) / step


def central_difference(loss, step):
    return (loss(step) - loss(-step)) / (2 * step)


def test_the_closed_form_prints_the_same():
    """Row `dl/dw0 agrees with the closed form`."""
    assert printed(float(exact()), "5.246") == "5.246"


@in_float64
def test_the_forward_difference_prints_the_same(loss):
    """Row `a forward difference of step 1e-5`: 5.246."""
    found = forward_difference(loss, 1e-5)
    assert printed(found, "5.246") == "5.246"


@in_float64
def test_a_central_difference_of_a_well_chosen_step_is_right_to_eight_digits(loss):
    found = central_difference(loss, CENTRAL)
    assert digits(found) > 8


@in_float64
def test_autograd_is_no_numerical_differentiation(run, loss):
    """Section 6's mistake, in digits: what step or cancellation takes from each.

    Truncation leaves a forward difference of step 1e-5 about 4 digits of 16; the best
    central one has two thirds of them; reverse mode loses what rounding takes.
    """
    gradient = run("nested_trig", POINT).gradients["dw0"]
    assert digits(gradient) > 13
    assert digits(central_difference(loss, CENTRAL)) < 11
    assert digits(forward_difference(loss, 1e-5)) < 6
