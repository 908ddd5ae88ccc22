"""Large right tensors are accepted early; whatever else comes is judged in full."""

import gc
import itertools
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from gradwatch.harness import judge
from gradwatch.harness.judging.acceptance import large
from gradwatch.harness.judging.acceptance.large import FEW, SURE, Least, Sample
from gradwatch.harness.judging.cases import REGIMES, trial
from gradwatch.harness.judging.orders import nodes_of
from gradwatch.harness.judging.precisions import PRECISIONS, arithmetics
from gradwatch.harness.judging.reference import Asked, Reference, reference
from gradwatch.harness.judging.rounding.analysis import operation, running_errors
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.impls import catalogue, graph
from gradwatch.impls.contract import Problem
from gradwatch.impls.graph.products import convolved

SHAPES = {
    "layer_norm": ([(64, 256), (256,), (256,)], {"eps": 1e-5}),
    "softmax": ([(64, 256)], {"axis": -1}),
    "matmul": ([(128, 128), (128, 128)], {}),
    "exp2": ([(16384,)], {}),
    "sigmoid": ([(16384,)], {}),
    "rms_norm": ([(64, 256), (256,)], {"eps": 1e-5}),
    # Elements in reverse order, slices, and functions that are not linear.
    "cumsum": ([(2048, 8)], {"axis": -1}),
    "glu": ([(64, 256)], {"axis": -1}),
    "gelu": ([(16384,)], {"approximate": False}),
    # dx adds up the windows of a product, dweight the products of a batch.
    "conv2d": ([(8, 4, 24, 24), (4, 4, 3, 3), (4,)], {"stride": 1, "padding": 1}),
}


def problem(op, dtype, change=lambda x: x):
    shapes, attributes = SHAPES[op]
    rng = np.random.default_rng(7)
    arrays = [rng.standard_normal(shape) for shape in shapes]
    arrays[0] = change(arrays[0])
    arrays = [a.astype(dtype) for a in arrays]
    page = catalogue.load_op(op)
    forward = page.said("manual")(*(a.copy() for a in arrays), **attributes)
    dy = rng.standard_normal(forward[0].shape).astype(dtype)
    names = dict(zip(page.inputs, arrays, strict=True))
    made = Problem(page, names, [dy], attributes, dtype=dtype)
    gradients = forward[1](dy)
    return made, {f"d{n}": g for n, g in zip(names, gradients, strict=True)}


def early(made, got):
    return looked_at(made, got, {n: g.dtype.name for n, g in got.items()})


def looked_at(made, got, dtypes):
    """Judgements of all tensors; None where one is not accepted."""
    look = large.Look(Asked.of(made), got, dtypes)
    found = look.judgements
    return tuple(found.values()) if len(found) == len(got) else None


def in_full(made, got):
    dtypes = {n: g.dtype.name for n, g in got.items()}
    return judge_tensors(reference(made), got, dtypes)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("op", SHAPES)
