"""Tensors as a whole: 16 bits are judged at any depth, and rounding is not accused."""

import numpy as np
import pytest
from scipy import special

from gradwatch.harness.judging import spread
from gradwatch.harness.judging.cases import trials
from gradwatch.harness.judging.draws import Draws, chances
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.question import Question
from gradwatch.harness.judging.reference import Asked, Reference
from gradwatch.harness.judging.rounding.analysis import operation
from gradwatch.harness.judging.rounding.thresholds import AS_A_WHOLE
from gradwatch.harness.judging.spread import Part, Whole
from gradwatch.harness.judging.verdict import (
    is_zero,
    judge_tensors,
    judge_whole,
    zeros_pass,
)
from gradwatch.harness.workers.pool import Task
from gradwatch.impls import graph
from gradwatch.impls.catalogue import load_op

DEPTH, ROWS, WIDTH = 12, 16, 24
SHARED = np.random.default_rng(5)
X, DY = (SHARED.standard_normal((ROWS, WIDTH)) for _ in range(2))
WEIGHTS = [
    1.2 * SHARED.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5 for _ in range(DEPTH)
]


def layers(dtype):
    """Gradients of tanh(x W), twelve times over, as nodes."""
    round_ = PRECISIONS[dtype].round
    leaves = [graph.variable(round_(a)) for a in (X, *WEIGHTS)]
    y = leaves[0]
    for w in leaves[1:]:
        y = graph.tanh(graph.matmul(y, w))
    nodes = graph.gradient([y], [round_(DY)], leaves)
    return dict(zip(["dx", *(f"dw{i}" for i in range(DEPTH))], nodes, strict=True))


def rounded_at_each_step(nodes, dtype, product=None):
    """The values of an implementation that rounds each result to `dtype`."""
    values = {}
    for node in graph.topological_order(nodes.values()):
        if node.primitive is None:
            values[node] = node.value
            continue
        given = [values[source] for source in node.inputs]
        alone = product is not None and node.primitive.name == "matmul"
        compute = product if alone else node.primitive.compute
        exact = np.asarray(compute(*given, **node.attributes))
        values[node] = PRECISIONS[dtype].round(exact)
    return {name: values[node] for name, node in nodes.items()}


def added_in_16_bits(a, b):
    """A matrix product whose terms are added up one by one in bfloat16."""
    round_, total = PRECISIONS["bfloat16"].round, 0.0
    for k in range(a.shape[-1]):
        total = round_(total + round_(a[..., :, k, None] * b[..., k, None, :]))
    return total


@pytest.fixture(scope="module", params=["bfloat16", "float16"])
def deep(request):
    dtype = request.param
    right = Reference(Asked(lambda _: layers(dtype), dtype))
    return right, rounded_at_each_step(right.graphs["first"], dtype)


def verdicts(right, got):
    dtypes = dict.fromkeys(got, right.dtype)
    return judge_tensors(right, got, dtypes)


@pytest.mark.parametrize("pairs", AS_A_WHOLE)
def test_the_limit_is_exceeded_once_in_a_thousand_million_times(pairs):
    exceeded = -special.stdtrit(pairs, 0.5e-9)
    assert exceeded == pytest.approx(AS_A_WHOLE[pairs], abs=0.01)


def test_what_few_evaluations_leave_open_more_decide(deep):
    """A tensor that is off by what lies between the limits of few and of many."""
    right, got = deep
    name = f"dw{DEPTH - 1}"
    whole = right.radii().wholes()[name]
    total = whole.parts[0]
    off = 0.5 * (1 + spread.CLOSE) * whole.limit * total.projection / total.size
    (j,) = verdicts(right, {name: whole.value * (1 + off)})
    assert whole.worst(whole.value * (1 + off))[0] < spread.LIMIT
    assert j.verdict in ("disagree", "imprecise"), j.message
    assert j.limit == AS_A_WHOLE[spread.MORE]
    assert verdicts(right, {name: got[name]})[0].limit == spread.LIMIT


