"""The engine: the two sweeps, every primitive's rule, and what it cannot do."""

import zlib

import numpy as np
import pytest

from impls import graph
from tests.balls import balls, digits, precise

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


def test_a_chain_of_100_000_nodes_needs_no_recursion():
    x = graph.variable(np.array(1.0))
    y = x
    for _ in range(100_000):
        y = y + 1.0
    (dx,) = graph.gradient([y], [np.array(2.0)], [x])
    assert (y.value, dx.value) == (100_001.0, 2.0)


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


def test_what_the_engine_lacks_is_named_with_the_nearest():
    with pytest.raises(AttributeError, match="no 'cosh'; did you mean 'cos'"):
        graph.cosh  # noqa: B018  # looking it up is the point
    with pytest.raises(AttributeError, match="it has abs, add"):
        graph.zzzz  # noqa: B018  # as above


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "longdouble"])
def test_python_numbers_take_the_precision_of_the_graph(dtype):
    x = graph.variable(np.array(2, dtype))
    y = (1.5 * x + 1) / 3.0 - graph.exp2(x)
    (dx,) = graph.gradient([y], [np.array(1, dtype)], [x])
    assert y.value.dtype == dx.value.dtype == np.dtype(dtype)


def positive(rng, shape):
    return 0.5 + rng.random(shape)


def any_sign(rng, shape):
    return rng.standard_normal(shape)


# What each primitive is tried on: a function of nodes, and shapes of its inputs.
TRIALS = {
    "add": (lambda a, b: a + b, [(2, 3), (3,)]),
    "subtract": (lambda a, b: a - b, [(3, 1), (1, 4)]),
    "multiply": (lambda a, b: a * b, [(2, 3), ()]),
    "divide": (lambda a, b: a / b, [(2, 1), (2, 3)]),
    "negative": (lambda a: -a, [(3,)]),
    "exp": (graph.exp, [(3,)]),
    "exp2": (graph.exp2, [(3,)]),
    "log": (graph.log, [(3,)]),
    "sqrt": (graph.sqrt, [(3,)]),
    "square": (graph.square, [(3,)]),
    "sin": (graph.sin, [(3,)]),
    "cos": (graph.cos, [(3,)]),
    "tanh": (graph.tanh, [(3,)]),
    "sigmoid": (graph.sigmoid, [(3,)]),
    "abs": (graph.abs, [(3,)]),
    "sign": (lambda a: a * graph.sign(a, at_tie=0.0), [(3,)]),
    "stop_gradient": (
        lambda a: a * graph.stop_gradient(graph.variable(balls(3.0))),
        [()],
    ),
    "maximum": (graph.maximum, [(2, 3), (3,)]),
    "share": (lambda a, b: a * graph.share(a, b, at_tie=1.0), [(3,), (3,)]),
    "max": (lambda a: graph.max(a, axis=0), [(4, 3)]),
    "pick": (lambda a: a * graph.pick(a, axis=1, convention="even"), [(2, 3)]),
    "argmax": (lambda a: a + graph.argmax(a, axis=0), [(3,)]),
    "sum": (lambda a: graph.sum(a, axis=(0, 2)), [(2, 3, 2)]),
    "sum_to": (lambda a: graph.sum_to(a, shape=(3, 1)), [(2, 3, 4)]),
    "matmul": (graph.matmul, [(2, 1, 2, 3), (2, 3, 2)]),
    "reshape": (lambda a: graph.reshape(a, (3, 2)), [(2, 3)]),
    "permute_dims": (lambda a: graph.permute_dims(a, (2, 0, 1)), [(2, 3, 4)]),
    "broadcast_to": (lambda a: graph.broadcast_to(a, (2, 3, 4)), [(3, 1)]),
    "gather": (
        lambda a, b: graph.gather(a, b, index=[[8, 0, -1], [1, 7, 1]]),
        [(2, 3), (3,)],
    ),
    "scatter_add": (
        lambda a: graph.scatter_add(a, index=[[5, 0, 5], [-1, 5, 2]], shape=(3, 2)),
        [(2, 3)],
    ),
}


def test_every_primitive_is_tried():
    assert set(TRIALS) == set(graph.PRIMITIVES)


# What is composed of primitives, tried in the same way.
COMPOSED = {
    "row": (lambda a: a[1], [(3, 2)]),
    "repeated rows": (lambda a: a[np.array([1, 1, 0, 1])], [(3, 2)]),
    "slices": (lambda a: a[::-1, ..., None, 1:], [(3, 2, 3)]),
    "mask": (lambda a: a[np.array([True, False, True])], [(3, 2)]),
    "put": (lambda a: graph.put(a, index=1, shape=(3, 2)), [(2,)]),
    "put, repeated": (
        lambda a: graph.put(a, index=np.array([1, 1]), shape=(3, 2)),
        [(2, 2)],
    ),
}
ALL = TRIALS | COMPOSED


@pytest.mark.parametrize("name", ALL)
def test_a_rule_is_the_derivative_to_25_digits(name):
    """Differences of the forward in 400-bit balls share no rule with the engine."""
    function, shapes = ALL[name]
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    draw = positive if name in ("log", "sqrt", "divide") else any_sign
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
