"""Verdicts: each way of being wrong is rejected, and what rounding explains is not."""

import numpy as np
import pytest

from gradwatch.harness import assert_agrees, judge
from gradwatch.harness.judging import reference as reference_module
from gradwatch.harness.judging import verdict
from gradwatch.harness.project.verdicts import PASSING, VERDICTS
from gradwatch.impls import catalogue
from gradwatch.impls.catalogue import UnknownName
from gradwatch.impls.contract import Op, Problem

pytestmark = pytest.mark.usefixtures("undiagnosed")

RNG = np.random.default_rng(20)
EPS = {"eps": 1e-5}


def layer_norm(dtype="float64", rows=3, spread=1.0, mean=0.0):
    """Inputs, a cotangent and the right gradients, by the page's own hand."""
    x = (mean + spread * RNG.standard_normal((rows, 8))).astype(dtype)
    weight, bias = (RNG.standard_normal(8).astype(dtype) for _ in range(2))
    dy = RNG.standard_normal((rows, 8)).astype(dtype)
    manual = catalogue.load_op("layer_norm").said("manual")
    _, backward = manual(x, weight, bias, **EPS)
    return [x, weight, bias], dy, list(backward(dy))


def verdicts(op, inputs, dy, gradients, **more):
    return [j.verdict for j in judge(op, inputs, dy, gradients, **more)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_right_gradient_agrees(dtype):
    inputs, dy, gradients = layer_norm(dtype)
    assert (
        verdicts("layer_norm", inputs, dy, gradients, attributes=EPS) == ["agree"] * 3
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("mean", "spread"), [(1e4, 1e-3), (0, 1e-6), (0, 1e6)])
def test_a_right_gradient_passes_at_any_scale(dtype, mean, spread):
    inputs, dy, gradients = layer_norm(dtype, mean=mean, spread=spread)
    found = judge("layer_norm", inputs, dy, gradients, attributes=EPS)
    assert all(j.passes for j in found), [j.message for j in found]


def none(g):
    return None


def unsummed(g):
    return np.stack([g, g])


def narrower(g):
    return g.astype("float32")


def one_element(g):
    g = g.copy()
    g.flat[-1] *= 1 + 1e-9
    return g


def one_sign(g):
    g = g.copy()
    g.flat[0] = -g.flat[0]
    return g


def all_nan(g):
    return np.full_like(g, np.nan)


def one_inf(g):
    g = g.copy()
    g.flat[3] = np.inf
    return g


SPOILT = [
    (none, "malformed"),
    (unsummed, "malformed"),
    (narrower, "malformed"),
    (one_element, "disagree"),
    (one_sign, "disagree"),
    (np.zeros_like, "disagree"),
    (np.negative, "disagree"),
    (all_nan, "nonfinite"),
    (one_inf, "nonfinite"),
]


@pytest.mark.parametrize("tensor", range(3))
@pytest.mark.parametrize(
    ("spoil", "verdict"), SPOILT, ids=[getattr(s, "__name__", "") for s, _ in SPOILT]
)
def test_each_way_of_being_wrong_has_its_verdict(spoil, verdict, tensor):
    inputs, dy, gradients = layer_norm()
    gradients[tensor] = spoil(gradients[tensor])
    expected = ["agree"] * 3
    expected[tensor] = verdict
    assert verdicts("layer_norm", inputs, dy, gradients, attributes=EPS) == expected


def test_a_float32_intermediate_inside_float64_disagrees():
    inputs, dy, gradients = layer_norm()
    gradients[0] = gradients[0].astype("float32").astype("float64")
    assert (
        verdicts("layer_norm", inputs, dy, gradients, attributes=EPS)[0] == "disagree"
    )


def test_zeros_for_a_softmax_gradient_near_1e_7_disagree_in_float64():
    x = np.array([0.0, -16.0, -17.0])
    (j,) = judge(
        "softmax", [x], [1.0, -1.0, 0.5], [np.zeros(3)], attributes={"axis": 0}
    )
    assert 1e-8 < abs(j.expected) < 1e-6
    assert j.verdict == "disagree"


def test_the_same_zeros_pass_allclose():
    """The reason for all this: the usual tolerance cannot see them."""
    y = np.exp([0.0, -16.0, -17.0])
    y /= y.sum()
    dy = np.array([1.0, -1.0, 0.5])
    assert np.allclose(np.zeros(3), y * (dy - (dy * y).sum()), atol=1e-5)


def test_of_an_empty_tensor_shape_and_dtype_are_all_that_there_is():
    (j,) = judge("square", [np.ones((0, 3))], np.ones((0, 3)), [np.ones((0, 3))])
    assert (j.verdict, j.vacuous) == ("agree", 0.0)
    assert "shape and dtype" in j.message


def test_a_gradient_that_vanishes_by_construction_is_vacuous():
    """Softmax has no gradient along a cotangent of ones: only rounding is left."""
    x = RNG.standard_normal((2, 5)).astype("float32")
    (j,) = judge(
        "softmax", [x], np.ones_like(x), [np.zeros_like(x)], attributes={"axis": 1}
    )
    assert j.verdict == "vacuous"
    assert j.vacuous == 1.0


def test_the_constant_row_of_layer_norm_in_float32_is_within_the_second_order_radius():
    """PyTorch is off by 0.47 % here: variance exactly 0, the mean rounded at 1e4.

    The error of x - mean(x), one ulp of 1e4, is divided by sqrt(eps); a first-order
    radius takes 1 / sqrt(var + eps) for exact and is four decades too small.
    """
    torch = pytest.importorskip("torch")
    x = torch.full((1, 8), 1e4 + 0.123, requires_grad=True)
    weight, bias = torch.randn(8), torch.zeros(8)
    dy = torch.randn(1, 8)
    y = torch.nn.functional.layer_norm(x, (8,), weight, bias, 1e-5)
    (dx,) = torch.autograd.grad(y, x, dy)
    inputs = [t.detach().numpy() for t in (x, weight, bias)]
    h = np.zeros(8, "float32")
    j = judge(
        "layer_norm", inputs, dy.numpy(), [dx.numpy(), h, dy.numpy()[0]], attributes=EPS
    )[0]
    assert j.passes, j.message


# Ties ---------------------------------------------------------------------------

A, B = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.5, 2.0])


