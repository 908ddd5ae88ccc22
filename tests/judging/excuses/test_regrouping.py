"""Overflow in another order of operations is excused, and no other infinity is."""

import itertools
import math

import numpy as np
import pytest

from harness import judge
from harness.judging.excuses.regrouping import peaks
from impls import graph
from impls.contract import Op

RNG = np.random.default_rng(8)


def verdict(op, inputs, dy, dx, **options):
    return judge(op, inputs, dy, [dx], **options)[0].verdict


FACTORS = [3e4, 1e-3, 7.0, 2e-5, 1.5, 4e3]


@pytest.mark.parametrize("split", range(len(FACTORS) + 1))
def test_the_peak_is_the_largest_partial_product_in_any_order(split):
    """Found by trying all subsets: some factors multiply, the others divide."""
    factors = [*FACTORS[:split], *(1 / f for f in FACTORS[split:])]
    result = graph.variable(np.ones(()))
    for factor in FACTORS[:split]:
        result = result * graph.variable(np.array(factor))
    for factor in FACTORS[split:]:
        result = result / graph.variable(np.array(factor))
    order = graph.topological_order([result])
    graph.forward([result])
    subsets = itertools.product((0, 1), repeat=len(factors))
    largest = max(math.prod(map(pow, factors, powers)) for powers in subsets)
    assert peaks(order)[result] == pytest.approx(math.log2(largest))


@pytest.mark.parametrize("dx", [-np.inf, np.nan])
def test_an_order_that_overflows_is_excused(dx):
    """2 dy is beyond float16, and x (2 dy) infinite; 2 x dy is -80."""
    x, dy = np.array([-1e-3], "float16"), np.array([4e4], "float16")
    assert verdict("square", [x], dy, np.array([dx], "float16")) == "imprecise"


@pytest.mark.parametrize(("x", "dy"), [(50, 300), (1e-3, 3e4), (1, 1000)])
def test_an_infinity_that_no_order_gives_is_wrong(x, dy):
    """All partial products of 2, x and dy are at most 6e4 < 65,504."""
    x, dy = np.array([x], "float16"), np.array([dy], "float16")
    assert verdict("square", [x], dy, np.array([np.inf], "float16")) == "nonfinite"


NORM = {"attributes": {"eps": 1e-5}}


@pytest.mark.parametrize(
    ("scale", "expected"), [(1e30, "imprecise"), (1e15, "nonfinite")]
)
def test_a_factor_taken_out_of_a_sum_may_overflow_it(scale, expected):
    """As the cube of 1 / sd: up to 316^3 of a constant row, times x and dy."""
    x = np.full((2, 8), 3e2, "float32")
    weight, bias = (RNG.standard_normal(8).astype("float32") for _ in range(2))
    dy = (scale * RNG.standard_normal((2, 8))).astype("float32")
    got = [np.full((2, 8), np.nan, "float32"), None, None]
    assert (
        judge("layer_norm", [x, weight, bias], dy, got, **NORM)[0].verdict == expected
    )


def test_nan_in_a_deep_graph_of_ordinary_numbers_is_wrong():
    """Nobody takes a factor through a matrix product: peaks do not grow with depth."""

    def deep(xp, x, w):
        for _ in range(50):
            x = x + xp.tanh(xp.matmul(x, w))
        return x

    chain = Op("chain", inputs="x w", formula=deep)
    x, w = (RNG.standard_normal((8, 8)).astype("float32") / 3 for _ in range(2))
    got = [np.full((8, 8), np.nan, "float32"), None]
    assert judge(chain, [x, w], np.ones((8, 8)), got)[0].verdict == "nonfinite"