def test_right_gradients_are_accepted_and_agree_in_full(op, dtype):
    made, got = problem(op, dtype)
    found, full = early(made, got), in_full(made, got)
    assert found is not None
    assert [j.tensor for j in found] == [j.tensor for j in full]
    assert {j.verdict for j in (*found, *full)} == {"agree"}
    assert [j.limit for j in found] == [j.limit for j in full]
    assert all(j.ratio <= j.limit for j in found)
    assert max(j.vacuous for j in full) < 0.01
    assert all("agrees, seen without its rounding radius" in j.message for j in found)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "op", ["layer_norm", "softmax", "matmul", "exp2", "cumsum", "glu", "gelu"]
)
def test_what_is_accepted_agrees_however_large_a_planted_error(op, dtype):
    """From far within the limit to far beyond it, in elements of all magnitudes."""
    made, got = problem(op, dtype)
    name, right = next(iter(got.items()))
    by_size = np.argsort(np.abs(right), axis=None)
    places = by_size[np.linspace(0, right.size - 1, 9).astype(int)]
    truth = reference(made)
    radius = truth.radii().bounds[name].radius.reshape(-1)
    dtypes = {name: dtype}
    outcomes = []
    for factor in (0.25, 0.75, 1.5, 4.0):
        wrong = right.copy()
        off = factor * truth.limit * radius[places]
        wrong.reshape(-1)[places] += off.astype(dtype)
        found = looked_at(made, {name: wrong}, dtypes)
        (full,) = judge_tensors(truth, {name: wrong}, dtypes)
        assert found is None or full.verdict == "agree"
        outcomes.append(full.verdict)
    assert outcomes[-1] == "disagree"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_one_wrong_element_among_many_is_rejected_by_judge(dtype):
    made, got = problem("softmax", dtype)
    dx = got["dx"].copy()
    dx[17, 5] *= 1 + 1e4 * np.finfo(dtype).eps
    arrays, attributes = list(made.inputs.values()), made.attributes
    (found,) = judge("softmax", arrays, made.cotangents[0], [dx], attributes=attributes)
    assert (found.verdict, found.worst_index) == ("disagree", (17, 5))


@pytest.mark.parametrize(("dtype", "mean"), [("float64", 1e12), ("float32", 1e4)])
def test_a_vacuous_tensor_is_left_to_the_judgement(dtype, mean):
    """Constant rows of a norm: what is left of them is rounding error."""
    made, _ = problem("layer_norm", dtype, lambda x: mean + 0 * x)
    full = reference(made).radii().bounds
    got = {"dx": full["dx"].value.astype(dtype)}
    assert early(made, got) is None
    assert in_full(made, got)[0].verdict == "vacuous"


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_is_left_to_the_judgement(wrong):
    made, got = problem("exp2", "float32")
    got["dx"][3] = wrong
    assert early(made, got) is None


def test_another_dtype_shape_or_none_is_left_to_the_judgement():
    made, got = problem("exp2", "float32")
    assert looked_at(made, got, {"dx": "float64"}) is None
    assert looked_at(made, {"dx": None}, {"dx": "float32"}) is None
    assert early(made, {"dx": got["dx"][:-1]}) is None


def test_a_choice_among_equal_numbers_is_left_to_the_judgement():
    x, dy = np.random.default_rng(1).standard_normal((2, 16384))
    made = Problem(catalogue.load_op("relu"), {"x": x}, [dy], {})
    assert early(made, {"dx": np.where(x > 0, dy, 0.0)}) is not None
    x[7] = 0.0
    assert early(made, {"dx": np.where(x > 0, dy, 0.0)}) is None


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_sum_of_equal_terms_one_by_one_is_imprecise_as_ever(dtype):
    rows, page = 1 << 14, catalogue.load_op("linear")
    x, weight, bias = np.ones((rows, 1)), np.ones((1, 1)), np.ones(1)
    inputs = {"x": x, "weight": weight, "bias": bias}
    inputs = {n: a.astype(dtype) for n, a in inputs.items()}
    dy = np.full((rows, 1), 0.1, dtype)
    made = Problem(page, inputs, [dy], {}, dtype=dtype)
    got = {"dbias": np.cumsum(dy[:, 0], dtype=dtype)[-1:]}
    assert early(made, got) is None
    assert in_full(made, got)[0].verdict == "imprecise"


def peak_of(made, got):
    """The most bytes that a judgement holds which is not the first of its kind."""
    assert early(made, got) is not None
    tracemalloc.start()
    try:
        assert early(made, got) is not None
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak


#: Bytes that a judgement may hold, over those of the inputs. These are as small as the
#: blocks that are compared at a time, which count here; of larger ones it is less.
MEMORY = {"float64": 13, "float32": 28}


@pytest.mark.parametrize("dtype", MEMORY)
@pytest.mark.parametrize("op", ["layer_norm", "softmax", "rms_norm", "sigmoid"])
def test_values_are_dropped_after_their_last_use(op, dtype):
    """All values of layer_norm together are 18 times its input in float64."""
    made, got = problem(op, dtype)
    assert peak_of(made, got) < MEMORY[dtype] * sum(
        a.nbytes for a in made.inputs.values()
    )