@pytest.mark.parametrize(
    ("da0", "db0", "convention"),
    [(1.0, 0.0, "first"), (0.0, 1.0, "last"), (0.5, 0.5, "even")],
)
def test_a_subgradient_at_a_tie_is_a_convention_with_a_name(da0, db0, convention):
    gradients = [np.array([da0, 0.0, 1.0]), np.array([db0, 1.0, 0.0])]
    found = judge("maximum", [A, B], np.ones(3), gradients)
    assert [j.verdict for j in found] == ["convention"] * 2
    assert {j.convention for j in found} == {convention}
    assert convention in found[0].message


@pytest.mark.parametrize(("da0", "db0"), [(1.0, 1.0), (0.0, 0.0), (2.0, -1.0)])
def test_shares_at_a_tie_that_do_not_add_up_to_the_cotangent_disagree(da0, db0):
    gradients = [np.array([da0, 0.0, 1.0]), np.array([db0, 1.0, 0.0])]
    assert "disagree" in verdicts("maximum", [A, B], np.ones(3), gradients)


def test_a_wrong_element_beside_a_tie_disagrees():
    gradients = [np.array([1.0, 1.0, 1.0]), np.array([0.0, 1.0, 0.0])]
    assert "disagree" in verdicts("maximum", [A, B], np.ones(3), gradients)


