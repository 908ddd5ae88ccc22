"""Agreement is earned: of a tensor that may have the other sign nothing was told."""

import numpy as np
import pytest

from gradwatch.harness import judge
from gradwatch.impls.contract import Op

SQUARE = Op("square_of", inputs="x", formula=lambda xp, x: xp.square(x))
SCALED = Op("scaled", inputs="x", formula=lambda xp, x: 4.0 * x)
WRONG = {
    "right": lambda g: g,
    "the other sign": lambda g: -g,
    "zeros": np.zeros_like,
    "twice": lambda g: np.ldexp(g, 1),
    "a neighbour's": lambda g: np.roll(g, 1),
}


def verdict(op, x, dy, dx):
    with np.errstate(all="ignore"):
        return judge(op, [x], dy, [dx])[0].verdict


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gradient_of_subnormal_numbers_alone_tells_nothing(wrong, dtype):
    """Honest hardware flushes all of them to zero."""
    least = np.finfo(dtype).smallest_normal
    x = np.array([1, -2, 3], dtype) * np.sqrt(least)
    dy = np.array([0.3, -0.1, 0.2], dtype) * np.sqrt(least)
    dx = 2 * x * dy
    assert (np.abs(dx) < 2 * least).all()
    assert dx.all()
    assert verdict(SQUARE, x, dy, WRONG[wrong](dx)) == "vacuous"


@pytest.mark.parametrize("wrong", WRONG)
def test_zeros_beside_numbers_of_which_nothing_is_known_do_not_earn_agreement(wrong):
    """Most of dx is exactly 0, and the rest is so large that it may overflow."""
    dy = np.zeros(9, "float16")
    dy[4] = 16376.0  # 65504 times 4 is at the end of the range
    with np.errstate(over="ignore"):
        dx = WRONG[wrong](4 * dy)
    found = verdict(SCALED, np.ones(9, "float16"), dy, dx)
    assert (found == "agree") == (wrong == "right")


def test_a_gradient_that_is_zero_in_its_format_is_known_to_be_zero():
    """2 x dy is 2e-60: any number that is not zero would be seen."""
    x, dy = np.full((2, 3), 1e-30, "float32")
    assert verdict(SQUARE, x, dy, np.zeros(3, "float32")) == "agree"
    assert verdict(SQUARE, x, dy, np.full(3, 1e-30, "float32")) == "disagree"


def test_an_underflow_beside_ordinary_numbers_leaves_these_judged():
    x, dy = np.array([[1e-30, 1.0], [1e-10, 1.0]], "float32")
    dx = 2 * x * dy
    assert verdict(SQUARE, x, dy, dx) == "agree"
    assert verdict(SQUARE, x, dy, -dx) == "disagree"


@pytest.mark.parametrize("wrong", WRONG)
def test_what_may_overflow_everywhere_is_not_imprecise_but_tells_nothing(wrong):
    """(2 x) dy or x (2 dy) may be infinite, so the double of a right one may be it."""
    x, dy = np.full(3, 204.0, "float16"), np.full(3, 160.0, "float16")
    right = 2 * x * dy
    with np.errstate(over="ignore"):
        dx = WRONG[wrong](right)
    found = verdict(SQUARE, x, dy, dx)
    assert found not in ("agree", "imprecise") or np.array_equal(dx, right)


@pytest.mark.parametrize("wrong", [w for w in WRONG if w != "right"])
def test_no_wrong_gradient_of_saturated_attention_agrees(wrong):
    """Of PyTorch's own sample of multi_head_attention_forward: a bias has 1e-40."""
    rng = np.random.default_rng(0)
    score = Op(
        "weighted",
        inputs="s v",
        formula=lambda xp, s, v: xp.sum(
            v * xp.exp(s) / xp.sum(xp.exp(s), axis=-1, keepdims=True), axis=-1
        ),
    )
    s = np.array([[0.0, -95.0, -93.0]], "float32")
    v = rng.standard_normal((1, 3)).astype("float32")
    dy = np.array([1e-1], "float32")
    p = np.exp(s) / np.exp(s).sum()
    ds, dv = dy * p * (v - (p * v).sum()), dy * p
    right = judge(score, [s, v], dy, [ds, dv])
    assert all(j.passes for j in right)
    if not np.array_equal(WRONG[wrong](ds), ds):
        assert judge(score, [s, v], dy, [WRONG[wrong](ds), dv])[0].verdict != "agree"
