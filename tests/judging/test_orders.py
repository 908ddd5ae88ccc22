"""Second orders: their reference against differences, and what their judge rejects."""

import zlib
from dataclasses import replace

import numpy as np
import pytest

from gradwatch.harness.diagnosis.entry import assert_agrees, judge
from gradwatch.harness.judging.cases import REGIMES, is_floating, of_order, trial
from gradwatch.harness.judging.orders import ORDERS, OTHER_SIDE, derivatives
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.impls import catalogue
from gradwatch.impls.backends.numpy_graph import backend
from gradwatch.impls.contract import Op
from tests.balls import balls, digits, precise
from tests.judging.test_reference import ENOUGH, FROZEN, STEP, outputs

OPS = [catalogue.load_op(name) for name in catalogue.op_names()]


def function_of(op, problem, arrays, cotangents):
    leaves, nodes = outputs(op, problem, arrays)
    named = dict(zip(problem.differentiated, nodes, strict=True))
    inputs = {name: leaves[name] for name in problem.wanted}
    tangents = {name: balls(v) for name, v in problem.tangents.items()}
    return named, inputs, cotangents, tangents


def pulled(function):
    """Sum of gradient * tangent: the scalar whose gradient the double backward is."""
    first, _ = derivatives("vjp", *function)
    return sum(np.sum(first[f"d{n}"].value * v) for n, v in function[-1].items())


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_hvp_is_the_derivative_of_the_gradient_to_25_digits(op):
    """Along all inputs and cotangents at once; differences in 400-bit balls.

    The gradient itself is held against the forward in test_reference.
    """
    case = next(iter(op.cases.values()))
    problem = of_order(trial(op, case, REGIMES["normal"], "float64"), "hvp").problem
    rng = np.random.default_rng(zlib.crc32(op.name.encode()))

    def direction(name, array):
        drawn = balls(rng.standard_normal(array.shape))
        if (case.name, name) in FROZEN:
            drawn[FROZEN[case.name, name]] *= 0
        return drawn

    with precise():
        arrays = {
            n: balls(a) if is_floating(a) else a for n, a in problem.inputs.items()
        }
        given = [balls(c) for c in problem.cotangents if c is not None]
        dy = dict(zip(problem.differentiated, given, strict=True))
        ways = {n: direction(n, arrays[n]) for n in problem.wanted}
        ways_dy = {f"d{n}": balls(rng.standard_normal(u.shape)) for n, u in dy.items()}
        moved = {
            n: a + ways[n] * balls(STEP) if n in ways else a for n, a in arrays.items()
        }
        moved_dy = {n: u + ways_dy[f"d{n}"] * balls(STEP) for n, u in dy.items()}
        here = function_of(op, problem, arrays, dy)
        there = function_of(op, problem, moved, moved_dy)
        slope = (pulled(there) - pulled(here)) / STEP
        second, _ = derivatives("hvp", *here)
        way = ways | ways_dy
        assert {f"hvp.d{n}" for n in way} == set(second)
        expected = sum(np.sum(second[f"hvp.d{n}"].value * way[n]) for n in way)
        assert digits(slope, expected) >= ENOUGH


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_jvp_is_the_derivative_of_the_forward_to_25_digits(op):
    case = next(iter(op.cases.values()))
    problem = of_order(trial(op, case, REGIMES["normal"], "float64"), "jvp").problem
    tangents = {n: v.copy() for n, v in problem.tangents.items()}
    for (frozen_case, name), row in FROZEN.items():
        if case.name == frozen_case and name in tangents:
            tangents[name][row] = 0
    problem = replace(problem, tangents=tangents)
    with precise():
        arrays = {
            n: balls(a) if is_floating(a) else a for n, a in problem.inputs.items()
        }
        given = [balls(c) for c in problem.cotangents if c is not None]
        dy = dict(zip(problem.differentiated, given, strict=True))
        moved = {
            n: a + balls(tangents[n]) * balls(STEP) if n in tangents else a
            for n, a in arrays.items()
        }
        here = function_of(op, problem, arrays, dy)
        _, there = outputs(op, problem, moved)
        pairs = zip(there, here[0].values(), given, strict=True)
        slope = sum(np.sum((t.value - h.value) * u) for t, h, u in pairs) / STEP
        found, _ = derivatives("jvp", *here)
        named = zip(problem.differentiated, given, strict=True)
        assert (
            digits(slope, sum(np.sum(found[f"jvp.{n}"].value * u) for n, u in named))
            >= ENOUGH
        )


# What is accepted, and what is not -------------------------------------------------

SILU = Op("silu", inputs="x", formula=lambda xp, x: x * xp.sigmoid(x))


def silu():
    x, dy, v = np.random.default_rng(0).normal(size=(3, 4, 5))
    s = 1 / (1 + np.exp(-x))
    slope = s * (1 + x * (1 - s))
    bend = s * (1 - s) * (2 + x * (1 - 2 * s))
    return x, dy, v, slope, bend


def test_closed_forms_of_both_orders_agree():
    x, dy, v, slope, bend = silu()
    assert_agrees(SILU, [x], None, [v * slope], order="jvp", tangents=[v])
    second = [dy * v * bend, v * slope]
    judged = judge(SILU, [x], dy, second, order="hvp", tangents=[v])
    assert [(j.tensor, j.verdict) for j in judged] == [
        ("hvp.dx", "agree"),
        ("hvp.ddy", "agree"),
    ]


