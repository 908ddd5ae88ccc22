"""Running errors: every primitive has a rule, and it bounds what really happens."""

import zlib

import numpy as np
import pytest

from gradwatch.harness.judging.precisions import PRECISIONS, arithmetics
from gradwatch.harness.judging.reference import Asked, Reference
from gradwatch.harness.judging.rounding.analysis import (
    RULES,
    Rule,
    limit_for,
    limits,
    local_errors,
    running_errors,
)
from gradwatch.impls import graph
from tests.balls import balls, precise
from tests.primitives import ALL, DRAWN, UNARY, any_sign


def errors_behind(outputs, precision, limit=1.0):
    """Of the outputs and of every node that they need."""
    order = graph.topological_order(outputs)
    return running_errors(
        order, arithmetics(precision.name, precision.name)[0], limit
    ).errors


def radius_of(build):
    """Of what a function builds, as the judge has it in float32."""
    reference = Reference(Asked(lambda _: {"y": build()}, "float32"))
    return reference.radii().bounds["y"].radius


def test_every_primitive_has_a_rule():
    assert set(RULES) == set(graph.PRIMITIVES)


# A function of nodes, its inputs' shapes, and whether they are positive.
FUNCTIONS = {
    "sum of products": (lambda a, b: graph.sum(a * b, axis=1), [(3, 40)] * 2),
    "matmul": (graph.matmul, [(4, 30), (30, 3)]),
    "quotient": (lambda a, b: (a - b) / (a * b), [(50,)] * 2),
    "exp of difference": (lambda a, b: graph.exp(3.0 * a - b), [(50,)] * 2),
    "exp2": (lambda a, b: graph.exp2(a * b), [(50,)] * 2),
    "log": (lambda a, b: graph.log(a * a + b * b), [(50,)] * 2),
    "sqrt": (lambda a, b: graph.sqrt(a * a + 1e-5 * b * b), [(50,)] * 2),
    "waves": (lambda a, b: graph.sin(9.0 * a) * graph.cos(a + b), [(50,)] * 2),
    "saturating": (
        lambda a, b: graph.tanh(a * b) + graph.sigmoid(4.0 * b),
        [(50,)] * 2,
    ),
    "norm": (
        lambda a, b: (a - graph.mean(a, axis=0)) / graph.sqrt(graph.mean(b * b) + 0.1),
        [(50,)] * 2,
    ),
    "repeated indices": (
        lambda a, b: graph.scatter_add(a * b, index=[[0, 2, 0, 1] * 5] * 3, shape=(3,)),
        [(3, 20)] * 2,
    ),
    "largest": (lambda a, b: graph.max(a * b, axis=0), [(20, 5)] * 2),
}


@pytest.mark.parametrize("name", ["float32", "float16"])
@pytest.mark.parametrize("title", FUNCTIONS)
def test_an_honest_computation_lands_within_a_few_radii(title, name):
    """NumPy in the narrow type against the wide graph, over twenty draws of inputs."""
    function, shapes = FUNCTIONS[title]
    precision = PRECISIONS[name]
    rng = np.random.default_rng(7)
    worst = 0.0
    for _ in range(20):
        arrays = [precision.round(rng.standard_normal(s)) for s in shapes]
        wide = function(*map(graph.variable, arrays))
        narrow = function(*(graph.variable(a.astype(name)) for a in arrays)).value
        radius = precision.roundoff * errors_behind([wide], precision)[wide]
        error = np.abs(narrow.astype("float64") - wide.value)
        worst = max(worst, float(np.max(error / radius)))
    assert 0.05 < worst < 4, f"{worst:.2f} radii: above is false, below is blunt"


ROUNDINGS = 32  # behind each input: one rounding of the result itself is then little


def largest_share(title, name):
    """Of its bound, by which inputs that are off move the exact result, in balls."""
    function, shapes = ALL[title]
    precision = PRECISIONS[name]
    rng = np.random.default_rng(zlib.crc32(title.encode()))
    draw = DRAWN.get(title, any_sign)
    arrays = [precision.round(draw(rng, s)) for s in shapes]
    leaves = [graph.variable(a) for a in arrays]
    for _ in range(ROUNDINGS):
        leaves = [leaf * 1.0 for leaf in leaves]
    wide = function(*leaves)
    bound = precision.roundoff * errors_behind([wide], precision)[wide]
    assert np.isfinite(bound).all()
    largest = 0.0
    with precise():
        exact = function(*(graph.variable(balls(a)) for a in arrays)).value
        for _ in range(8):
            signs = [rng.choice([-1.0, 1.0], a.shape) for a in arrays]
            moved = [
                balls(a) * (1 + ROUNDINGS * precision.roundoff * balls(sign))
                for a, sign in zip(arrays, signs, strict=True)
            ]
            there = function(*map(graph.variable, moved)).value
            change = np.array(abs(there - exact), object).astype(float)
            assert (change[bound == 0] == 0).all()
            largest = max(largest, np.max(change / np.fmax(bound, 1e-300)))
    return largest