@pytest.mark.parametrize(
    ("off", "asked"), [(0.0, [8]), (0.85, [8, 24, 96]), (5.0, [8, 24])]
)
def test_evaluations_go_on_until_more_of_them_would_say_the_same(
    monkeypatch, off, asked
):
    """A tensor that is too large by a share of the limit of 24 pairs."""
    right = Reference(Asked(lambda _: layers("bfloat16"), "bfloat16"))
    name, pairs = f"dw{DEPTH - 1}", []
    whole = right.radii().wholes(24)[name]
    total = whole.parts[0]
    got = whole.value * (1 + off * whole.limit * total.projection / total.size)

    def counted(*given, **how):
        pairs.append(how["pairs"])
        return spread.whole(*given, **how)

    monkeypatch.setattr("gradwatch.harness.judging.radii.whole", counted)
    again = Reference(Asked(lambda _: layers("bfloat16"), "bfloat16"))
    arithmetic = again.arithmetics[-1]
    again.arithmetics = (arithmetic,)
    (j,) = verdicts(again, {name: got})
    assert pairs[: len(asked)] == asked
    assert (j.verdict == "agree") == (off == 0)


def test_a_choice_that_rounding_hardly_ever_turns_is_not_contested():
    """An exponential is off by up to 2^-8, however much is added up behind it."""
    steps = np.arange(1, 33)
    x = graph.variable(np.tile(steps * 2.0**-9, (128, 1)))
    y = graph.sum(graph.maximum(graph.exp(x), 1.0))
    nodes = {"dx": graph.gradient([y], [np.ones(())], [x])[0], "y": y}
    radii = Reference(Asked(lambda _: nodes, "bfloat16")).radii()
    draws = Draws(radii.errors, radii.order, once=True)
    next(draws.pairs(1, set(nodes.values())))
    (mask,) = draws.open.values()
    assert mask[:, steps < 2].mean() > 0.9
    assert not mask[:, steps > 13].any()


def test_what_rounds_at_each_step_agrees_at_any_depth(deep):
    found = verdicts(*deep)
    assert {j.verdict for j in found} == {"agree"}
    whole = [j for j in found if j.radius_kind in spread.WHOLE]
    assert len(whole) > DEPTH / 2
    assert max(j.ratio for j in whole) < spread.LIMIT / 2


def lost_row(a):
    return np.concatenate([0 * a[:1], a[1:]])


