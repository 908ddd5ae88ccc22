"""What another order of operations loses is excused, and nothing beside it is."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from gradwatch.harness import judge
from gradwatch.harness.judging.excuses.overflow import magnitudes, peaks
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.impls import graph
from gradwatch.impls.catalogue import load_op
from gradwatch.impls.contract import Op, Problem

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
    partial = [math.prod(map(pow, factors, powers)) for powers in subsets]
    products = peaks(order, PRECISIONS["float32"])
    ends = math.log2(max(partial)), math.log2(min(partial))
    assert products.ends[result] == pytest.approx(ends)


@pytest.mark.parametrize(
    ("dx", "expected"), [(-np.inf, "imprecise"), (np.nan, "nonfinite")]
)
def test_an_order_that_overflows_is_excused(dx, expected):
    """2 dy is beyond float32, and x (2 dy) infinite, but never nan."""
    x, dy = np.array([-1e-3], "float32"), np.array([2e38], "float32")
    assert verdict("square", [x], dy, np.array([dx], "float32")) == expected


@pytest.mark.parametrize(("x", "dy"), [(50, 300), (1e-3, 3e4), (1, 1000)])
def test_an_infinity_that_no_order_gives_is_wrong(x, dy):
    """All partial products of 2, x and dy are at most 6e4 < 65,504."""
    x, dy = np.array([x], "float16"), np.array([dy], "float16")
    assert verdict("square", [x], dy, np.array([np.inf], "float16")) == "nonfinite"


NORM = {"attributes": {"eps": 1e-5}}


@pytest.mark.parametrize(
    ("scale", "expected"), [(1e30, "vacuous"), (1e15, "nonfinite")]
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


# Underflow ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "dy", "off", "expected"),
    [
        (100, 3e-44, 1.0, "imprecise"),  # dy ln 2 is 14.6 spacings from 0
        (100, 3e-44, 0.9, "disagree"),
        (100, 3e-45, 1.0, "vacuous"),  # and 1.4
        (100, 3e-3, 1.0, "agree"),  # nothing underflows
        (100, 3e-3, 1.1, "disagree"),
    ],
)
def test_a_product_that_underflows_on_the_way_is_imprecise(x, dy, off, expected):
    """(dy ln 2) 2^x in float32, whose subnormal numbers are 2^-149 apart."""
    x, dy = np.array([x], "float32"), np.array([dy], "float32")
    dx = dy * np.float32(math.log(2)) * np.exp2(x) * np.float32(off)
    assert verdict("exp2", [x], dy, dx) == expected


@pytest.mark.parametrize(
    ("first", "off", "expected"),
    [
        (6.25e-3, 1.0, "imprecise"),  # a b is 10.5 spacings from 0
        (2.3e-4, 1.0, "vacuous"),  # and 0.4: nothing is left
        (6.25e-3, 0.9, "disagree"),
        (6.25e-3, 0.0, "disagree"),
        (6.25e-3, -1.0, "disagree"),
    ],
)
def test_so_is_an_outer_product(first, off, expected):
    """dW of one row as dy (a b) in float16, whose subnormal numbers are 2^-24 apart."""
    a, b = (
        np.array([[first, 3e-3, -2e-2]], "float16"),
        np.array([[1e-4, 0.2]], "float16"),
    )
    w, bias = RNG.standard_normal((2, 3, 2)).astype("float16"), np.zeros(2, "float16")
    dy = np.array([[65504, -65504]], "float16")
    pairs = (a.T @ b).astype("float64")
    dw = (off * dy.reshape(2, 1, 1).astype(float) * pairs).astype("float16")
    *_, j, _ = judge("bilinear", [a, b, w, bias], dy, [None, None, dw, None])
    assert j.verdict == expected, j.message


@pytest.mark.parametrize(
    ("x", "got", "expected"),
    [
        ([1e-30, 1e-30, 1e38, 1e38, 1e30], 0.0, "vacuous"),  # 1e-60 is 0
        ([1e-30, 1e-30, 1e38, 1e38, 1e30], np.inf, "agree"),
        ([1e-10, 1e-10, 1e38, 1e38, 1e20], 0.0, "nonfinite"),  # 1e-20 is not
        ([1e-10, 1e-10, 1e38, 1e38, 1e20], np.inf, "agree"),
        ([1e-10, 1e-10, 1e38, 1e38, 1e20], np.nan, "nonfinite"),
        ([1e-30, 1e-30, 1e38, 1e38, 1e30], np.nan, "imprecise"),  # 0 times 1e76
        ([0.0, 1e20, 1e38, 1.0, 1.0], np.nan, "imprecise"),  # 0 times 1e58
        ([0.0, 1e10, 1e20, 1.0, 1.0], np.nan, "nonfinite"),
        ([np.inf, 1e-30, 1e-30], np.nan, "imprecise"),  # infinity times 0
        ([np.inf, 1e-30, 1e-30], np.inf, "agree"),
        ([np.inf, 1e-30, 1e-30], -np.inf, "nonfinite"),
        ([np.inf, 1e-10, 1e-10], np.nan, "nonfinite"),  # 1e-20 is no 0
    ],
)
def test_an_infinity_need_not_come_where_a_partial_product_underflows(x, got, expected):
    """Those without a zero are 1e46 or more, beyond float32; its least is 1.4e-45.

    Partial products that underflow and that overflow, or an infinity, give nan.
    """
    x = np.array(x, "float32")
    problem = Problem(load_op("prod"), {"x": x}, [np.ones((), "float32")], {"axis": 0})
    right = reference(replace(problem, dtype="float32"))
    y = {"y": np.array(got, "float32")}
    (found,) = judge_tensors(right, y, {"y": "float32"})
    assert found.verdict == expected, found.message


@pytest.mark.parametrize(
    ("dy", "expected"),
    [
        (34304.0, "imprecise"),  # dy gate is 65526, which is rounded to infinity
        (34240.0, "nonfinite"),  # 65404 is not
    ],
)
def test_a_partial_product_beyond_the_largest_number_may_be_infinite(dy, expected):
    """dup = dy gate sigmoid(gate) is 8e3; float16 ends at 65504, 2^16 is 65536."""
    gate, one = np.full(1, -1.91015625, "float16"), np.ones(1, "float16")
    inputs = {"gate": gate, "up": one}
    problem = Problem(load_op("swiglu"), inputs, [np.float16(dy) * one], {})
    right = reference(replace(problem, dtype="float16"))
    got = {"dup": np.full(1, -np.inf, "float16")}
    (found,) = judge_tensors(right, got, {"dup": "float16"})
    assert found.verdict == expected, found.message


@pytest.mark.parametrize(
    ("scale", "kept", "expected"),
    [
        (1e16, 0, "imprecise"),
        (1e16, -1, "disagree"),
        (1e10, 0, "disagree"),
        (1e10, 1, "agree"),
    ],
)
def test_a_factor_taken_out_of_a_sum_may_underflow(scale, kept, expected):
    """1 / rms^3 is 1e-48 of rows of 1e16: the second term of rms_norm's dx is lost."""
    x = (scale * RNG.standard_normal((2, 8))).astype("float32")
    weight, dy = RNG.standard_normal(8), RNG.standard_normal((2, 8))
    r = 1 / np.sqrt(np.mean(x.astype("float64") ** 2, -1, keepdims=True) + 1e-6)
    weight, dy = weight.astype("float32"), dy.astype("float32")
    along = x * r**3 * np.mean(dy * weight * x, -1, keepdims=True)
    got = [(r * dy * weight - kept * along).astype("float32"), None]
    found = judge("rms_norm", [x, weight], dy, got, attributes={"eps": 1e-6})
    assert found[0].verdict == expected, found[0].message