def test_a_kink_of_a_formula_of_ones_own():
    op = Op("modulus", inputs="x", formula=lambda xp, x: xp.abs(x))
    x = np.array([-2.0, 0.0, 2.0])
    for slope, convention in ((0.0, "even"), (1.0, "first"), (-1.0, "last")):
        (j,) = judge(op, [x], np.ones(3), [np.array([-1.0, slope, 1.0])])
        assert (j.verdict, j.convention) == ("convention", convention)
    assert verdicts(op, [x], np.ones(3), [np.array([-1.0, 2.0, 1.0])]) == ["disagree"]


TIED = np.array([[3.0, 3.0, 1.0], [2.0, 2.0, 2.0], [5.0, 1.0, 5.0]])
LARGEST = Op("largest", inputs="x", formula=lambda xp, x: xp.max(x, axis=1))
DY = np.array([1.5, -2.0, 3.0])


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ([[1, 0, 0], [0, 0, 1], [0.5, 0, 0.5]], "convention"),  # first, last, even
        ([[1, 0, 0], [0, 1, 0], [0, 0, 1]], "convention"),  # the one in the middle
        ([[0.3, 0.7, 0], [0.2, 0.5, 0.3], [0.5, 0, 0.5]], "convention"),
        ([[1, 0, 0], [0.5, 0.5, 0.5], [0, 0, 1]], "disagree"),  # one and a half
        ([[1, 0, 0], [0, 0, 0], [0, 0, 1]], "disagree"),
        ([[1, 0, 0], [1.5, 0, -0.5], [0, 0, 1]], "disagree"),  # no convex share
        ([[1, 0, 0], [0, 0, 1], [0.5, 0.5, 0]], "disagree"),  # to what is no maximum
        ([[1, 0, 0], [0, 0, 1], [0.499, 0, 0.5]], "disagree"),
    ],
)
def test_each_row_may_take_any_member_of_the_subdifferential(shares, verdict):
    dx = np.array(shares) * DY[:, None]
    (j,) = judge(LARGEST, [TIED], DY, [dx])
    assert j.verdict == verdict, j.message


@pytest.mark.parametrize(("lost", "passes"), [(0.0, True), (1e-5, False)])
@pytest.mark.parametrize("seed", range(3))
def test_shares_in_windows_are_rounded_though_the_weights_are_0_and_1(
    seed, lost, passes
):
    """With cotangents of 1, too, whose product with a mask rounds nothing."""
    x = np.random.default_rng(seed).integers(-1, 1, (1, 1, 4, 4)).astype(np.float32)
    dx, steps = np.zeros_like(x), {"size": 3, "stride": 1, "padding": 0}
    for i, j in np.ndindex(2, 2):
        window = (..., slice(i, i + 3), slice(j, j + 3))
        top = x[window] == x[window].max()
        dx[window] += top / np.float32(top.sum() * (1 + lost))
    dy = np.ones((1, 1, 2, 2), np.float32)
    (found,) = judge("max_pool2d", [x], dy, [dx], attributes=steps)
    assert found.passes == passes, found.message


@pytest.mark.parametrize(
    ("da", "db", "expected"),
    [
        ([1.0, 0.0, 0.25], [0.0, 1.0, 0.75], ["convention"] * 2),
        ([1.0, 0.0, 1.0], [0.0, 1.0, 1.0], ["disagree"]),  # each right by some rule
        ([1.0, 0.0, 0.25], [0.0, 1.0, 0.74], ["disagree"]),
    ],
)
def test_tied_elements_of_two_inputs_share_one_cotangent(da, db, expected):
    a = np.array([1.0, 2.0, 3.0])
    found = [j.verdict for j in judge("maximum", [a, a], np.ones(3), [da, db])]
    assert set(expected) <= set(found)
    assert ("disagree" in found) == (expected == ["disagree"])


def test_choices_that_a_product_mixes_are_not_told_apart():
    w = np.array([[1.0, 2.0], [3.0, 4.0]])
    op = Op("mixing", inputs="x", formula=lambda xp, x: xp.abs(x @ w))
    kinks = [np.array([[1.0, 0.3]]) @ w.T]  # no named convention gives it
    assert verdicts(op, [np.zeros((1, 2))], np.ones((1, 2)), kinks) == ["disagree"]