@pytest.mark.parametrize(
    ("spoil", "verdict"),
    [
        (lambda dx, ddy: (None, ddy), "malformed"),
        (lambda dx, ddy: (0 * dx, ddy), "disagree"),
        (lambda dx, ddy: (dx * (1 + 1e-13), ddy), "disagree"),
        (lambda dx, ddy: (dx, ddy[0]), "malformed"),
        (lambda dx, ddy: (dx, ddy * np.nan), "nonfinite"),
    ],
    ids=["None", "constant", "1e-13 off", "shape", "nan"],
)
def test_a_wrong_double_backward_is_rejected(spoil, verdict):
    x, dy, v, slope, bend = silu()
    wrong = spoil(dy * v * bend, v * slope)
    judged = judge(SILU, [x], dy, wrong, order="hvp", tangents=[v])
    assert verdict in [j.verdict for j in judged]
    with pytest.raises(AssertionError, match=r"silu: hvp\.d"):
        assert_agrees(SILU, [x], dy, wrong, order="hvp", tangents=[v])


def test_none_is_right_where_the_second_derivative_is_zero():
    a, b, dy, v, w = np.random.default_rng(1).normal(size=(5, 3))
    judged = judge("add", [a, b], dy, [None, None, v + w], order="hvp", tangents=[v, w])
    assert {j.verdict for j in judged} == {"agree"}


@pytest.mark.parametrize(("inner", "named"), [(-0.3, ""), (0.0, OTHER_SIDE)])
def test_at_a_kink_the_derivative_of_either_side_is_a_convention(inner, named):
    """elu: y'' is exp(x) below 0 and 0 above; the formula takes the side below."""
    x, dy, v = np.array([inner, 1.0]), np.array([0.7, -1.1]), np.array([0.9, 0.4])
    bend = np.array([0.0 if named else np.exp(inner), 0.0])
    slope = np.array([np.exp(inner), 1.0])
    judged = judge(
        "elu", [x], dy, [dy * v * bend, v * slope], order="hvp", tangents=[v],
        attributes={"alpha": 1.0},
    )  # fmt: skip
    assert {j.convention for j in judged if j.tensor == "hvp.dx"} == {named}
    assert all(j.passes for j in judged)


def test_beyond_a_jump_of_the_function_no_other_side_is_offered():
    step = Op("step", inputs="x", formula=lambda xp, x: xp.where(x > 0.0, x * x, 1 - x))
    zero, one = np.zeros(1), np.ones(1)
    judged = judge(step, [zero], one, [2 * one, zero], order="hvp", tangents=[one])
    assert not all(j.passes for j in judged)


def test_what_cancels_between_the_inputs_parts_may_be_lost():
    """mse: PyTorch adds the parts of input and target last; so does this."""
    x, t, v = (np.array([a]) for a in (0.3, 0.2, 1 / 3))
    w, dy = v * (1 + 1e-13), np.array(0.7)
    third = np.float64(2.0) * dy
    dx = third * v - third * w
    slope = 2 * (x - t) * (v - w)
    judged = judge("mse", [x, t], dy, [dx, -dx, slope[0]], order="hvp", tangents=[v, w])
    assert all(j.passes for j in judged), [j.message for j in judged]


@pytest.mark.parametrize("order", ORDERS[1:])
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_the_engine_as_a_backend_agrees_in_float32(op, order):
    case = next(iter(op.cases.values()))
    problem = of_order(trial(op, case, REGIMES["normal"], "float32"), order).problem
    result = getattr(backend.prepare(problem), order)()
    assert tuple(result.gradients) == problem.derivatives
    judged = judge_tensors(reference(problem), result.gradients, result.dtypes)
    assert {j.verdict for j in judged} <= {"agree", "vacuous", "convention"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": "vhp"}, "vhp"),
        ({"tangents": []}, "has tangents of x; 0 given"),
        ({"tangents": [np.ones(3)]}, r"the tangent of x has shape \(3,\)"),
        ({"outputs": [np.ones((4, 5))]}, "outputs are judged with the gradients"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(change, message):
    x, dy, v, slope, bend = silu()
    call = {"order": "hvp", "tangents": [v], **change}
    with pytest.raises((ValueError, LookupError), match=message):
        judge(SILU, [x], dy, [dy * v * bend, v * slope], **call)


@pytest.mark.parametrize(
    ("v", "got", "passes"),
    [
        ([0.5, -1.0, 2.0, 0.5], -np.inf, True),
        ([0.5, -1.0, 2.0, 0.5], np.inf, False),
        ([0.5, -1.0, 2.0, 0.5], 1.0, False),
        ([0.5, 1.0, 2.0, 0.5], np.nan, False),  # 5 inf + 1 inf
        ([0.5, 1.0, 2.0, 0.5], -np.inf, False),
    ],
)
def test_where_an_infinity_is_due_in_second_order_nothing_else_is_right(v, got, passes):
    """The third element of the Hessian times v; the others are added one by one."""
    x = np.array([np.inf, 2.0, 3.0, 5.0])
    others = [[k for k in range(4) if k != i] for i in range(4)]
    with np.errstate(invalid="ignore"):
        dx = [
            sum(v[j] * np.prod(np.delete(x, [i, j])) for j in others[i])
            for i in range(4)
        ]
        ddy = sum(v[i] * np.prod(x[others[i]]) for i in range(4))
    dx[2] = got
    judged = judge(
        "prod",
        [x],
        np.array(1.0),
        [np.array(dx), np.array(ddy)],
        attributes={"axis": -1},
        order="hvp",
        tangents=[np.array(v)],
    )
    assert judged[0].passes == passes, judged[0].message
