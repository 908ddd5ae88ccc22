"""A centring is the subtraction of a mean of the same operand, and nothing else."""

import numpy as np
import pytest

from gradwatch.harness.judging.precisions import arithmetics
from gradwatch.harness.judging.rounding.analysis import local_errors, running_errors
from gradwatch.impls import graph

ROWS = np.random.default_rng(1).standard_normal((3, 8))
ROWS[1] += 1e4


def lost(build):
    """What the last step itself may lose in each row, at most, in its own roundings."""
    y = build(graph.variable(ROWS))
    graph.forward([y])
    order = graph.topological_order([y])
    errors = running_errors(order, *arithmetics("float64"), limit=16.0)
    return np.max(local_errors(errors, order)[y] / np.abs(y.value), axis=1)


def mean(x):
    return graph.mean(x, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x - mean(x),
        lambda x: x - graph.sum(x, axis=1, keepdims=True) * 0.125,
        lambda x: x - graph.stop_gradient(mean(x)),
    ],
)
def test_a_mean_that_is_subtracted_from_its_own_rows_may_lose_its_own_rounding(build):
    """That is 1e4 beside numbers of about 1."""
    assert lost(build)[1] > 1e3
    assert (lost(build)[::2] < 1e2).all()


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x + graph.variable(-ROWS.mean(1, keepdims=True)),  # an embedding
        lambda x: x - graph.variable(ROWS[1] + 1e-3),  # a bias that happens to be near
        lambda x: x - 2.0 * graph.max(x, axis=1, keepdims=True),
        lambda x: x - mean(graph.square(x)) * 1e-4,  # a mean of something else
        lambda x: mean(x) - x * 0.5,
    ],
)
def test_nothing_else_does(build):
    assert (lost(build) == 1).all()
