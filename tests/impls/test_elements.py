"""Tests of single elements: their values, sources and slopes."""

import numpy as np
import pytest

from gradwatch.impls import graph
from gradwatch.impls.graph.elements import Elements

X, W, C = (
    graph.variable(np.random.default_rng(seed).standard_normal(shape))
    for seed, shape in enumerate([(3, 4, 5), (4, 1), ()])
)


def test_values_are_found_where_they_came_from():
    """Through axes in another order, of length 1, and none at all."""
    made = graph.exp(graph.permute_dims(X, (2, 0, 1))).mT * W * (C.T * W)
    places = np.random.default_rng(9).permutation(made.size)[:40]
    elements = Elements()
    lean = elements.at(made, places)  # while no value is held
    assert not made.held
    np.testing.assert_array_equal(lean, made.value.flat[places])
    np.testing.assert_array_equal(Elements().at(made, places), lean)


MADE = {
    "a product with a column": X * W,
    "a quotient by a number": X / C,
    "exp": graph.exp(X),
    "tanh": graph.tanh(X),
    "the larger": graph.maximum(X, W),
    "chosen": graph.where(X > 0, X * 1.0, W * graph.exp(X)),
    "axes": graph.permute_dims(X, (1, 2, 0)),
    "copies": graph.broadcast_to(W, (3, 4, 5)),
    "a row": X[1],
    "backwards": graph.flip(X, axis=2),
    "two in one": graph.concat((X, graph.exp(X)), axis=1),
    "of a batch": graph.gather(X, index=np.array([[0, 2], [-1, 4]]), batch=2),
    "scattered": graph.scatter_add(
        X, index=np.minimum(np.arange(20), 13).reshape(4, 5), shape=(3, 21), batch=1
    ),
}


@pytest.mark.parametrize("name", MADE)
def test_sources_have_the_slopes_of_the_gradient(name):
    """Each element of the output alone, against the engine's reverse sweep."""
    node = MADE[name]
    places = np.arange(node.size)
    found = {}
    for source, there, slope in Elements().sources(node, places):
        jacobian = found.setdefault(source, np.zeros((node.size, source.size)))
        jacobian[places, there] += slope
    judged = 0
    for place in places:
        dy = np.zeros(node.shape)
        dy.flat[place] = 1.0
        alone = dict(zip(node.inputs, vjp(node, dy), strict=True))
        for source, jacobian in found.items():
            if name == "scattered" and not jacobian[place].any():
                continue  # several values are added up there, or none
            np.testing.assert_allclose(jacobian[place], alone[source], rtol=1e-15)
            judged += 1
    assert judged >= (3 * 13 if name == "scattered" else node.size)


def vjp(node, dy):
    """The gradients by a node's inputs, flat; zeros where there is none."""
    inputs = [graph.variable(source.value) for source in node.inputs]
    again = graph.Node(node.primitive, tuple(inputs), node.attributes)
    by = graph.gradient([again], [graph.variable(dy)], inputs)
    return [
        np.zeros(source.size) if found is None else found.value.reshape(-1)
        for source, found in zip(inputs, by, strict=True)
    ]


def test_an_element_of_several_has_no_source():
    added = graph.scatter_add(X, index=np.zeros((3, 4, 5), int), shape=(20,))
    ((_, _, slope),) = Elements().sources(added, np.arange(20))
    assert not slope.any()
    crowded = graph.scatter_add(X, index=np.arange(60).reshape(3, 4, 5) % 2, shape=(2,))
    assert not [*Elements().sources(crowded, np.arange(2))]
    assert not [*Elements().sources(graph.sum(X, axis=0), np.arange(20))]