# Repeated indices ---------------------------------------------------------------

EMBEDDING = Op("embedding", inputs="w", formula=lambda xp, w: w[np.array([2, 0, 2, 2])])


def test_the_gradient_of_a_repeated_index_is_the_sum_of_its_cotangents():
    w, dy = RNG.standard_normal((3, 5)), RNG.standard_normal((4, 5))
    right, last_wins = np.zeros((3, 5)), np.zeros((3, 5))
    np.add.at(right, [2, 0, 2, 2], dy)
    last_wins[[2, 0, 2, 2]] = dy
    assert verdicts(EMBEDDING, [w], dy, [right]) == ["agree"]
    assert verdicts(EMBEDDING, [w], dy, [last_wins]) == ["disagree"]


# The call -----------------------------------------------------------------------


def test_an_op_of_ones_own_needs_only_a_formula():
    gate = Op("silu", inputs="x", formula=lambda xp, x: x * xp.sigmoid(x))
    x = RNG.standard_normal(7)
    s = 1 / (1 + np.exp(-x))
    assert_agrees(gate, [x], np.ones(7), [s * (1 + x * (1 - s))])
    with pytest.raises(AssertionError, match=r"silu: dx\["):
        assert_agrees(gate, [x], np.ones(7), [s * (1 - x * (1 - s))])


def test_the_error_tells_the_whole_story():
    inputs, dy, gradients = layer_norm()
    gradients[0][1, 4] += 1e-3
    with pytest.raises(AssertionError) as caught:
        assert_agrees("layer_norm", inputs, dy, gradients, attributes=EPS)
    told = str(caught.value)
    for part in (
        "layer_norm",
        "dx[1, 4]",
        "got",
        "expected",
        "rounding radius",
        "float",
    ):
        assert part in told


def test_outputs_are_judged_after_the_gradients():
    x = RNG.standard_normal(5)
    found = judge("square", [x], np.ones(5), [2 * x], outputs=[x * x * (1 + 1e-12)])
    assert [(j.tensor, j.verdict) for j in found] == [
        ("dx", "agree"),
        ("y", "disagree"),
    ]


def test_the_precision_may_be_narrower_than_the_arrays():
    """A bfloat16 kernel's result, held in float32 because NumPy has no bfloat16."""
    x = np.array([1.0, 1.5, -2.0], "float32")
    off = (2 * x * (1 + 2.0**-8)).astype("float32")
    assert verdicts("square", [x], np.ones(3), [off]) == ["disagree"]
    assert verdicts("square", [x], np.ones(3), [off], dtype="bfloat16") != ["disagree"]


WRONG_CALLS = [
    ({"inputs": [np.ones(3)] * 2}, "inputs x"),
    ({"gradients": []}, "gradients dx"),
    ({"dy": np.ones(4)}, r"cotangent has shape \(4,\)"),
    ({"dtype": "float23"}, "no precision 'float23'"),
    ({"dtype": "float64", "inputs": [np.ones(3, "float32")]}, "cannot hold float64"),
    ({"attributes": {}}, "formula of .*: missing a required .*'axis'"),
    ({"attributes": {"axis": 0, "axes": 1}}, "unexpected keyword argument 'axes'"),
    ({"outputs": []}, "has outputs y"),
]


@pytest.mark.parametrize(
    ("change", "told"), WRONG_CALLS, ids=[t for _, t in WRONG_CALLS]
)
def test_a_wrong_call_is_a_value_error_that_says_what(change, told):
    call = {"op": "softmax", "inputs": [np.ones(3)], "dy": np.ones(3)}
    call |= {"gradients": [np.zeros(3)], "attributes": {"axis": 0}}
    with pytest.raises(ValueError, match=told):
        judge(**(call | change))