@pytest.mark.parametrize(
    ("size", "expected"), [(1e-39, "imprecise"), (1e-30, "disagree")]
)
def test_a_scalar_may_be_applied_before_a_matrix_product(size, expected):
    """(q / 32) k^T for q k^T / 32: of subnormal q, and of no other, digits are lost."""
    score = Op("score", inputs="q k", formula=lambda xp, q, k: xp.matmul(q, k) / 32.0)
    q = (size * RNG.standard_normal((4, 8))).astype("float32")
    k = (1e30 * RNG.standard_normal((8, 4))).astype("float32")
    q32 = (q / np.float32(32)).astype("float64")
    if size > 1e-38:  # as many digits lost, where nothing underflows
        q32 *= 1 + 1e-4 * RNG.standard_normal(q.shape)
    dy = np.ones((4, 4), "float32")
    gradients = [dy @ k.T / 32, q.T @ dy / 32]
    outputs = [(q32 @ k).astype("float32")]
    *_, y = judge(score, [q, k], dy, gradients, outputs=outputs)
    assert y.verdict == expected, y.message


@pytest.mark.parametrize(("dy", "expected"), [(1e3, "imprecise"), (10, "nonfinite")])
def test_a_product_of_inputs_may_be_taken_in_any_order(dy, expected):
    """Of dW = dy a b^T the formula takes a factor of 1e-3 before the other of 500."""
    a, b = np.full((1, 3), 500, "float16"), np.full((1, 2), 1e-3, "float16")
    w, dy = np.ones((4, 3, 2), "float16"), np.full((1, 4), dy, "float16")
    got = [a * 0, b * 0, np.full(w.shape, np.inf, "float16"), np.zeros(4, "float16")]
    j = judge("bilinear", [a, b, w, got[3]], dy, got)[2]
    assert j.verdict == expected, j.message


@pytest.mark.parametrize(("sign", "expected"), [(-1, "imprecise"), (1, "nonfinite")])
def test_an_infinity_has_the_other_sign_only_where_such_a_term_overflows(
    sign, expected
):
    """y = 1e-3 a1 b +- 100 a2 b = 90 +- 6e6; a1 b alone is 9e4 and overflows float16.

    The outer product of a and b, taken first, is the way of the page's custom class.
    """
    a, b = np.array([[300, 200]], "float16"), np.array([[300]], "float16")
    w, dy = np.array([[[1e-3], [sign * 100]]], "float16"), np.zeros((1, 1), "float16")
    gradients = [a * 0, b * 0, w * 0, np.zeros(1, "float16")]
    outputs = [np.array([[-sign * np.inf]], "float16")]
    *_, y = judge("bilinear", [a, b, w, gradients[3]], dy, gradients, outputs=outputs)
    assert y.verdict == expected, y.message


def test_a_factor_of_zero_has_no_exponent_and_excuses_nothing():
    """No warning of a logarithm either: those are errors here."""
    weighted = Op("weighted", inputs="x", formula=lambda xp, x: x * x + 0.0 * xp.exp(x))
    x = np.float32([1.0, 2.0, 3.0])
    assert verdict(weighted, [x], np.ones(3), 2 * x) == "agree"
    assert verdict(weighted, [x], np.ones(3), 3 * x) == "disagree"


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


def test_magnitudes_beyond_float64_print_no_warning():
    """As behind twelve layers whose scores are masked by the least number."""
    x = graph.variable(np.full(3, 1e200))
    square = x * x + x @ x
    assert np.isposinf(magnitudes(graph.topological_order([square]))[square]).all()
