"""Linear systems against ball arithmetic: values, and the rounding rule."""

import flint
import mpmath
import numpy as np
import pytest

pytest.importorskip("torch")

from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.tracing.rules.matrices import (
    determinant,
    exponential,
    inverse,
)
from gradwatch.impls import graph
from tests.balls import precise
from tests.tracing.rules.test_special import errors_behind

A = np.random.default_rng(3).standard_normal((5, 4, 4))


def exact(matrix):
    """Inverse and determinant in balls."""
    with precise():
        made = flint.arb_mat([[flint.arb(float(v)) for v in row] for row in matrix])
        inverted = [[float(v) for v in row] for row in made.inv().tolist()]
        return np.array(inverted), float(made.det())


@pytest.mark.parametrize("which", [0, 1])
def test_values_are_right(which):
    found = (inverse, determinant)[which](graph.variable(A.astype(np.longdouble))).value
    for got, matrix in zip(found, A, strict=True):
        np.testing.assert_allclose(got.astype(float), exact(matrix)[which], rtol=1e-13)


@pytest.mark.parametrize("which", [0, 1])
def test_the_rounding_rule_bounds_a_float32_computation(which):
    """LAPACK in float32 against the truth: within the radius, and not by decades."""
    rounded = A.astype(np.float32)
    y = (inverse, determinant)[which](graph.variable(rounded.astype(np.float64)))
    precision = PRECISIONS["float32"]
    errors = errors_behind(y)
    radius = precision.roundoff * errors[y]
    got = (np.linalg.inv, np.linalg.det)[which](rounded).astype(np.float64)
    ratios = [
        np.max(np.abs(a - exact(matrix)[which]) / allowed)
        for a, matrix, allowed in zip(got, rounded, radius, strict=True)
    ]
    assert 1e-4 < max(ratios) < 1


@pytest.mark.parametrize("function", [inverse, determinant])
def test_gradients_are_slopes(function):
    """Central differences of the forward in extended precision, step 2**-20."""
    a = A[0].astype(np.longdouble)
    leaf = graph.variable(a)
    y = function(leaf)
    dy = np.random.default_rng(1).standard_normal(y.shape)
    (gradient,) = graph.gradient([y], [dy], [leaf])
    direction = np.random.default_rng(2).standard_normal(a.shape)
    step = np.longdouble(2) ** -20
    up, down = (
        function(graph.variable(a + s * step * direction)).value for s in (1, -1)
    )
    slope = ((up - down) * dy).sum() / (2 * step)
    expected = pytest.approx(float(slope), rel=1e-8)
    assert float((gradient.value * direction).sum()) == expected


def test_a_singular_matrix_has_no_bound():
    x = graph.variable(np.array([[1.0, 2.0], [2.0, 4.0]]))
    y = determinant(x)
    errors = errors_behind(y)
    assert y.value == 0
    assert not np.isfinite(errors[y])


def test_the_rounding_rule_of_an_exponential_bounds_pytorch_s_in_float32():
    """Its small elements are off by roundings of the largest (truth: mpmath)."""
    torch = pytest.importorskip("torch")
    rank_one = np.full((3, 3), -0.75)
    y = exponential(graph.variable(rank_one))
    truth = np.array(mpmath.expm(mpmath.matrix(rank_one)).tolist(), float)
    np.testing.assert_allclose(y.value, truth, rtol=1e-13)
    got = torch.matrix_exp(torch.tensor(rank_one, dtype=torch.float32)).double()
    radius = PRECISIONS["float32"].roundoff * errors_behind(y)[y]
    ratio = np.max(np.abs(got.numpy() - truth) / radius)
    assert 1e-4 < ratio < 1