@pytest.mark.parametrize("op", ["layer_norm", "softmax"])
def test_a_large_judgement_holds_at_most_13_times_its_input(op, monkeypatch):
    shapes, attributes = SHAPES[op]
    larger = [(*shape[:-1], 1024) for shape in shapes]
    monkeypatch.setitem(SHAPES, op, (larger, attributes))
    made, got = problem(op, "float32")
    assert peak_of(made, got) < 13 * sum(a.nbytes for a in made.inputs.values())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_nothing_is_left_to_the_garbage_collector(dtype):
    """Objects in a circle would hold a judgement's values through the next ones."""
    made, got = problem("layer_norm", dtype)
    assert early(made, got) is not None
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        assert early(made, got) is not None
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()
    assert held < made.inputs["x"].nbytes


@pytest.mark.parametrize("op", ["layer_norm", "softmax", "rms_norm"])
def test_least_radii_and_samples_are_those_of_values_that_are_held(op):
    made, _ = problem(op, "float64")
    wide = np.dtype(np.float64)
    held, lean = (nodes_of(made, wide)["dx"] for _ in range(2))
    graph.forward([held])
    order = graph.topological_order([lean])
    passing = large.passing(order)
    graph.forward_dropping([lean], lambda n: n is not lean and passing(n))
    assert not all(node.held for node in order)
    places = np.arange(0, held.size, 5)
    one, other = (
        Least(arithmetics("float64")[0]).radii(n, places) for n in (held, lean)
    )
    np.testing.assert_array_equal(one, other)
    one, other = (sampled_errors(node) for node in (held, lean))
    np.testing.assert_allclose(one, other, rtol=1e-13)


def test_least_radii_are_the_same_through_axes_in_another_order():
    """Of length 1, too, and none at all."""
    rng, shapes = np.random.default_rng(0), [(3, 4, 5), (4, 1), ()]
    x, w, c = (graph.variable(rng.standard_normal(shape)) for shape in shapes)
    lean = graph.exp(graph.permute_dims(x, (2, 0, 1))).mT * w * (c.T * w)
    places = rng.permutation(lean.size)[:40]
    found = Least(arithmetics("float64")[0])
    least = found.radii(lean, places)
    graph.forward([lean])
    np.testing.assert_array_equal(found.radii(lean, places), least)


def test_the_terms_of_a_sum_are_computed_once(monkeypatch):
    counts, computed = Counter(), graph.computed

    def counted(node, *how):
        counts[operation(node)] += 1
        return computed(node, *how)

    monkeypatch.setattr(graph, "computed", counted)
    x = graph.variable(np.random.default_rng(0).standard_normal((9, 5)))
    Least(arithmetics("float64")[0]).radii(graph.exp(x).sum(axis=1), np.arange(9))
    assert counts == {"exp": 1, "abs": 1, "sum": 1, "gather": 1}


def sampled_errors(node):
    sample = Sample(2)
    few = sample.of(node)
    order = graph.topological_order([few])
    arithmetic = arithmetics("float64")[0]
    return running_errors(order, arithmetic, 20.0, sample.rules()).errors[few]


@pytest.mark.parametrize(
    ("op", "name"),
    [("layer_norm", "dx"), ("layer_norm", "dweight"), ("softmax", "dx"),
     ("rms_norm", "dx"), ("matmul", "da")],
)  # fmt: skip
def test_running_errors_of_a_sample_are_those_of_the_whole(op, name):
    """But for the terms of sums that it leaves out: a factor of two at the most."""
    made, _ = problem(op, "float64")
    nodes = nodes_of(made, np.dtype(np.float64))
    node, sample = nodes[name], Sample(2)
    order = graph.topological_order([node])
    whole = running_errors(order, arithmetics("float64")[0], 20.0).errors[node]
    places = (sample.terms(n) for n in node.shape)
    box = np.ix_(*(np.arange(n) if p is None else p
                   for n, p in zip(node.shape, places, strict=True)))  # fmt: skip
    found = sampled_errors(node)
    assert found.shape == whole[box].shape
    assert np.median(np.abs(np.log2(found / whole[box]))) < 1


