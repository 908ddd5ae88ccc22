"""Overflow, infinities and masks: what is certain is demanded, and nothing else."""

import numpy as np
import pytest

from gradwatch.harness import assert_agrees, judge
from gradwatch.impls.contract import Op

pytestmark = pytest.mark.usefixtures("undiagnosed")


def attention(xp, q, k, v, mask):
    scores = xp.matmul(q, k.T) + mask
    weights = xp.exp(scores - xp.stop_gradient(xp.max(scores, axis=-1, keepdims=True)))
    return xp.matmul(weights / xp.sum(weights, axis=-1, keepdims=True), v)


ATTENTION = Op("attention", inputs="q k v mask", formula=attention)


def attended(dtype, masked):
    """Inputs, cotangent and gradients of q, k, v and mask, written out in NumPy."""
    rng = np.random.default_rng(5)
    q, k, v, dy = (rng.standard_normal((6, 4)).astype(dtype) for _ in range(4))
    upper = np.triu(np.ones((6, 6), bool), 1)
    mask = np.where(upper, masked, 0).astype(dtype)
    scores = q @ k.T + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    dw = dy @ v.T
    ds = weights * (dw - (weights * dw).sum(-1, keepdims=True))
    return [q, k, v, mask], dy, [ds @ k, ds.T @ q, weights.T @ dy, ds]


MASKS = [-np.inf, -1e30, np.finfo("float32").min, -1e4]


