"""A centring is the subtraction of a mean of the same operand, and nothing else."""

import numpy as np
import pytest

from gradwatch.harness.judging.excuses.centring import exposed
from gradwatch.impls import graph

ROWS = np.random.default_rng(1).standard_normal((3, 8))
ROWS[1] += 1e4


def marks(build):
    """Which rows of a result are marked, given a matrix whose second row is shifted."""
    y = build(graph.variable(ROWS))
    graph.forward([y])
    found = exposed(graph.topological_order([y])).get(y, np.zeros(y.shape, bool))
    return found.any(axis=1).tolist()


def mean(x):
    return graph.mean(x, axis=1, keepdims=True)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x - mean(x),
        lambda x: x - graph.sum(x, axis=1, keepdims=True) * 0.125,
        lambda x: x - graph.stop_gradient(mean(x)),
        lambda x: (x - mean(x)) * 3.0,
    ],
)
def test_a_mean_that_is_subtracted_from_its_own_rows_is_marked(build):
    assert marks(build) == [False, True, False]


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x + graph.variable(-ROWS.mean(1, keepdims=True)),  # an embedding
        lambda x: x - graph.variable(ROWS[1]),  # a bias that happens to be near
        lambda x: x - graph.max(x, axis=1, keepdims=True),
        lambda x: x - mean(graph.square(x)) * 1e-4,  # a mean of something else
        lambda x: mean(x) - x * 0.5,
    ],
)
def test_nothing_else_is(build):
    assert marks(build) == [False, False, False]