# The least that a radius can be -----------------------------------------------------


@pytest.mark.parametrize("regime", ["normal", "tails", "large", "constant"])
@pytest.mark.parametrize("op", catalogue.op_names())
def test_neither_radius_is_less_than_the_least(op, regime):
    """As x + 0 and x * 1, whose results have no rounding, are not counted."""
    page, judged = catalogue.load_op(op), 0
    for dtype, case in itertools.product(
        ["float32", "float64"], list(page.cases.values())[:2]
    ):
        right = reference(trial(page, case, REGIMES[regime], dtype).problem)
        for name, measured in right.radii().spreads().items():
            node = right.graphs["first"][name]
            if node.value.dtype.kind == "f":
                asked = node, np.arange(node.size)
                least = Least(right.arithmetics[-1]).radii(*asked)
                assert (least <= measured.reshape(-1)).all()
                least = Least(right.arithmetics[-1]).radii(*asked, True)
                bound = right.radii().bounds[name].radius.reshape(-1)
                assert (least <= bound * (1 + 1e-9)).all()
                judged += 1
    assert judged


def test_a_sum_of_products_has_the_roundings_of_these_but_where_they_may_cancel():
    """In a sum of two products each is rounded in its 64 terms of 1."""
    ones = graph.variable(np.ones((2, 1, 64))), graph.variable(np.ones((2, 64, 1)))
    product = graph.matmul(*ones)
    total = graph.sum(product, axis=0)
    cancelled = total - graph.sum(product, axis=0)
    unit, place = PRECISIONS["float32"].roundoff, np.zeros(1, int)
    arithmetic = arithmetics("float32")[0]
    (least,) = Least(arithmetic).radii(total, place)
    assert least == pytest.approx(SURE * unit * np.hypot(128, np.hypot(64, 64)))
    (least,) = Least(arithmetic).radii(cancelled, place)
    assert least <= SURE * unit * np.hypot(128, 128)


@pytest.mark.parametrize("most", [FEW, 4 * FEW, 20_000])
def test_of_a_long_product_the_least_allows_a_rounding_for_each_term_taken(most):
    """A few are added up in float32 first, where the sum may be too large."""
    a, b = (graph.variable(np.ones(shape)) for shape in ((1, 20_000), (20_000, 1)))
    unit, arithmetic = PRECISIONS["float32"].roundoff, arithmetics("float32")[0]
    asked = graph.matmul(a, b), np.zeros(1, int), True
    (least,) = Least(arithmetic).radii(*asked, most=most)
    assert 0.99 * most < least / unit <= most
    assert most > FEW or least / unit <= most * (1 - (most + 2) * unit)


def test_the_terms_of_a_product_that_are_taken_lie_all_along_it():
    """Under a causal mask the first ones are zero."""
    masked = np.tril(np.ones((4 * FEW, 4 * FEW))).T
    product = graph.matmul(masked, graph.variable(np.ones((4 * FEW, 1))))
    least = Least(arithmetics("float32")[0])
    assert least.radii(product, np.arange(4 * FEW - 4), most=FEW).all()


@pytest.mark.parametrize("size", [1e200, 1e160, 1e100])
def test_the_least_is_not_infinite_where_a_square_is(size):
    """It would accept any number."""
    a, b = (
        graph.variable(np.full((2, 3, 64), size)),
        graph.variable(np.ones((2, 64, 3))),
    )
    with np.errstate(over="ignore"):
        total = graph.sum(graph.matmul(a, b * size), axis=0)
        least = Least(arithmetics("float64")[0]).radii(total, np.arange(9))
    assert np.isfinite(least).all()