PLANTED = {
    "too large": lambda a: 1.1 * a,
    "negative": np.negative,
    "a row lost": lost_row,
    "a column doubled": lambda a: np.concatenate([2 * a[:, :1], a[:, 1:]], axis=1),
    "turned round": lambda a: a[::-1],
    "nothing": np.zeros_like,
    "nan": lambda a: np.where(a == a.max(), np.nan, a),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_wrong_tensor_is_accused_where_no_element_shows_it(deep, plant):
    right, got = deep
    (j,) = verdicts(right, {"dx": plant(got["dx"])})
    assert not j.passes, j.message


def test_sums_in_16_bits_are_imprecise_and_not_wrong():
    right = Reference(Asked(lambda _: layers("bfloat16"), "bfloat16"))
    nodes = right.graphs["first"]
    got = rounded_at_each_step(nodes, "bfloat16", added_in_16_bits)
    found = verdicts(right, got)
    assert {j.verdict for j in found} <= {"agree", "imprecise"}


def one(build, dtype="bfloat16"):
    right = Reference(Asked(lambda _: {"y": build()}, dtype))
    got = rounded_at_each_step(right.graphs["first"], dtype)["y"]
    return right.radii().wholes()["y"], got


def test_equal_numbers_are_rounded_alike(monkeypatch):
    """The error of 4,096 equal exponentials is one error, and does not average out."""

    def build():
        return 3.0 * (graph.exp(graph.variable(np.full((64, 64), 0.3125))) - 1.25)

    whole, got = one(build)
    assert whole.worst(got)[0] < spread.LIMIT
    total = whole.parts[0]
    alike = total.projection / total.norm
    noise = Draws._noise
    apart = {"alike": False}
    monkeypatch.setattr(Draws, "_noise", lambda *a, **how: noise(*a, **how | apart))
    total = one(build)[0].parts[0]
    assert total.projection / total.norm < alike / 2


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_the_same_digits_are_rounded_alike_others_apart_and_all_oddly(dtype):
    """Those of neighbours, too: 128 numbers from 1 up."""
    numbers = 1 + np.arange(128.0) * 2.0 ** (1 - PRECISIONS[dtype].digits)
    kinds = numbers, 4 * numbers, -numbers, [0.0, -0.0]
    node = graph.variable(np.concatenate(kinds))
    radii = Reference(Asked(lambda _: {"y": graph.exp(node)}, dtype)).radii()
    draws = Draws(radii.errors, radii.order, once=True)
    with np.errstate(all="ignore"):
        found = [
            draws._noise(node, np.random.default_rng(i), together=False, alike=True)
            for i in range(64)
        ]
    one, larger, negative, zeros = np.split(np.array(found), (128, 256, 384), axis=1)
    np.testing.assert_array_equal(one, larger)
    np.testing.assert_array_equal(one, -negative)
    np.testing.assert_array_equal(zeros[:, 0], zeros[:, 1])
    assert np.abs(one).max() <= 0.5
    assert all(np.unique(row).size == 128 for row in one)
    together = np.corrcoef(one.T) - np.eye(128)
    assert np.abs(one.mean()) < 0.02 > np.abs(one.std() - 12**-0.5)
    assert np.abs(together).max() < 0.75  # six standard deviations of 64 draws


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_elements_are_judged_as_a_whole(count):
    """One number that many roundings move: an error of half of it is seen."""
    rows = [np.random.default_rng(i).standard_normal((count, 64)) for i in (0, 1)]

    def build():
        a, b = map(graph.variable, map(PRECISIONS["bfloat16"].round, rows))
        return 9.0 + graph.sum(graph.tanh(a) * graph.exp(b), axis=1)

    whole, got = one(build)
    assert whole.worst(got)[0] < spread.LIMIT / 2
    assert whole.least_seen < 0.5
    assert whole.worst(1.5 * got)[0] > spread.LIMIT


def test_a_lost_element_of_a_vector_is_seen_beside_larger_ones():
    """It is a hundredth of the norm."""

    def build():
        a = graph.variable(np.array([3.0, 300.0]))
        return graph.exp(graph.tanh(a / 7.0)) * a

    whole, got = one(build)
    ratio, _, part, at = whole.worst(got * [0.0, 1.0])
    assert ratio > spread.LIMIT
    assert (part.axis, at) == (0, 0)
    total = whole.parts[0]
    assert np.linalg.norm(got[0]) < spread.LIMIT * total.norm


@pytest.mark.parametrize("turned", [0, 1])
def test_one_rare_choice_of_one_number_is_no_mistake(monkeypatch, turned):
    """Two values, each rounded three times: all of the six turn the choice.

    Where so many are needed, three pilot draws see it in 7 of 10 cases.
    """
    monkeypatch.setattr("gradwatch.harness.judging.draws.PILOTS", 64)
    x = graph.variable(np.array([1.0, 1 + 3 * 2.0**-7]))

    def build():
        y = graph.max(graph.exp(x) * 1.171875 * 1.328125)
        return graph.gradient([y], [np.ones(())], [x])[0]

    right = Reference(Asked(lambda _: {"dx": build()}, "bfloat16"))
    whole = right.radii().wholes()["dx"]
    value = right.graphs["first"]["dx"].value
    got = value[::-1] if turned else value
    assert whole.worst(got)[0] < spread.LIMIT


def zero_but_for_rounding(dtype):
    """The gradient of what is added to all scores of a softmax, in two layouts."""
    round_ = PRECISIONS[dtype].round
    x, dy = (graph.variable(round_(a)) for a in (X, DY))
    scores = graph.exp(x)
    p = scores / graph.sum(scores, axis=1, keepdims=True)
    dscores = p * (dy - graph.sum(p * dy, axis=1, keepdims=True))
    return {"dbias": graph.sum(dscores, axis=1)}


def test_what_cancels_in_the_precision_under_test_alone_is_not_zero():
    """Numbers around 1 are lost beside 1e8."""
    x = graph.variable(np.float64(np.float32(X)))
    right = Reference(Asked(lambda _: {"y": (x + 1e8) - 1e8}, "float32"))
    assert not is_zero(right, "y")
    assert zeros_pass(right, "y")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_gradient_that_is_zero_in_exact_arithmetic_is_seen_beside_its_terms(dtype):
    right = Reference(Asked(lambda _: zero_but_for_rounding(dtype), dtype))
    got = rounded_at_each_step(right.graphs["first"], dtype)["dbias"]
    (j,) = verdicts(right, {"dbias": got})
    assert j.verdict == "vacuous", j.message
    assert is_zero(right, "dbias")
    lost = right.radii().order[-1].inputs[0].value[:, -1]
    assert not verdicts(right, {"dbias": got - lost})[0].passes


def test_what_a_cancelled_mean_may_have_lost_is_not_seen():
    """A rounding of 1e4 is 20 times what is left of it, in every element."""
    rows = np.random.default_rng(1).standard_normal((8, 16)) + 1e4

    def build():
        x = graph.variable(rows)
        return {"y": x - graph.mean(x, axis=1, keepdims=True)}

    right = Reference(Asked(lambda _: build(), "bfloat16"))
    found = right.radii().wholes()["y"]
    assert found.least_seen > 1


def test_zeros_are_seen_where_the_elements_alone_would_let_them_pass(deep):
    right, _ = deep
    assert not any(zeros_pass(right, name) for name in right.graphs["first"])


def test_what_is_zero_but_for_the_references_own_rounding_has_no_direction():
    """What is left of 3 (x / 3) - x in float64 is noise; only its norm is judged."""
    rows = np.random.default_rng(7).standard_normal((8, 16)).astype("float32")

    def build():
        x = graph.variable(rows.astype(float))
        return {"noise": x / 3 * 3 - x, "y": x / 3 * 3 + x}

    right = Reference(Asked(lambda _: build(), "float32"))
    noise, y = (right.radii().wholes()[name] for name in ("noise", "y"))
    assert all(np.isinf(part.projection).all() for part in noise.parts)
    assert all(np.isfinite(part.projection).all() for part in y.parts)
    wrong = noise.value + 1e-5
    assert noise.worst(wrong)[:2] > (noise.limit, "norm")


def test_a_slice_that_is_zero_is_off_by_a_number_and_not_by_a_share():
    """Its right value is 0, but rounding before it moves it."""
    value = np.ones((2, 4))
    value[1] = 0.0
    part = Part(0, np.array([2.0, 0.0]), np.ones(2), np.ones(2))
    whole = Whole(value, np.ones(value.shape, bool), (part,))
    vacuous = Judgement("dx", "vacuous", 0.0, 16.0, vacuous=1.0)
    found = judge_whole(vacuous, whole, value + np.array([[0.0], [20.0]]))
    assert found.verdict == "disagree"
    assert "slice 1 along axis 0 is off by 40" in found.message


@pytest.mark.parametrize("terms", [1, 2, 3, 30])
def test_rounding_turns_a_choice_at_most_as_often_as_its_chance(terms):
    """Roundings are uniform and add up; far from the gap hardly any turns it."""
    rng = np.random.default_rng(terms)
    moved = (terms / 3) ** 0.5
    sums = rng.uniform(-1, 1, (terms, 100_000)).sum(0)
    gaps = np.linspace(0, 5, 21) * moved
    node = graph.variable(gaps)
    choice = graph.gradient([graph.maximum(node, 0.0)], [np.ones(21)], [node])[0]
    choice = next(
        n for n in graph.topological_order([choice]) if operation(n) in graph.SELECTIONS
    )
    chance = chances(choice, gaps, np.full(21, moved)) ** 2
    turned = (sums > gaps[:, None]).mean(1)
    assert (turned <= chance + 0.01).all()
    assert chance[-1] < 1e-5


@pytest.mark.parametrize(("times", "verdict"), [(1.0, "vacuous"), (100.0, "disagree")])
def test_a_value_buried_in_noise_has_no_direction_that_tells(fleet, times, verdict):
    """A double backward of equal numbers is noise, 10^5 times the right one.

    Of twelve numbers it may lie anywhere, also along the right ones; its norm tells.
    """
    op = load_op("group_norm")
    how = {"regimes": ["constant"], "dtypes": ["float32"], "orders": ["hvp"]}
    (trial,) = (t for t in trials(op, **how) if t.case == "2x4x3-4")
    (outcome,) = fleet.run([Task(trial, "torch_autograd")])
    got = times * outcome.result.tensors["hvp.dx"]
    question = Question.of(trial.problem)
    (judged,) = question.judge({"hvp.dx": got.astype("float32")}, {"hvp.dx": "float32"})
    assert judged.verdict == verdict, judged.message
    right = question.right.graphs["first"]["hvp.dx"].value
    assert np.linalg.norm(got) > 1e4 * np.linalg.norm(right)


def test_a_rounding_of_a_square_does_not_make_it_negative():
    """It is one of what is squared, which comes near 0 where that is all rounding."""
    rng = np.random.default_rng(0)
    x, y = (graph.variable(rng.uniform(-1, 1, 2000)) for _ in range(2))

    def build(_):
        c = x * 3.1 - x * 3.1 + y
        return {"y": graph.sum(graph.sqrt(graph.square(c)), keepdims=True)}

    right = Reference(Asked(build, "bfloat16"))
    (whole,) = right.radii().wholes().values()
    assert 0 < whole.least_seen < np.inf
    got = whole.value
    assert whole.worst(got)[0] < whole.limit < whole.worst(0 * got)[0]