@pytest.mark.parametrize("name", ["float32", "float16"])
@pytest.mark.parametrize("title", ALL)
def test_inputs_that_were_rounded_move_the_result_within_its_bound(title, name):
    share = largest_share(title, name)
    assert share <= 1, f"{share:.3g} of the bound: it is false"
    assert share > 0.1, f"{share:.3g} of the bound: it is blunt"


# Those that add nothing of their own are copies of an error, or exact.
@pytest.mark.parametrize("title", sorted({*UNARY, "pow", "atan2", "cumulative_sum"}))
def test_a_rule_that_forgets_the_error_of_its_input_is_noticed(title, monkeypatch):
    monkeypatch.setitem(RULES, title, Rule(lambda at: at.v))
    assert largest_share(title, "float32") > 1


CREASES = {
    "tan beside its pole": (graph.tan, np.tan, (np.pi / 2 - 1e-3,)),
    "a square root of the square": (
        lambda x: graph.pow(x, graph.variable(np.array(4.0))),
        lambda x: x**4,
        (1e-4,),
    ),
    "cosh at its minimum": (graph.cosh, np.cosh, (1e-4,)),
    "floor below a jump": (graph.floor, np.floor, (2.9999,)),
    "round at a half": (graph.round, np.round, (0.5,)),
    "a truth value": (
        lambda x: graph.astype(x < 1.0, x.dtype),
        lambda x: (x < 1.0).astype(float),
        (1.0001,),
    ),
    "a branch": (
        lambda x: graph.where(x < 1.0, 5.0 * x, -x),
        lambda x: np.where(x < 1.0, 5.0 * x, -x),
        (1.0001,),
    ),
    "a whole number": (
        lambda x: graph.astype(graph.astype(x, "int64"), x.dtype),
        np.trunc,
        (-2.9999,),
    ),
    "log1p beside -1": (graph.log1p, np.log1p, (-0.999,)),
    "asin beside 1": (graph.asin, np.arcsin, (0.9999,)),
}


@pytest.mark.parametrize("title", CREASES)
def test_the_bound_holds_across_a_crease(title):
    """The largest change in reach of the input, of 4,001 points, in longdouble."""
    function, check, (at,) = CREASES[title]
    precision = PRECISIONS["float16"]
    x = graph.variable(np.array(precision.round(np.array(at))))
    for _ in range(ROUNDINGS):
        x = x + 0.0
    y = function(x)
    errors = errors_behind([y], precision)
    reach = precision.roundoff * float(errors[x])
    points = np.longdouble(x.value) + np.linspace(-reach, reach, 4001)
    with np.errstate(all="ignore"):
        change = np.max(np.abs(check(points) - check(np.longdouble(x.value))))
    bound = precision.roundoff * float(errors[y])
    assert np.isnan(change) or change <= bound * (1 + 1e-9)
    assert not np.isnan(change) or bound == np.inf


def test_an_angle_across_the_cut_may_be_off_by_a_whole_turn():
    y, x = (graph.variable(np.array(v)) + 0.0 for v in (-1e-9, -1.0))
    shifted = y + 4.3 * y - 4.3 * y  # known to some 1e-8 only in float16
    angle = graph.atan2(shifted, x)
    precision = PRECISIONS["float16"]
    assert precision.roundoff * errors_behind([angle], precision)[angle] > 2 * np.pi


def test_logic_that_is_settled_by_what_is_certain_is_exact():
    sure = graph.variable(np.array([False, True]))
    unsure = 4.3 * graph.variable(np.array(1.0)) < 4.3
    both, either = sure & unsure, sure | unsure
    errors = errors_behind([both, either], PRECISIONS["float32"])
    assert list(errors[both] > 0) == [False, True]
    assert list(errors[either] > 0) == [True, False]


def test_an_input_that_the_format_holds_is_exact_and_a_constant_it_rounds_is_not():
    precision = PRECISIONS["float32"]
    exact, rounded = graph.variable(np.array(0.5)), graph.variable(np.array(4.3))
    errors = errors_behind([exact, rounded], precision)
    assert (errors[exact], errors[rounded]) == (0.0, 4.3)


def test_a_denominator_that_may_vanish_has_an_infinite_radius():
    a, b = (graph.variable(np.array([1.0, v])) for v in (1.0, 1.0 + 1e-9))
    radius = radius_of(lambda: 1.0 / (4.3 * a - 4.3 * b))
    assert np.isinf(radius).all()


def test_overflow_has_an_infinite_radius():
    """Not exp(100) itself, which must be infinite: what comes of it."""
    x = graph.variable(np.array([1.0, 100.0]))
    radius = radius_of(lambda: graph.exp(x) * 1e-20)
    assert list(np.isinf(radius)) == [False, True]


def test_a_choice_that_rounding_could_turn_around_may_be_off_by_one():
    a = graph.variable(np.array([1.0, 1.0, 1.0]))
    b = graph.variable(np.array([1.0 + 1e-9, 1.0 + 5e-7, 2.0]))
    share = graph.share(4.3 * a, 4.3 * b, at_tie=0.5)
    for limit, contested in ((1, [1, 0, 0]), (16, [1, 1, 0])):
        errors = errors_behind([share], PRECISIONS["float32"], limit)[share]
        allowed = limit * PRECISIONS["float32"].roundoff * errors
        np.testing.assert_allclose(allowed, contested)