@pytest.mark.parametrize("times", [1, 2])
def test_what_lands_alone_in_a_scatter_is_not_rounded_there(times):
    values = graph.variable(np.ones(4) / 3)
    node = graph.scatter_add(values, index=np.arange(4) // times, shape=(4,))
    (least,) = Least(arithmetics("float32")[0]).radii(node, np.zeros(1, int))
    assert (least > 0) == (times > 1)


def test_what_goes_two_ways_that_cancel_is_no_rounding_of_the_result():
    """(3 x + t) - 3 x: 3 x is rounded once, and the result does not depend on it."""
    x, t = graph.variable(np.array([1e6 / 3])), graph.variable(np.array([1.5]))
    product = x * 3.0
    right = Reference(Asked(lambda _: {"y": (product + t) - product}, "float32"))
    node = right.graphs["first"]["y"]
    unit = right.arithmetics[-1].step.roundoff
    (least,) = Least(right.arithmetics[-1]).radii(node, np.arange(1))
    assert least == pytest.approx(SURE * unit * np.hypot(1e6 + 1.5, 1.5))  # the sum's


@pytest.fixture(scope="module")
def rows():
    """softmax of 16 rows in float64: reference, and PyTorch's formula in NumPy."""
    rng = np.random.default_rng(5)
    x, dy = rng.standard_normal((2, 16, 256))
    problem = Problem(catalogue.load_op("softmax"), {"x": x}, [dy], {"axis": -1})
    e = np.exp(x - x.max(-1, keepdims=True))
    y = e / e.sum(-1, keepdims=True)
    # An element whose gradient nearly cancels: dy there is the row's mean sum(dy y).
    dy[3, 7] = (dy * y).sum(-1)[3] - y[3, 7] * dy[3, 7]
    dy[3, 7] /= 1 - y[3, 7]
    right = reference(problem)
    return right, y * (dy - (dy * y).sum(-1, keepdims=True))


def judged(right, dx):
    dtypes = {"dx": "float64"}
    (found,) = judge_tensors(right, {"dx": dx}, dtypes)
    return found.verdict


@pytest.mark.parametrize("radii", [0.1, 0.5, 0.9, 1.1, 2.0, 10.0])
def test_an_error_in_a_cancelled_element_has_the_verdict_of_the_spread(rows, radii):
    right, dx = rows
    off = np.where(
        right.radii().spreads()["dx"] < np.inf, right.radii().spreads()["dx"], 0
    )
    wrong = dx.copy()
    exact = right.graphs["first"]["dx"].value
    wrong[3, 7] = exact[3, 7] + radii * right.limit * off[3, 7]
    assert (judged(right, wrong) == "agree") == (radii < 1)


# Values that are far larger than the tensors ------------------------------------------


def heads(x, dy):
    """Scores of (heads, 64, 64) from (heads, 64, 4): y and dx, not evaluated."""
    leaf = graph.variable(x)
    scores = graph.exp(leaf @ graph.permute_dims(leaf, (0, 2, 1)) / 8.0)
    y = scores / graph.sum(scores, -1, keepdims=True) @ leaf
    return {"y": y, "dx": graph.gradient([y], [dy], [leaf])[0]}


def images(x, w, dy):
    """Windows of (images, 6, 9, 144) from (images, 6, 12, 12): y, dx and dw."""
    leaves = [graph.variable(a) for a in (x, w)]
    y = convolved(*leaves, [1, 1], [(1, 1)] * 2, [1, 1], None, 1)
    dx, dw = graph.gradient([y], [dy], leaves)
    return {"y": y, "dx": dx, "dw": dw}


#: A function, and the shapes of what it takes.
FAR_LARGER = {
    "attention": (heads, [(6, 64, 4)] * 2),
    "convolution": (images, [(4, 6, 12, 12), (6, 6, 3, 3), (4, 6, 12, 12)]),
}


@pytest.fixture(name="asked", params=FAR_LARGER)
def made_asked(request, monkeypatch):
    monkeypatch.setattr(large, "FAR", 1)
    function, shapes = FAR_LARGER[request.param]
    rng = np.random.default_rng(3)
    given = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]

    def build(wide):
        return function(*(a.astype(wide) for a in given))

    right = build(np.longdouble).items()
    return build, {name: node.value.astype(np.float32) for name, node in right}