def test_an_unknown_op_is_answered_with_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'softmax'"):
        judge("sofmax", [np.ones(3)], np.ones(3), [np.zeros(3)])


# Where extended precision is no wider than float64 ---------------------------------


def test_without_extended_precision_the_radius_says_so(monkeypatch):
    """Never float64 silently by float64: the reference's own roundoff is added."""
    inputs, dy, gradients = layer_norm()
    wide = judge("layer_norm", inputs, dy, gradients, attributes=EPS)[0]
    monkeypatch.setattr(
        reference_module, "wider", lambda precision: np.dtype("float64")
    )
    same = judge("layer_norm", inputs, dy, gradients, attributes=EPS)[0]
    assert same.passes
    index = wide.worst_index
    narrow = reference_radius(inputs, dy)[index]
    assert narrow == pytest.approx(2 * wide.radius, rel=1e-2)


def reference_radius(inputs, dy):
    from gradwatch.impls.contract import Problem

    op = catalogue.load_op("layer_norm")
    problem = Problem(op, dict(zip(op.inputs, inputs, strict=True)), [dy], EPS)
    return reference_module.reference(problem).radii().bounds["dx"].radius


def test_every_verdict_either_passes_or_fails():
    assert set(PASSING) < set(VERDICTS)
    assert len(VERDICTS) == len(set(VERDICTS)) == 11


def squared(n):
    """A reference, and the tensors that are right."""
    x, dy = RNG.standard_normal((2, n))
    op = catalogue.load_op("square")
    right = reference_module.reference(Problem(op, {"x": x}, [dy]))
    got = {"dx": 2 * x * dy, "y": x * x}
    return right, got, dict.fromkeys(got, "float64")


def test_numbers_of_another_tensor_shape_or_dtype_are_wrong():
    right, got, dtypes = squared(8)
    for tensors, told in [
        (got, dtypes),
        ({**got, "y": got["dx"]}, dtypes),
        ({**got, "dx": got["dx"].reshape(2, 4)}, dtypes),
        (got, {**dtypes, "dx": "float32"}),
    ]:
        js = verdict.judge_tensors(right, tensors, told)
        as_they_are = tensors is got and told is dtypes
        assert all(j.verdict == "agree" for j in js) == as_they_are


# Tensors of a framework -----------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_framework_s_tensors_are_judged_as_they_are(dtype):
    """With requires_grad, not contiguous, in a type that NumPy lacks."""
    torch = pytest.importorskip("torch")
    x = torch.randn(5, 4, dtype=getattr(torch, dtype)).T.requires_grad_()
    dy, other = torch.ones_like(x), torch.float16
    gradient = (2 * x).requires_grad_()
    given = [gradient, 1.5 * gradient, gradient.to(other)]
    found = [judge("square", [x], dy, [g])[0].verdict for g in given]
    assert found == ["agree", "disagree", "malformed"]


def test_what_judge_returns_shows_itself_as_a_table_at_a_prompt_and_in_a_notebook():
    found = judge("square", [[1.0, 2.0]], [1.0, 1.0], [[2.0, 5.0]])
    header, line, told = repr(found).splitlines()
    assert header.split() == [
        "tensor",
        "verdict",
        "got",
        "expected",
        "ratio",
        "limit",
        "at",
    ]
    assert line.split()[:5] == ["✗", "dx", "disagree", "5", "4"]
    assert told.startswith("dx[1]: got 5, expected 4;")
    *_, told = repr(judge("square", [[1.0, 2.0]], [1.0, 1.0], [None])).splitlines()
    assert told == "dx: None where a gradient is due"
    assert len(repr(judge("square", [[1.0]], [1.0], [[2.0]])).splitlines()) == 2
    page = found._repr_html_()
    assert page.count("<tr>") == 2
    assert "color:" in page.partition("<tbody>")[2]
    assert "color:" not in page.partition("<tbody>")[0]
