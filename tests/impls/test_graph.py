"""The engine: the two sweeps, every primitive's rule, and what it cannot do."""

import operator
import re
import zlib

import numpy as np
import pytest

from gradwatch.impls import graph
from gradwatch.impls.graph import hints
from gradwatch.impls.graph.expressions import slices_of
from tests.balls import balls, digits, precise
from tests.primitives import ALL, DRAWN, ENGINES, TRIALS, any_sign

STEP = 2.0**-130


def test_calling_builds_and_computes_nothing():
    x = graph.variable(np.ones(3))
    y = graph.exp(x)
    assert y._value is None
    graph.forward([y])
    assert y._value is not None


def test_inputs_come_before_their_users_and_only_once():
    x = graph.variable(np.ones(3))
    shared = graph.exp(x)
    y = shared * shared + x
    order = graph.topological_order([y])
    assert len(order) == len(set(order)) == 4
    place = {node: i for i, node in enumerate(order)}
    assert all(place[s] < place[n] for n in order for s in n.inputs)


def test_gradients_add_where_paths_meet():
    x = graph.variable(np.array(3.0))
    (dx,) = graph.gradient([x * x + 2.0 * x], [np.ones(())], [x])
    assert dx.value == 8.0


def test_a_chain_of_20_000_nodes_needs_no_recursion():
    x = graph.variable(np.array(1.0))
    y = x
    for _ in range(20_000):
        y = y + 1.0
    (dx,) = graph.gradient([y], [np.array(2.0)], [x])
    assert (y.value, dx.value) == (20_001.0, 2.0)


def test_an_input_that_no_path_leads_to_has_no_gradient():
    x, z = graph.variable(np.ones(2)), graph.variable(np.ones(2))
    assert graph.gradient([graph.exp(x)], [np.ones(2)], [z]) == [None]


def test_a_gradient_is_a_node_and_can_be_differentiated_again():
    x = graph.variable(np.array(2.0))
    (dx,) = graph.gradient([x * x * x], [np.ones(())], [x])
    (ddx,) = graph.gradient([dx], [np.ones(())], [x])
    assert (dx.value, ddx.value) == (12.0, 12.0)


def test_a_cotangent_of_another_shape_is_refused():
    x = graph.variable(np.ones(3))
    with pytest.raises(
        ValueError, match=r"cotangent has shape \(2,\), its output \(3,\)"
    ):
        graph.gradient([graph.exp(x)], [np.ones(2)], [x])


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("matmull", "did you mean 'matmul'"),
        ("zzzz", "it has abs, acos"),
        ("relu", r"write it as xp.maximum\(x, 0.0\)"),
        ("cumsum", "write it as xp.cumulative_sum"),
    ],
)
def test_what_the_engine_lacks_is_named_with_the_nearest_or_how_to_write_it(name, hint):
    x = graph.variable(np.ones(3))
    for holder in (graph, x):
        with pytest.raises(AttributeError, match=f"no {name!r}; {hint}"):
            getattr(holder, name)


@pytest.mark.parametrize("name", hints.WRITTEN_AS)
def test_what_a_hint_tells_to_write_exists(name):
    assert name not in graph.FUNCTIONS
    for said in re.findall(r"xp\.(\w+)", hints.WRITTEN_AS[name]):
        assert said in graph.FUNCTIONS


def test_internal_names_are_not_suggested():
    assert not {"share", "pick", "step", "compare", "logical"} & set(graph.FUNCTIONS)


# Comparisons --------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_a_comparison_builds_a_node_of_truth_values(name):
    compare = getattr(operator, name)
    numbers, others = np.array([1.0, 2.0, np.nan]), np.array([1.0, 3.0, 1.0])
    node = compare(graph.variable(numbers), others)
    assert node.dtype == bool
    np.testing.assert_array_equal(node.value, compare(numbers, others))
    np.testing.assert_array_equal(
        compare(others, graph.variable(numbers)).value, compare(others, numbers)
    )


def test_a_node_has_no_truth_value():
    x = graph.variable(np.ones(1))
    for ask in (bool, lambda node: node and x, lambda node: 0 < node < 2):
        with pytest.raises(TypeError, match=r"write\s+xp.where|Write xp.where"):
            ask(x == 1.0)


def test_a_formula_multiplied_by_a_comparison_is_multiplied_by_its_numbers():
    x = graph.variable(np.array([0.0, 2.0]))
    y = x + 3.0 * (x == 0.0)
    (dx,) = graph.gradient([y], [np.ones(2)], [x])
    assert y.value.tolist() == [3.0, 2.0]
    assert dx.value.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