def look(build, got):
    tracemalloc.start()
    try:
        found = large.Look(Asked(build, "float32"), got, dict.fromkeys(got, "float32"))
        return found, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_one_slice_after_the_other_says_the_same_in_less_memory(asked, monkeypatch):
    build, got = asked
    look(build, got)
    apart, less = look(build, got)
    monkeypatch.setattr(large, "FAR_LARGER", np.inf)
    together, peak = look(build, got)
    assert {*apart.judgements} == {*together.judgements} == {*got}
    assert less < peak / 2
    for name, one in apart.judgements.items():
        other = together.judgements[name]
        assert one.expected == pytest.approx(other.expected, rel=1e-12)
        assert one.worst_index == other.worst_index
        assert one.limit == other.limit


@pytest.mark.parametrize("share", [0.0, 0.37, 1.0])
def test_a_wrong_element_of_one_slice_is_found_in_its_place(asked, share):
    build, got = asked
    for tensor, right in got.items():
        wrong = {**got, tensor: right.copy()}
        place = int(share * (right.size - 1))
        wrong[tensor].reshape(-1)[place] *= 1.01
        found, _ = look(build, wrong)
        assert {*found.far} == {tensor}
        assert place in found.far[tensor]


@pytest.mark.parametrize("value", [np.array(3), np.arange(5), np.ones((0, 4))])
def test_whole_numbers_and_nothing_are_left_to_the_judgement(value):
    """Counts of batches, indices, and what has no elements."""
    found, _ = look(lambda wide: {"y": graph.variable(value)}, {"y": value})
    assert not found.judgements
    assert not found.far["y"].size


def test_tensors_of_which_a_part_needs_all_are_looked_at_together():
    """Scores of (64, 64) between the rows of one tensor: no axis goes through them."""
    x = graph.variable(np.random.default_rng(3).standard_normal((64, 4)))
    y = graph.exp(x @ graph.permute_dims(x, (1, 0)))
    dx = graph.gradient([y], [np.ones((64, 64))], [x])[0]
    ((_, places, nodes),) = large._in_turn({"dx": dx})
    assert not places.size
    assert nodes == {"dx": dx}


def test_a_running_sum_in_float64_is_not_held_against_one_that_loses_as_much():
    """Equal terms that are added up one by one round the same way each time."""
    op, dy = catalogue.load_op("cumsum"), np.full(20_000, 0.1)
    made = Problem(op, {"x": dy.copy()}, [dy], {"axis": 0}, dtype="float64")
    got = {"dx": np.cumsum(dy[::-1])[::-1].copy()}
    assert early(made, got) is None
    assert [j.verdict for j in in_full(made, got)] == ["imprecise"]


def test_what_overflows_in_the_reference_is_left_to_the_judgement():
    """The square of 1e200 is infinite in float64, and 0 no root mean square of it."""
    made, _ = problem("rms_norm", "float64", lambda x: x * 1e200)
    got = {"y": np.zeros_like(made.inputs["x"])}
    assert early(made, got) is None


@pytest.mark.parametrize("causal", [False, True])
def test_a_masked_score_is_no_overflow_of_the_reference(causal):
    """It is -inf from the start."""
    rng = np.random.default_rng(4)
    names, how = ("q", "k", "v"), {"causal": causal}
    inputs = dict(zip(names, rng.standard_normal((3, 2, 128, 64)), strict=True))
    op, dy = catalogue.load_op("attention"), rng.standard_normal((2, 128, 64))
    y = op.said("manual")(*(a.copy() for a in inputs.values()), **how)[0]
    made = Problem(op, inputs, [dy], how, dtype="float64")
    assert early(made, {"y": y})
    assert early(made, {"y": y * (1 + 1e-12)}) is None