def test_an_index_that_rounding_could_change_has_an_infinite_radius():
    x = graph.variable(np.array([[1.0, 1.0 + 1e-9], [1.0, 2.0]]))
    index = graph.argmax(4.3 * x, axis=1)
    errors = errors_behind([index], PRECISIONS["float32"])[index]
    assert list(np.isinf(errors)) == [True, False]


def test_zero_times_anything_is_exactly_zero():
    weight = graph.variable(np.array([0.0, 1.0]))
    y = weight * graph.exp(graph.variable(np.array([1.0, 1.0])))
    errors = errors_behind([y], PRECISIONS["float64"])[y]
    assert errors[0] == 0
    assert errors[1] > 0


def test_the_longest_reduction_is_found():
    x = graph.variable(np.ones((4, 25)))
    y = graph.sum(graph.matmul(x, x.T), axis=0)
    assert limits(graph.topological_order([y]))[0] == 25
    assert limits(graph.topological_order([x]))[0] == 1


def test_values_that_land_on_one_place_are_terms_of_a_sum():
    x = graph.variable(np.array([1.0, -2.0, 4.0, 8.0]))
    alone = graph.scatter_add(x, index=[3, 1, 0, 2], shape=(4,))
    added = graph.scatter_add(x, index=[0, 0, -1, 1], shape=(4,))
    errors = errors_behind([alone, added], PRECISIONS["float32"])
    assert errors[alone].tolist() == [0, 0, 0, 0]
    assert errors[added].tolist() == [3, 0, 0, 0]  # |1| + |-2|, and 8 alone
    assert limits([alone])[0] == 1
    assert limits([added])[0] == 2


def test_the_limit_grows_with_the_square_root_of_the_reduction():
    """design.md, how a gradient is judged, point 3."""
    assert limit_for(4096) == 48
    assert limit_for(65536) == 144


# Constants ------------------------------------------------------------------------

NARROW = np.random.default_rng(4).standard_normal((6, 32))
SQUARE = np.random.default_rng(5).standard_normal((32, 32))


def scores():
    """Values that have an error: a product of inputs."""
    return graph.matmul(graph.variable(NARROW), graph.variable(SQUARE))


def maximum(x):
    return graph.stop_gradient(graph.max(x, axis=-1, keepdims=True))


def largest_error(build):
    """The largest E of the constants in a graph."""
    y = build()
    graph.forward([y])
    errors = errors_behind([y], PRECISIONS["float32"])
    return max(
        float(errors[node].max())
        for node in graph.topological_order([y])
        if node.primitive and node.primitive.name == "stop_gradient"
    )


@pytest.mark.parametrize(
    "build",
    [
        lambda: graph.stop_gradient(graph.tanh(scores())),
        lambda: scores() / maximum(graph.abs(scores())),  # a scale of quantisation
        lambda: scores() - maximum(scores()),
        lambda: graph.exp(scores() - graph.stop_gradient(graph.mean(scores()))),
    ],
)
def test_a_detached_value_keeps_its_error(build):
    assert largest_error(build) > 0


def softmax(x):
    e = graph.exp(x - maximum(x))
    return e / graph.sum(e, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "build",
    [
        lambda: softmax(scores()),
        lambda: graph.logsumexp(scores(), axis=-1),
        lambda: graph.hypot(scores(), 3.0),
    ],
)
def test_a_shift_that_cancels_in_the_result_is_exact(build):
    assert largest_error(build) == 0


def test_a_sum_of_whole_numbers_is_exact_up_to_where_the_format_has_them_all():
    a, b = graph.variable([3.0, 2.0**24, 0.5, 3.0]), graph.variable([4.0, 1, 1, 0.25])
    total = a + b
    errors = errors_behind([total + 1.0], PRECISIONS["float32"])
    np.testing.assert_array_equal(errors[total], [0, 2**24 + 1, 1.5, 3.25])
    floored = graph.floor(graph.variable([2.5, 3.5]) * 1.1)
    assert not errors_behind([floored + 1.0], PRECISIONS["float32"])[floored].any()


def test_a_term_that_is_nothing_but_rounding_is_added_with_a_rounding():
    """It is 1e-17 in the wide type, and as large as a last place in a narrow one.

    So is the residual that an unrolled Newton iteration adds to a quotient.
    """
    a = graph.variable(np.linspace(0.7, 3, 50))
    nothing = 3.0 * (0.1 * a) - 0.3 * a
    y = a + nothing
    graph.forward([y])
    assert 0 < np.max(np.abs(nothing.value)) < 1e-15
    order = graph.topological_order([y])
    errors = running_errors(order, arithmetics("bfloat16", "bfloat16")[0], 16.0)
    assert (local_errors(errors, order)[y] >= np.abs(y.value)).all()