def test_integers_take_the_precision_of_what_they_meet(dtype):
    x = graph.variable(np.array([1.0, 2.0], dtype))
    whole = graph.variable(np.array([3, 4]))
    y = graph.where(whole > 3, x * whole, 1.0) + 0.5 * (x > 1.0) + graph.argmax(x)
    (dx,) = graph.gradient([y], [np.ones(2)], [x])
    assert y.dtype == y.value.dtype == dx.value.dtype == np.dtype(dtype)
    assert y.value.tolist() == [2.0, 9.5]
    assert graph.gradient([y], [np.ones(2)], [whole]) == [None]


def test_a_fraction_times_integers_of_no_precision_is_refused():
    with pytest.raises(TypeError, match=r"write xp.astype\(integers, x.dtype\)"):
        graph.variable(np.array([3, 4])) * 0.5


@pytest.mark.parametrize("index", [lambda x: x > 1.0, lambda x: graph.argmax(x)])
def test_an_index_that_rounding_could_change_is_refused(index):
    x = graph.variable(np.array([1.0, 2.0]))
    with pytest.raises(IndexError, match="rounding"):
        x[index(x)]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
def test_python_numbers_take_the_precision_of_the_graph(dtype):
    x = graph.variable(np.array(2, dtype))
    y = (1.5 * x + 1) / 3.0 - graph.exp2(x)
    (dx,) = graph.gradient([y], [np.array(1, dtype)], [x])
    assert y.value.dtype == dx.value.dtype == np.dtype(dtype)


@pytest.mark.parametrize("name", ALL)
def test_a_node_knows_its_dtype_before_its_value(name):
    function, shapes = ALL[name]
    rng = np.random.default_rng(2)
    draw = DRAWN.get(name, any_sign)
    leaves = [graph.variable(draw(rng, s).astype("float32")) for s in shapes]
    for node in graph.topological_order([function(*leaves)]):
        assert node.dtype == node.value.dtype, node


@pytest.mark.parametrize("name", ALL)
def test_a_shape_that_is_known_before_the_value_is_the_value_s(name):
    function, shapes = ALL[name]
    rng = np.random.default_rng(3)
    draw = DRAWN.get(name, any_sign)
    leaves = [graph.variable(draw(rng, shape)) for shape in shapes]
    y = function(*leaves)
    ready = [y, *graph.gradient([y], [rng.standard_normal(y.shape)], leaves)]
    for node in graph.topological_order([node for node in ready if node is not None]):
        assert node.shape == node.value.shape, node


def test_a_shape_asks_for_no_value():
    x, w = graph.variable(np.ones((2, 1, 3))), graph.variable(np.ones((3, 4)))
    y = graph.sum(graph.permute_dims(x @ w, (2, 0, 1)), axis=(0, 2)) - 1.0
    z = graph.max(graph.reshape(y + graph.exp(x[:, 0, 0]), (-1, 2)), axis=0)
    assert (y.shape, z.shape, y.ndim, z.size) == ((2,), (2,), 1, 2)
    assert not y.held
    assert not z.held


@pytest.mark.parametrize(("one", "other"), [((2, 3), (2,)), ((2, 3), (4, 3))])
def test_shapes_that_do_not_fit_are_refused_before_the_values(one, other):
    a, b = graph.variable(np.ones(one)), graph.variable(np.ones(other))
    with pytest.raises(ValueError, match="broadcast"):
        _ = (a * b).shape
    with pytest.raises(ValueError, match="cannot be multiplied"):
        _ = (graph.variable(np.ones((2, 3))) @ graph.variable(np.ones((2, 3)))).shape


@pytest.mark.parametrize("shape", [(4,), (-1, 4), (3, 0)])
def test_a_shape_that_elements_cannot_have_is_refused_before_the_values(shape):
    x = graph.variable(np.ones((2, 3)))
    with pytest.raises(ValueError, match="cannot have the shape"):
        _ = graph.reshape(x, shape).shape
    with pytest.raises(ValueError, match="broadcast"):
        _ = graph.broadcast_to(x, (3, 3)).shape
    with pytest.raises(ValueError, match="broadcast"):
        _ = graph.broadcast_to(x, (3,)).shape


def test_a_chain_of_20_000_nodes_has_a_shape():
    y = graph.variable(np.ones(3))
    for _ in range(20_000):
        y = y + 1.0
    assert y.shape == (3,)


