"""Formulas on torch, against the engine: values, gradients, second derivatives."""

import zlib

import numpy as np
import pytest

from gradwatch.impls import graph
from gradwatch.impls.backends._torchlike_names import ArrayNames
from tests.primitives import COMPOSED, DRAWN, any_sign

torch = pytest.importorskip("torch")
REVERSED = "slices"  # torch has no negative steps


@pytest.mark.parametrize("name", sorted(graph.FUNCTIONS))
def test_torch_has_every_name(name):
    assert callable(getattr(ArrayNames(torch), name))


@pytest.mark.parametrize("title", sorted({*COMPOSED} - {REVERSED}))
def test_torch_and_the_engine_have_the_same_value_gradient_and_curvature(title):
    function, shapes = COMPOSED[title]
    rng = np.random.default_rng(zlib.crc32(title.encode()))
    arrays = [DRAWN.get(title, any_sign)(rng, shape) for shape in shapes]
    nodes = [graph.variable(a) for a in arrays]
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    y, z = function(graph, *nodes), function(ArrayNames(torch), *tensors)
    y, z = y * y, z * z  # so that a second derivative is due everywhere
    dy = rng.standard_normal(y.shape)
    np.testing.assert_allclose(z.detach().numpy(), y.value, rtol=1e-12, atol=1e-14)
    ours = graph.gradient([y], [dy], nodes)
    theirs = torch.autograd.grad(z, tensors, torch.tensor(dy), create_graph=True)
    along = [rng.standard_normal(shape) for shape in shapes]
    ours += graph.gradient(ours, along, nodes)
    theirs += torch.autograd.grad(theirs, tensors, [*map(torch.tensor, along)])
    for mine, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(
            other.detach().numpy(), mine.value, rtol=1e-11, atol=1e-13
        )
