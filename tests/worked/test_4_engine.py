"""Section 4: a small automatic differentiation engine in NumPy."""

import numpy as np
import pytest

from gradwatch.harness.judging.reference import reference
from gradwatch.impls import graph
from gradwatch.impls.catalogue import load_op
from gradwatch.impls.contract import Problem
from gradwatch.impls.graph import Node, Primitive


def refuse(*arrays):
    raise ArithmeticError("computed")


def test_calling_an_op_only_builds_the_graph():
    """Row `Calling an op only builds`: the value comes with the forward sweep."""
    leaf = graph.variable(np.array(2.0))
    node = Node(Primitive("refuse", refuse, lambda dy, y, x: (dy,)), (leaf,))
    above = node * node + leaf  # builds on it, and still nothing is computed
    with pytest.raises(ArithmeticError, match="computed"):
        graph.forward([above])


def test_a_node_holds_its_value_its_inputs_and_its_primitive():
    """Row `Node holds value, name, inputs, grad`; the gradient is a node of its own."""
    x, w = graph.variable(np.array(3.0)), graph.variable(np.array(4.0))
    y = x * w
    assert y.inputs == (x, w)
    assert y.primitive.name == "multiply"
    assert y.value == 12
    (dx,) = graph.gradient([y], [1.0], [x])
    assert isinstance(dx, Node)
    assert dx.value == 4


def test_a_variable_is_a_leaf():
    """Row `leaf nodes are Variable`."""
    leaf = graph.variable(np.array(3.0))
    assert leaf.primitive is None
    assert leaf.inputs == ()


def test_each_primitive_has_a_forward_and_a_gradient():
    """Row `each Op has a forward (compute) and a gradient`."""
    assert graph.PRIMITIVES.keys() >= {"add", "multiply"}
    for name, primitive in graph.PRIMITIVES.items():
        assert primitive.name == name
        assert callable(primitive.compute)
        assert callable(primitive.gradient)


def test_the_order_is_topological():
    """Row `post-order DFS from the output`: inputs before users, each node once."""
    x = graph.variable(np.array(2.0))
    square = x * x
    output = square + x
    order = graph.topological_order([output])
    assert len(order) == len(set(order)) == 3
    place = {node: i for i, node in enumerate(order)}
    assert place[x] < place[square] < place[output]


def test_gradients_that_reach_a_node_by_several_paths_are_added():
    """Row `gradients by several paths are added`: y = x*x + x has dy/dx = 2x + 1."""
    x = graph.variable(np.array([2.0, -5.0]))
    (dx,) = graph.gradient([x * x + x], [np.ones(2)], [x])
    assert dx.value.tolist() == [5, -9]


@pytest.mark.parametrize("backend", ["numpy_graph"])
def test_the_engine_is_a_backend_of_its_own(run):
    """Row `a backend of its own (numpy_graph)`."""
    found = run("square", {"x": [3.0]}, [1.0])
    assert found.gradients["dx"] == [6]


@pytest.mark.parametrize(
    ("narrow", "wide"), [("float32", "float64"), ("float64", np.longdouble)]
)
def test_the_reference_runs_it_in_a_wider_type(narrow, wide):
    """Row `run in a wider type, is the reference`."""
    x = np.array([3.0], narrow)
    right = reference(Problem(load_op("square"), {"x": x}, [x], dtype=narrow))
    assert right.radii().bounds["dx"].value.dtype == wide