def test_values_that_are_dropped_are_the_same_when_they_are_asked_for():
    x = graph.variable(np.linspace(0.1, 2.0, 12).reshape(3, 4))

    def nodes():
        centred = x - graph.mean(x, axis=1, keepdims=True)
        y = centred / graph.sqrt(graph.sum(centred * centred, axis=1, keepdims=True))
        (dx,) = graph.gradient([y], [np.cos(x.value)], [x])
        return [y, dx]

    kept, lean = nodes(), nodes()
    graph.forward(kept)
    order = graph.topological_order(lean)
    products = {n for n in order if n.primitive and n.primitive.name == "multiply"}
    graph.forward_dropping(lean, lambda node: node in products)
    assert {node for node in order if not node.held} == products
    assert all(node.shape for node in products)
    for one, other in zip(graph.topological_order(kept), order, strict=True):
        np.testing.assert_array_equal(one.value, other.value)


def written_over(outputs):
    """The values, where all others are dropped, and how many arrays served twice."""
    served, held = [], {*outputs}

    def compute(node, arrays, spare):
        served.append(spare)
        return graph.computed(node, arrays, spare)

    with graph.computing(compute):
        graph.forward_dropping(outputs, lambda n: n.inputs != () and n not in held)
    return [y.value for y in outputs], sum(spare is not None for spare in served)


X = graph.variable(np.linspace(0.1, 2.0, 12).reshape(3, 4))


def test_a_value_is_written_over_one_that_is_used_no_more():
    tracked = X.value.copy()
    (y,), twice = written_over([graph.exp(X - 1.0) * X + X])
    np.testing.assert_array_equal(y, np.exp(tracked - 1.0) * tracked + tracked)
    assert twice == 3  # of four values: the first is made of a leaf
    np.testing.assert_array_equal(X.value, tracked)


@pytest.mark.parametrize(
    "seen",
    [lambda a: a, graph.stop_gradient, lambda a: a.T, lambda a: graph.reshape(a, 12)],
    ids=["itself", "same array", "turned", "reshaped"],
)
@pytest.mark.parametrize("first", [0, 1])
def test_what_is_used_again_is_not_written_over(seen, first):
    """Neither a value nor a view of it, whichever of the two is computed first."""
    a = X + 1.0
    parts = [seen(a), seen(graph.exp(a))]
    (y,), _ = written_over([parts[first] + parts[1 - first]])
    b = graph.variable(X.value + 1.0)
    np.testing.assert_array_equal(y, (seen(b) + seen(graph.exp(b))).value)


def test_a_value_of_another_shape_is_not_written_over():
    (y,), twice = written_over([graph.mean(X + 1.0, axis=1, keepdims=True) * X])
    np.testing.assert_array_equal(y, (X.value + 1.0).mean(1, keepdims=True) * X.value)
    assert twice == 0


def test_a_leaf_cannot_be_dropped():
    with pytest.raises(ValueError, match="leaf"):
        graph.variable(np.ones(2)).drop()


def test_every_primitive_is_tried():
    assert set(TRIALS) == ENGINES


