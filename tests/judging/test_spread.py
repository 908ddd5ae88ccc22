"""The spread: deep graphs are judged, and it keeps silent where it knows nothing."""

import numpy as np
import pytest

from gradwatch.harness import judge
from gradwatch.harness.judging import draws as draws_module
from gradwatch.harness.judging import spread as spread_module
from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.judging.draws import Draws
from gradwatch.harness.judging.radii import Radii
from gradwatch.harness.judging.reference import (
    Asked,
    Reference,
    reference,
)
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.impls import catalogue, graph

DEPTH, ROWS, WIDTH = 50, 4, 6


def layers(xp, x, weights, wrong=None):
    """tanh(x W) fifty times over; `wrong` changes the value of one layer."""
    for i, w in enumerate(weights):
        x = xp.tanh(xp.matmul(x, w))
        if i == DEPTH // 2 and wrong is not None:
            x = wrong(x)
    return x


def chain(dtype, wrong=None):
    """Reference, gradients in `dtype` by the engine, and those of a planted error."""
    rng = np.random.default_rng(3)
    x, dy = (rng.standard_normal((ROWS, WIDTH)).astype(dtype) for _ in range(2))
    ws = [
        (1.2 * rng.standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(dtype)
        for _ in range(DEPTH)
    ]

    def gradients(held, wrong=None):
        leaves = [graph.variable(a.astype(held)) for a in (x, *ws)]
        y = layers(graph, leaves[0], leaves[1:], wrong)
        nodes = graph.gradient([y], [dy.astype(held)], leaves)
        return {f"d{i}": node for i, node in enumerate(nodes)}

    wide = "longdouble" if dtype == "float64" else "float64"
    right = Reference(Asked(lambda _: gradients(wide), dtype))
    got = {n: node.value for n, node in gradients(dtype, wrong).items()}
    return right, judge_tensors(right, got, dict.fromkeys(got, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_right_gradients_of_fifty_layers_agree_and_are_not_vacuous(dtype):
    _, found = chain(dtype)
    assert {j.verdict for j in found} == {"agree"}
    assert max(j.vacuous for j in found) < 0.03  # issue: at most 3 % of the elements
    assert {j.radius_kind for j in found} >= {"spread"}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_error_of_one_in_a_thousand_in_one_of_fifty_layers_is_caught(dtype):
    _, found = chain(dtype, wrong=lambda x: x * 1.001)
    assert sum(j.verdict == "disagree" for j in found) > DEPTH / 2


def test_the_bound_alone_sees_nothing_there(monkeypatch):
    monkeypatch.setattr(spread_module, "CURVED", np.nan)  # never straight
    monkeypatch.setattr(Radii, "wholes", lambda *_, **__: {})
    _, found = chain("float32", wrong=lambda x: x * 1.001)
    assert "disagree" not in {j.verdict for j in found}


def test_it_is_the_same_every_time():
    right, _ = chain("float32")
    again, _ = chain("float32")
    for name, radius in right.radii().spreads().items():
        np.testing.assert_array_equal(radius, again.radii().spreads()[name])


def one(build, dtype="float32"):
    right = Reference(Asked(lambda _: {"y": build()}, dtype))
    return right, right.radii().spreads()["y"]


def test_its_radius_is_that_of_honest_arithmetic():
    """Against many roundings of the same sum of products in float32."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((200, 64)).astype("float32") for _ in range(2))
    wide = [graph.variable(x.astype("float64")) for x in (a, b)]
    right, radius = one(lambda: graph.sum(wide[0] * wide[1], axis=1))
    error = np.abs((a * b).sum(1) - right.graphs["first"]["y"].value)
    assert 0.02 < np.median(error / radius) < 2
    assert (error / radius).max() < right.limit


def variances(build_more=lambda x, r: {}):
    """The gradient of the weight of an RMS norm of 300 rows, and its operands."""
    rng = np.random.default_rng(2)
    x, dy = (rng.standard_normal((300, 64)).astype("float32") for _ in range(2))
    x, dy = (graph.variable(a.astype("float64")) for a in (x, dy))

    def build(_):
        mean = graph.mean(x, axis=1, keepdims=True)
        c, some = x - mean, x[:, :3] - mean
        r = 1 / graph.sqrt(graph.mean(c * c, axis=1, keepdims=True) + 1e-5)
        return {"dw": graph.sum(dy[:, :3] * some * r, axis=0), **build_more(x, r)}

    return Reference(Asked(build, "float32"))


@pytest.mark.parametrize("kind", ["once", "again"])
def test_each_side_of_a_pair_is_rounded_by_its_own_size(kind):
    """Beside a pole one side is many times larger than the other, and the value."""
    unit = 2.0**-24
    a, b = (graph.variable(np.full(10_000, x)) for x in (1 + 1.1 * unit, 1.0))
    pole = 1 / (a * b - 1)
    end = pole * 3.0
    radii = Reference(Asked(lambda _: {"y": end}, "float32")).radii()
    draws = Draws(radii.errors, radii.order, **{kind: True})
    values, most = draws.pair(0, {pole, end}), draws.unit / 2
    for before, after in zip(values[pole], values[end], strict=True):
        far = np.abs(before) > 3 * np.abs(pole.value)
        share = np.abs(after / before / 3.0 - 1)[far] / unit
        assert far.sum() > 10
        assert 0.3 * most < share.mean() < share.max() < 1.01 * most


def test_of_many_long_sums_the_terms_are_not_drawn(monkeypatch):
    """Their running errors are as good where many sums are added up."""
    before = variances().radii().spreads()["dw"]
    monkeypatch.setattr(draws_module, "LONG", 1 << 14)
    evaluated, compute = [], draws_module.computed

    def noted(node, *arrays):
        evaluated.append(node.size)
        return compute(node, *arrays)

    monkeypatch.setattr(draws_module, "computed", noted)
    right = variances()
    after = right.radii().spreads()["dw"]
    assert max(evaluated) < 300 * 64
    assert (after < 2 * before).all()
    assert (before < 2 * after).all()
    value = right.graphs["first"]["dw"].value
    wrong = value + 3 * right.limit * after
    (j,) = judge_tensors(right, {"dw": wrong.astype("float32")}, {"dw": "float32"})
    assert (j.verdict, j.radius_kind) == ("disagree", "spread")


def test_what_is_a_result_itself_is_drawn_beside_long_sums(monkeypatch):
    monkeypatch.setattr(draws_module, "LONG", 1 << 14)
    right = variances(lambda x, r: {"s": graph.sum(made := x * 3.1, 1), "y": made})
    radii = right.radii().spreads()
    assert all(np.isfinite(radius).all() for radius in radii.values())


def test_long_sums_may_come_near_the_largest_number(monkeypatch):
    monkeypatch.setattr(draws_module, "LONG", 1 << 14)
    huge = variances(lambda x, r: {"y": graph.sum(graph.sum(x * 3e36, 1) * 1.0)})
    radii = huge.radii().spreads()
    assert np.isfinite(radii["dw"]).all()


@pytest.mark.parametrize("beside", [1.0, -np.inf])
def test_what_stands_beside_a_product_is_no_product(beside):
    """A max pooling's padding was moved by its own size: no deviation was known."""
    rng = np.random.default_rng(3)
    a, b = (graph.variable(rng.standard_normal((4, 4))) for _ in range(2))

    def build(_):
        both = graph.concat([graph.matmul(a, b), np.full((4, 1), beside)], axis=1)
        most = graph.max(both, axis=1)
        return {"y": 3.7 * most * graph.sum(both[:, :4], axis=1)}

    right = Reference(Asked(build, "float32"))
    once, again = (right.radii().spreads(again=more) for more in (False, True))
    assert (again["y"] < 3 * once["y"]).all()


def test_a_square_of_mere_rounding_error_is_beyond_the_first_order_picture():
    x = graph.variable(np.array([1.0 / 3, 1e3]))
    _, radius = one(lambda: graph.square(x * 3.1 - x * 3.1))
    assert np.isinf(radius).all()


def test_a_choice_that_rounding_may_turn_around_may_be_made_either_way():
    x = graph.variable(np.array([1.0, 1.0]))
    t = graph.variable(np.array([1.0 + 1e-8, 2.0]))
    right, radius = one(lambda: 3.7 * graph.share(x * 4.3, t * 4.3, at_tie=0.5))
    allowed = right.limit * radius
    assert 3.7 < allowed[0] < 4 * 3.7  # both 0 and 3.7 are right
    assert allowed[1] < 1e-5


@pytest.mark.parametrize("axis", [0, 1])
def test_of_a_contested_maximum_each_contender_may_get_the_cotangent(axis):
    rows = np.array([[1.0, 1.0 + 1e-8, 0.5], [3.0, 2.0, 1.0]])
    x = graph.variable(rows if axis else rows.T)
    right, radius = one(lambda: 3.7 * graph.pick(x * 4.3, axis=axis, convention="last"))
    allowed = right.limit * (radius if axis else radius.T)
    assert (allowed[0, :2] > 3.7).all()
    assert (allowed[0, :2] < 4 * 3.7).all()
    assert max(allowed[0, 2], *allowed[1]) < 1e-5


def test_a_rounding_error_over_its_own_size_is_beyond_the_first_order_picture():
    """c / sqrt(c^2 + eps) is odd: mirror images do not show that it saturates."""
    x = graph.variable(np.array([1e6 / 3, 1e-6 / 3]))

    def build():
        c = x * 3.1 - x * 3.1
        return c / graph.sqrt(c * c + 1e-5)

    _, radius = one(build)
    assert list(np.isfinite(radius)) == [False, True]


def test_an_element_that_looks_linear_by_chance_is_asked_twice():
    """A row of rounding errors scaled to length 1 is odd, and no element is linear."""
    x = graph.variable(np.full((40, 3), 1e4 / 3))

    def build():
        c = x * 3.1 - x * 3.1
        return c / graph.sqrt(graph.mean(c * c, axis=-1, keepdims=True) + 1e-5)

    _, radius = one(build)
    assert np.isinf(radius).mean() > 0.98  # of 120; 0.92 by one pair


@pytest.mark.parametrize(("got", "passes"), [(0.0, True), (3e-8, True), (1e-5, False)])
def test_what_underflows_beside_a_larger_rounding_error_may_be_zero(got, passes):
    """The draws of e^-744 are lost beside u dy, also where the shift has a gradient."""

    def build():
        x = graph.variable(np.array([[0.0, -744.0, -745.0]]))
        e = graph.exp(x - graph.max(x, axis=-1, keepdims=True))
        y = e / graph.sum(e, axis=-1, keepdims=True)
        return {"dx": graph.gradient([y], [np.array([[-0.7, 0.7, -1.2]])], [x])[0]}

    right = Reference(Asked(lambda _: build(), "float32"))
    assert right.graphs["first"]["dx"].value[0, 0] != 0
    (judgement,) = judge_tensors(
        right,
        {"dx": np.array([[got, 0.0, 0.0]], "float32")},
        {"dx": "float32"},
    )
    assert judgement.passes == passes, judgement.message


def test_a_row_of_one_element_is_a_cancelled_mean_too():
    """PyTorch's layer_norm gives such rows the rounding error of equal terms."""
    rng = np.random.default_rng(1)
    x, weight, bias = (1e3 * rng.standard_normal(n) for n in ((64, 1), 1, 1))
    dy = 1e6 * rng.standard_normal((64, 1))
    inputs = [a.astype("float32") for a in (x, weight, bias, dy)]
    g = 1e-5**-0.5 * inputs[3] * inputs[1]  # about 3e11: an ulp is 32768
    for error, verdict in ((1e-7, "vacuous"), (1.0, "disagree")):
        got = [(error * g).astype("float32"), None, None]
        found = judge(
            "layer_norm", inputs[:3], inputs[3], got, attributes={"eps": 1e-5}
        )
        assert found[0].verdict == verdict, found[0].message


@pytest.mark.parametrize("op", ["layer_norm", "max_pool2d", "attention", "prod"])
def test_it_costs_at_most_twenty_evaluations_of_the_graph(op, monkeypatch):
    """Choices have draws of their own, of what stands before them."""
    evaluated, computed = list[str](), draws_module.computed

    def counted(node, *given):
        evaluated.append(node.primitive.name)
        return computed(node, *given)

    page = catalogue.load_op(op)
    case = next(iter(page.cases.values()))
    right = reference(trial(page, case, REGIMES["normal"], "float32").problem)
    monkeypatch.setattr(draws_module, "computed", counted)
    radii = right.radii()
    assert radii.spreads()
    nodes = [node for node in radii.order if node.primitive]
    assert len(nodes) < len(evaluated) <= 20 * len(nodes)


@pytest.mark.parametrize(("off", "expected"), [(0.0, "vacuous"), (1e-5, "disagree")])
def test_what_is_rounded_only_once_is_left_to_the_bound(monkeypatch, off, expected):
    """1 * 1 - 1 * (1 - 2^-20): all but 2^-20 is cancelled, and no input is rounded."""

    def never(*_, **__):
        raise AssertionError("the spread was asked")

    if expected == "vacuous":  # an excuse may ask it
        monkeypatch.setattr("gradwatch.harness.judging.radii.spread", never)
    a, b = np.array([[1.0, -1.0]]), np.array([[1.0], [1.0 - 2.0**-20]])
    dy, y = np.ones((1, 1)), np.full((1, 1), 2.0**-20 + off)
    *_, found = judge("matmul", [a, b], dy, [b.T, a.T], outputs=[y], dtype="float32")
    assert (found.verdict, found.radius_kind) == (expected, "bound")


@pytest.mark.parametrize(("operand", "near"), [(1.0, False), (3e38, True), (1e3, True)])
def test_infinities_of_a_mask_are_exact_unless_the_formula_overflows(operand, near):
    """Where it does, E says nothing of the elements that are infinite."""
    x = graph.variable(np.array([1.1, 0.9]) * operand)
    masked = graph.where(np.array([True, False]), x * 1.5, -np.inf) - 1.5
    y = masked + graph.exp(x) if operand == 1e3 else masked
    radii = Reference(Asked(lambda _: {"y": y}, "float32")).radii()
    assert bool(Draws(radii.errors, radii.order).hot) is near