@pytest.mark.parametrize("masked", MASKS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_causal_attention_is_judged_whatever_masks_it(dtype, masked):
    inputs, dy, gradients = attended(dtype, masked)
    found = judge(ATTENTION, inputs, dy, gradients)
    assert {j.verdict for j in found} == {"agree"}
    # The first row sees itself alone: its gradient is 0 by construction.
    assert max(j.vacuous for j in found) <= 1 / 6 + 1e-9


@pytest.mark.parametrize("masked", MASKS)
@pytest.mark.parametrize("tensor", range(4))
def test_a_wrong_gradient_beside_a_mask_is_caught(masked, tensor):
    inputs, dy, gradients = attended("float32", masked)
    gradients[tensor][1, 3] += 1e-4
    assert judge(ATTENTION, inputs, dy, gradients)[tensor].verdict == "disagree"


@pytest.mark.parametrize("masked", MASKS)
def test_a_gradient_that_leaks_through_the_mask_is_caught(masked):
    inputs, dy, gradients = attended("float32", masked)
    gradients[3][0, 5] = 1e9
    assert judge(ATTENTION, inputs, dy, gradients)[3].verdict == "disagree"


# Overflow -----------------------------------------------------------------------

EXP = Op("exp", inputs="x", formula=lambda xp, x: xp.exp(x))


@pytest.mark.parametrize(
    ("got", "passes"), [(np.inf, True), (-1.0, False), (-np.inf, False)]
)
def test_where_overflow_is_certain_the_right_infinity_is_due(got, passes):
    x = np.array([1.0, 200.0], "float32")
    (j,) = judge(EXP, [x], np.ones(2), [np.array([np.exp(x[0]), got], "float32")])
    assert j.passes is passes


@pytest.mark.parametrize("beside", [1.0, 100.0])
def test_a_finite_number_where_an_infinity_is_due_is_nonfinite(beside):
    """That of exp(100) in float32 is 2.7e43; nothing else that came is infinite."""
    x = np.array([beside, 100.0], "float32")
    (j,) = judge(EXP, [x], np.ones(2), [np.array([np.e, 3e38], "float32")])
    assert (j.verdict, j.ratio) == ("nonfinite", np.inf)
    assert "expected 2.68" in j.message


@pytest.mark.parametrize(
    ("y", "got", "passes"),
    [
        (3.4019929e38, np.inf, True),  # half a unit or more above the largest number
        (5e38, -np.inf, False),
        (3.39e38, 3.3895314e38, True),
        (3e38, np.inf, False),
    ],
)
def test_a_value_is_infinite_from_half_a_unit_above_the_largest_one(y, got, passes):
    """In bfloat16 that is 2^128 (1 - 2^-9) = 3.39617e38, which float32 can hold."""
    copy = Op("copy", inputs="x", formula=lambda xp, x: x * 2.0)
    inputs, gradients = [np.array([y / 2])], [np.array([2.0])]
    dy, outputs = np.ones(1), [np.array([got])]
    found = judge(copy, inputs, dy, gradients, outputs=outputs, dtype="bfloat16")
    assert found[1].passes is passes, found[1].message


@pytest.mark.parametrize(
    ("first", "passes"), [(2.0, True), (np.nan, False), (np.inf, False)]
)
@pytest.mark.parametrize("beside", [np.nan, np.inf])
def test_a_window_knows_nothing_of_what_is_not_a_number_beside_it(
    beside, first, passes
):
    """A kernel that multiplies it by zero, as padding, is wrong, in every precision."""
    x, w = np.array([[[1.0, 1.0, beside]]]), np.ones((1, 1, 2))
    dy = np.zeros((1, 1, 2))
    gradients = [np.zeros((1, 1, 3)), np.array([[[0.0, np.nan]]]), np.zeros(1)]
    inputs, outputs = [x, w, np.zeros(1)], [np.array([[[first, beside]]])]
    options = {"outputs": outputs, "dtype": "bfloat16"}
    *_, y = judge("conv1d", inputs, dy, gradients, **options)
    assert y.passes is passes, y.message


def test_terms_that_overflow_may_cancel_to_anything():
    """Honest arithmetic gives inf - inf; a wider accumulator gives 0. Both pass."""
    product = Op("product", inputs="a b", formula=lambda xp, a, b: xp.matmul(a, b))
    a, b = np.full((1, 2), 2e19, "float32"), np.array([[2e19], [-2e19]], "float32")
    dy, gradients = np.ones((1, 1), "float32"), [b.T, a.T]
    for y in (np.nan, 0.0):
        outputs = [np.full((1, 1), y, "float32")]
        found = judge(product, [a, b], dy, gradients, outputs=outputs)
        assert all(j.passes for j in found), found


def test_zero_times_what_may_be_infinite_may_be_nan():
    gate = Op("gate", inputs="x", formula=lambda xp, x: (x - x) * xp.exp(x))
    x = np.array([200.0], "float32")
    for dx in (np.nan, np.inf):
        (j,) = judge(gate, [x], np.ones(1), [np.array([dx], "float32")])
        assert j.passes


def test_the_sine_of_what_overflows_is_not_judged():
    wave = Op("wave", inputs="x", formula=lambda xp, x: xp.sin(x * x))
    x = np.array([1e30], "float32")
    (j,) = judge(wave, [x], np.ones(1), [np.array([np.nan], "float32")])
    assert j.verdict == "vacuous"


@pytest.mark.parametrize(
    ("got", "verdict"), [(1.0, "agree"), (0.5, "disagree"), (np.nan, "nonfinite")]
)
@pytest.mark.parametrize("name", ["erf", "tanh", "sigmoid"])
def test_a_function_that_is_bounded_is_known_where_its_argument_overflows(
    name, got, verdict
):
    step = Op("step", inputs="x", formula=lambda xp, x: getattr(xp, name)(x * x))
    x, dy, dx = (np.full(1, v, "float32") for v in (1e30, 1, 0))
    found = judge(step, [x], dy, [dx], outputs=[np.full(1, got, "float32")])
    assert found[1].verdict == verdict, found[1].message


def test_nan_in_an_ordinary_place_is_not_excused_by_large_numbers_elsewhere():
    square = Op("square", inputs="x", formula=lambda xp, x: x * x)
    x = np.array([1.0, 3.0], "float32")
    (j,) = judge(square, [x], np.ones(2), [np.array([np.nan, 6], "float32")])
    assert j.verdict == "nonfinite"


def test_a_divisor_that_may_be_infinite_leaves_no_infinity_certain():
    """x / sqrt(x^2) is 1, and 0 where x^2 overflows: then y is b, and not infinite."""

    def formula(xp, x, b):
        return x / xp.sqrt(x * x) * 1e38 + b

    shifted = Op("shifted", inputs="x b", formula=formula)
    b, dy = np.array([3e38, 3e38], "float32"), np.ones(2)
    for x, y, passes in ((1e30, 3e38, True), (1.0, 3e38, False), (1.0, np.inf, True)):
        inputs = [np.full(2, x, "float32"), b]
        gradients = [np.zeros(2, "float32"), np.ones(2, "float32")]
        outputs = [np.full(2, y, "float32")]
        found = judge(shifted, inputs, dy, gradients, outputs=outputs)
        assert found[-1].passes is passes, found[-1].message


@pytest.mark.parametrize("accumulate", ["scatter", "cumulate"])
@pytest.mark.parametrize(("large", "passes"), [(6e4, True), (6e3, False)])
def test_a_sum_may_overflow_on_the_way_to_a_result_that_does_not(
    accumulate, large, passes
):
    terms = np.array([large, large, -large, -large, 1.0], "float16")
    places = np.zeros(5, int)
    formulas = {
        "scatter": lambda xp, x: xp.scatter_add(x, index=places, shape=(1,)),
        "cumulate": lambda xp, x: xp.cumulative_sum(x)[4:],
    }
    op = Op(accumulate, inputs="x", formula=formulas[accumulate])
    for y, right in ((1.0, True), (np.inf, passes), (np.nan, passes)):
        found = judge(
            op,
            [terms],
            np.ones(1, "float16"),
            [np.ones(5, "float16")],
            outputs=[np.array([y], "float16")],
        )
        assert found[1].passes is right, found[1].message


@pytest.mark.parametrize(("wrong", "verdict"), [(0, "imprecise"), (1, "nonfinite")])
def test_an_excused_infinity_excuses_no_finite_error_beside_it(wrong, verdict):
    """2 dy is beyond float32 in the first element, and in the second it is 2."""
    x, dy = np.array([-1e-3, 3.0], "float32"), np.array([2e38, 1.0], "float32")
    dx = np.array([-np.inf, 6 + wrong], "float32")
    assert judge("square", [x], dy, [dx])[0].verdict == verdict


@pytest.mark.parametrize(("off", "verdict"), [(1, "imprecise"), (1.5, "disagree")])
def test_an_infinity_that_is_due_is_no_obstacle_to_an_excuse(off, verdict):
    """Both columns are added up one by one, and that of 1e38 is infinite."""
    bias = Op("bias", inputs="a b", formula=lambda xp, a, b: a + b)
    dy = np.full((4096, 2), [0.1, 1e38], "float32")
    with np.errstate(over="ignore"):
        db = np.add.accumulate(dy)[-1] * np.float32(off)
    inputs = [np.zeros_like(dy), np.zeros(2, "float32")]
    assert judge(bias, inputs, dy, [dy, db])[1].verdict == verdict


# Underflow ----------------------------------------------------------------------


@pytest.mark.parametrize("got", [0.0, 1.2e-38 / 4])
def test_a_product_that_underflows_may_be_flushed_and_is_not_vacuous(got):
    x = np.array([1e-30, 1.0], "float32")
    dy = np.array([1e-10, 1.0], "float32")
    (j,) = judge("square", [x], dy, [np.array([got, 2.0], "float32")])
    assert (j.verdict, j.vacuous) == ("agree", 0.0)


def test_an_underflow_explains_no_number_of_ordinary_size():
    x = np.array([1e-30, 1.0], "float32")
    dy = np.array([1e-10, 1.0], "float32")
    (j,) = judge("square", [x], dy, [np.array([1e-30, 2.0], "float32")])
    assert j.verdict == "disagree"


# What nothing can be said of ------------------------------------------------------


def test_an_assertion_fails_where_nothing_can_be_said():
    cancel = Op("cancel", inputs="x", formula=lambda xp, x: xp.sqrt(x - x * 1.1 / 1.1))
    x = np.array([2.0, 3.0], "float32")
    with pytest.raises(AssertionError, match="shows nothing"):
        assert_agrees(cancel, [x], np.ones(2), [np.zeros(2, "float32")])
    assert_agrees(cancel, [x], np.ones(2), [np.zeros(2, "float32")], allow_vacuous=True)


def test_the_log_softmax_of_one_class_is_exactly_zero():
    """Every step of it is exact: x - x, exp(0), a sum of one term, log(1)."""
    x, dy, nothing = np.full((3, 1), 0.3), np.ones((3, 1)), np.zeros((3, 1))
    for y, verdict in ((nothing, "agree"), (nothing + 1e-16, "disagree")):
        found = judge(
            "log_softmax", [x], dy, [nothing], outputs=[y], attributes={"axis": 1}
        )
        assert found[1].verdict == verdict, found[1].message


def test_an_error_in_the_log_softmax_of_one_class_is_not_excused_in_float32():
    """All of it is zero, so that zeros would pass."""
    x, dy, nothing = np.full((3, 1), 1e3), np.ones((3, 1)), np.zeros((3, 1), "float32")
    found = judge(
        "log_softmax",
        [x],
        dy,
        [nothing],
        outputs=[nothing + np.float32(1.4e-6)],
        attributes={"axis": 1},
        dtype="float32",
    )
    assert found[1].verdict == "vacuous", found[1].message


def grown(xp, x):
    return -2 * x * xp.exp(x)


def softplus(xp, x):
    return xp.log(1 + xp.exp(x))


def log_sigmoid(xp, x):
    return xp.log(xp.sigmoid(-x))


def faded(xp, x):
    return xp.tanh(xp.exp(x / 2) - xp.exp(x))


def damped(xp, x):
    return xp.exp(-xp.exp(-x / 3) * xp.exp(x))


@pytest.mark.parametrize(
    ("formula", "right", "wrong"),
    [
        # In float32 inf - inf and 0 * inf, where float64 has one infinity.
        (faded, [np.nan, -1, -0.7892956, 1.3887944e-11], [np.nan, -1, 0, 0]),
        (damped, [np.nan, 0, 0.1425968, 1], [np.nan, 0, 0, 1]),
        (
            grown,
            [-np.inf, -np.inf, -5.4365637, 1.928750e-20],
            [5, -np.inf, -5.4365637, 0],
        ),
        (softplus, [900, 800, 1.3132617, 1.9287498e-22], [900, 800, 1.3133, 2e-22]),
        (softplus, [900, 800, 1.3132617, 1.9287498e-22], [900, 800, 1.3132617, 1e-3]),
        (log_sigmoid, [-900, -800, -1.3132617, -1e-22], [-900, -800, -1.3133, -1e-22]),
    ],
)
def test_an_infinity_is_due_unless_only_the_formula_overflows(formula, right, wrong):
    op = Op("op", inputs="x", formula=formula)
    x = np.array([900.0, 800.0, 1.0, -50.0], "float32")
    for y, passes in ((right, True), (wrong, False)):
        y = np.array(y, "float32")
        _, j = judge(op, [x], np.ones(4, "float32"), [x], outputs=[y])
        assert j.passes is passes, j.message