@pytest.mark.parametrize("name", ALL)
def test_a_rule_is_the_derivative_to_25_digits(name):
    """Differences of the forward in 400-bit balls share no rule with the engine."""
    function, shapes = ALL[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    draw = DRAWN.get(name, any_sign)
    with precise():
        arrays = [balls(draw(rng, shape)) for shape in shapes]
        leaves = [graph.variable(a) for a in arrays]
        y = function(*leaves)
        dy = balls(rng.standard_normal(y.shape))
        for i, gradient in enumerate(graph.gradient([y], [dy], leaves)):
            direction = balls(rng.standard_normal(shapes[i]))
            moved = [*arrays[:i], arrays[i] + direction * balls(STEP), *arrays[i + 1 :]]
            there = function(*map(graph.variable, moved)).value
            slope = np.sum((there - y.value) * dy) / STEP
            if gradient is None:
                assert float(abs(slope)) == 0, f"input {i}: a gradient is due"
            else:
                agreed = digits(slope, np.sum(gradient.value * direction))
                assert agreed >= 25, f"input {i}: only {agreed:.1f} digits"


@pytest.mark.parametrize("name", ALL)
def test_a_rule_can_itself_be_differentiated_to_25_digits(name):
    """Differences of the gradient, which those of the forward hold to 25 digits."""
    function, shapes = ALL[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    draw = DRAWN.get(name, any_sign)

    def pulled(arrays):
        """Leaves, and the sum of gradient * tangent; the last leaf is the cotangent."""
        leaves = [graph.variable(a) for a in arrays]
        first = graph.gradient([function(*leaves[:-1])], leaves[-1:], leaves[:-1])
        pairs = zip(first, tangents, strict=True)
        return leaves, sum(graph.sum(dx * v) for dx, v in pairs if dx is not None)

    with precise():
        arrays = [balls(draw(rng, shape)) for shape in shapes]
        y = function(*map(graph.variable, arrays))
        arrays.append(balls(rng.standard_normal(y.shape)))
        tangents = [balls(rng.standard_normal(shape)) for shape in shapes]
        leaves, whole = pulled(arrays)
        if not isinstance(whole, graph.Node):
            return  # no gradient at all
        for i, second in enumerate(graph.gradient([whole], [np.ones(())], leaves)):
            direction = balls(rng.standard_normal(arrays[i].shape))
            moved = [*arrays[:i], arrays[i] + direction * balls(STEP), *arrays[i + 1 :]]
            slope = np.sum(pulled(moved)[1].value - whole.value) / STEP
            got = np.sum(second.value * direction) if second is not None else 0 * slope
            # Zero, but for what the step leaves over, where nothing is of second order.
            small = float(abs(slope)) < 1e-25 and float(abs(got)) < 1e-25
            assert small or digits(slope, got) >= 25, f"source {i}"


def test_put_adds_where_an_index_is_repeated():
    values = graph.variable(np.array([1.0, 2.0, 4.0]))
    y = graph.put(values, index=np.array([1, 0, 1]), shape=(3,))
    assert y.value.tolist() == [2.0, 5.0, 0.0]


@pytest.mark.parametrize("index", [[3], [-2], [0.5]])
def test_an_index_out_of_range_or_no_integer_is_refused(index):
    x = graph.variable(np.ones(3))
    with pytest.raises(IndexError):
        graph.gather(x, index=index)
    with pytest.raises(IndexError):
        graph.scatter_add(x[:1], index=index, shape=(3,))


@pytest.mark.parametrize(
    "said", [":, 2:4", "1", "::2", ":, ::3", "3", ":", "2, 3", "1:3, 5"]
)
def test_a_gather_is_said_as_the_slices_that_it_takes(said):
    at = np.arange(24).reshape(4, 6)
    x = graph.asarray(at.astype(float))
    index = eval(f"at[{said}]", {"at": at})
    assert slices_of(graph.gather(x, index=index)) == said
    assert slices_of(graph.gather(x, index=np.array([2, 3]), batch=1)) == ":, 2:4"


def test_a_gather_that_takes_no_box_has_no_slices():
    at = np.arange(24).reshape(4, 6)
    x = graph.asarray(at.astype(float))
    for index in (at.T, at[::-1], at[[0, 1, 3]], at - 1, at[:0]):
        assert slices_of(graph.gather(x, index=index)) == ""
    assert slices_of(graph.gather(x[0, 0], index=np.zeros(3, int))) == ""
    assert slices_of(graph.gather(x, x, index=at)) == ""


def test_a_gather_with_padding_has_one_table_of_positions():
    """Of a convolution it is larger than all tensors; -1 stays -1 in the gradient."""
    x = graph.variable(np.arange(3.0))
    y = graph.gather(x, index=np.array([-1, 2, 0, 2]))
    (dx,) = graph.gradient([y], [np.array([9.0, 1.0, 2.0, 4.0])], [x])
    assert dx.attributes["index"] is y.attributes["index"]
    np.testing.assert_array_equal(dx.value, [2, 0, 5])


@pytest.mark.parametrize("cached", [1, 12, 1 << 15])
@pytest.mark.parametrize("dtype", [np.float64, np.longdouble])
def test_a_batch_moves_as_one_table_of_all_its_positions_does(
    dtype, cached, monkeypatch
):
    monkeypatch.setattr("gradwatch.impls.graph.moves.CACHED", cached)
    x = graph.variable(np.arange(20.0).reshape(5, 2, 2).astype(dtype))
    index = np.array([[-1, 2, 0], [2, 3, 3]])
    outside = np.full((5, 1), 9.0)
    ahead = 4 * np.arange(5)[:, None, None]
    inside = ahead + index
    tables = [
        ((), np.where(index < 0, -1, inside)),
        ((outside,), np.where(index < 0, 20 + ahead // 4, inside)),
    ]
    for more, whole in tables:
        some = np.where(index < 0, 4, index) if more else index
        y = graph.gather(x, *more, index=some, batch=1)
        flat = graph.gather(x, *more, index=whole)
        np.testing.assert_array_equal(y.value, flat.value)
        assert y.shape == y.value.shape
        dy = np.arange(30.0).reshape(5, 2, 3)
        pair = [graph.gradient([z], [dy], [x])[0].value for z in (y, flat)]
        np.testing.assert_array_equal(*pair)


def test_windows_need_a_table_of_one_channel_only():
    x = graph.variable(np.arange(2.0 * 3 * 16).reshape(2, 3, 4, 4))
    y = graph.sliding_windows(x, (3, 3), padding=1)
    assert y.attributes["index"].shape == (4, 4, 3, 3)
    padded = np.pad(x.value, [(0, 0), (0, 0), (1, 1), (1, 1)])
    seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    np.testing.assert_array_equal(y.value, seen)


def test_values_of_another_shape_than_the_index_are_refused():
    with pytest.raises(ValueError, match=r"shape \(3,\), index of \(2,\)"):
        graph.scatter_add(np.ones(3) * graph.variable(1.0), index=[0, 1], shape=(3,))


@pytest.mark.parametrize(
    ("a_shape", "b_shape"),
    [
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 2)),
        ((4, 2, 3), (3,)),
        ((3,), (4, 3, 2)),
    ],
)
def test_matmul_treats_vectors_as_numpy_does(a_shape, b_shape):
    rng = np.random.default_rng(4)
    a, b = rng.standard_normal(a_shape), rng.standard_normal(b_shape)
    x, w = graph.variable(a), graph.variable(b)
    y = graph.matmul(x, w)
    np.testing.assert_allclose(y.value, a @ b, rtol=1e-14)
    dx, dw = graph.gradient([y], [np.ones(y.shape)], [x, w])
    assert (dx.shape, dw.shape) == (a_shape, b_shape)


@pytest.mark.parametrize(
    ("convention", "row"),
    [("first", [0, 1, 0, 0]), ("last", [0, 0, 0, 1]), ("even", [0, 0.5, 0, 0.5])],
)
def test_a_tie_is_broken_by_the_convention_in_force(convention, row):
    x = graph.variable(np.array([1.0, 3.0, 2.0, 3.0]))
    with graph.ties(convention):
        (dx,) = graph.gradient([graph.max(x, axis=0)], [np.ones(())], [x])
    np.testing.assert_array_equal(dx.value, row)


def test_an_unknown_convention_is_refused():
    with (
        pytest.raises(ValueError, match="no convention 'middle'"),
        graph.ties("middle"),
    ):
        pass


@pytest.mark.parametrize(
    "function",
    [
        lambda x: graph.where(x > 0.0, graph.sqrt(x), 0.0),
        lambda x: graph.where(x > 0.0, graph.sqrt(x * 1.0) * 2.0, 0.0),
        lambda x: graph.where(x > 0.0, 0.0, graph.where(x > -1.0, graph.log(x), 0.0)),
        lambda x: graph.where(x > 0.0, graph.where(x > 9.0, 1 / (x - 4.0), 1.0), 2.0),
    ],
)
def test_a_branch_that_is_not_taken_has_a_gradient_of_zero(function):
    """-4 and 4: a square root or a logarithm of what is negative, a division by 0."""
    x = graph.variable(np.array([-4.0, 4.0]))
    (dx,) = graph.gradient([function(x)], [np.ones(2)], [x])
    with np.errstate(all="ignore"):
        graph.forward([dx])
    assert dx.value[0] == 0
    assert np.isfinite(dx.value[1])


def test_of_two_branches_with_one_input_each_gives_its_part():
    x = graph.variable(np.array([-4.0, 4.0]))
    y = graph.where(x > 0.0, graph.sqrt(x), graph.sqrt(-x))
    (dx,) = graph.gradient([y], [np.ones(2)], [x])
    with np.errstate(all="ignore"):
        graph.forward([dx])
    assert dx.value.tolist() == [-0.25, 0.25]


def test_an_infinite_slope_of_a_branch_that_is_taken_stays():
    x = graph.variable(np.array([0.0]))
    (dx,) = graph.gradient([graph.where(x < 1.0, graph.sqrt(x), x)], [np.ones(1)], [x])
    with np.errstate(all="ignore"):
        graph.forward([dx])
    assert np.isinf(dx.value[0])
