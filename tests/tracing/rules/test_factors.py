"""Factorisations: they are what they are called, their gradients slopes."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gradwatch.harness.judging.precisions import PRECISIONS  # noqa: E402  # after importorskip
from gradwatch.harness.tracing.rules import matrices  # noqa: E402  # likewise
from gradwatch.harness.tracing.values import in_type  # noqa: E402  # likewise
from gradwatch.impls import graph  # noqa: E402  # likewise
from gradwatch.impls.graph.engine import PRIMITIVES  # noqa: E402  # likewise
from tests.tracing.rules.test_special import errors_behind  # noqa: E402  # likewise


@pytest.fixture(autouse=True)
def _extended():
    with in_type(np.dtype(np.longdouble)):
        yield


RNG = np.random.default_rng(3)
A = RNG.standard_normal((3, 4, 4)).astype(np.longdouble)
POSITIVE = A @ np.swapaxes(A, -1, -2) + np.eye(4)
SYMMETRIC = A + np.swapaxes(A, -1, -2)
TALL = RNG.standard_normal((3, 5, 3)).astype(np.longdouble)
STEP = np.longdouble(2) ** -20


def vectors(a):
    return matrices.vectors(a)


def svd(place):
    return lambda a: matrices.svd(a)[place]


#: A primitive, what it is called with, and whether that stays symmetric.
CASES = {
    "cholesky": (matrices.cholesky, POSITIVE, True),
    "eigenvalues": (matrices.eigenvalues, SYMMETRIC, True),
    "eigenvectors": (vectors, SYMMETRIC, True),
    "lu": (matrices.packed_lu, POSITIVE + A / 4, False),
    "q": (matrices.orthonormal, TALL, False),
    "r": (lambda a: matrices.qr(a)[1], np.swapaxes(TALL, -1, -2), False),
    "singular values": (svd(1), TALL, False),
    "left vectors": (svd(0), TALL, False),
    "right vectors": (svd(2), np.swapaxes(TALL, -1, -2), False),
    "pseudoinverse": (matrices.pseudoinverse, TALL, False),
}


def t(a):
    return np.swapaxes(a, -1, -2)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_slopes(name):
    """Central differences of the forward in extended precision."""
    function, a, symmetric = CASES[name]
    leaf = graph.variable(a)
    y = function(leaf)
    dy = np.random.default_rng(1).standard_normal(y.shape)
    (gradient,) = graph.gradient([y], [dy], [leaf])
    way = np.random.default_rng(2).standard_normal(a.shape)
    way = way + t(way) if symmetric else way
    up, down = (function(graph.variable(a + s * STEP * way)).value for s in (1, -1))
    if "vectors" in name:  # of which the signs are free
        axis = -1 if "right" in name else -2
        signs = [
            np.sign(np.sum(side * y.value, axis, keepdims=True)) for side in (up, down)
        ]
        up, down = up * signs[0], down * signs[1]
    slope = ((up - down) * dy).sum() / (2 * STEP)
    assert float((gradient.value * way).sum()) == pytest.approx(float(slope), rel=1e-8)
    if symmetric:
        np.testing.assert_allclose(gradient.value, t(gradient.value), rtol=1e-12)


def test_the_factors_make_the_matrix_to_the_digits_of_extended_precision():
    low = matrices.cholesky(graph.variable(POSITIVE)).value
    packed = matrices.packed_lu(graph.variable(POSITIVE)).value
    q = matrices.orthonormal(graph.variable(TALL)).value
    v = vectors(graph.variable(SYMMETRIC)).value
    w = matrices.eigenvalues(graph.variable(SYMMETRIC)).value
    u, s, vh = (node.value for node in matrices.svd(graph.variable(TALL)))
    pairs = [
        (low @ t(low), POSITIVE),
        ((np.tril(packed, -1) + np.eye(4)) @ np.triu(packed), POSITIVE),
        (q @ np.triu(t(q) @ TALL), TALL),
        (v * w[..., None, :] @ t(v), SYMMETRIC),
        (u * s[..., None, :] @ vh, TALL),
    ]
    for made, matrix in pairs:
        assert float(np.abs(made - matrix).max()) < 64 * np.finfo(np.longdouble).eps
    for basis in (q, v, u, t(vh)):
        eye = np.eye(basis.shape[-1])
        assert float(np.abs(t(basis) @ basis - eye).max()) < 1e-17


LAPACK = {
    "cholesky": torch.linalg.cholesky,
    "eigenvalues": torch.linalg.eigvalsh,
    "eigenvectors": lambda a: torch.linalg.eigh(a).eigenvectors,
    "q": lambda a: torch.linalg.qr(a).Q,
    "singular values": torch.linalg.svdvals,
    "left vectors": lambda a: torch.linalg.svd(a, full_matrices=False).U,
    "pseudoinverse": torch.linalg.pinv,
}


@pytest.mark.parametrize("name", LAPACK)
def test_the_rounding_rule_bounds_a_float32_computation(name):
    """LAPACK in float32: within 16 radii, and not by decades; vectors up to signs."""
    a = CASES[name][1].astype(np.float32)
    a = (a + t(a)) / 2 if CASES[name][2] else a

    def function(leaf):
        stable = matrices.perturbed(leaf) if name.startswith("eigen") else leaf
        return CASES[name][0](stable)

    y = function(graph.variable(a.astype(np.longdouble)))
    radius = PRECISIONS["float32"].roundoff * errors_behind(y)[y]
    got = LAPACK[name](torch.from_numpy(a)).double().numpy()
    off = np.abs(got - y.value)
    if "vectors" in name:
        off = np.minimum(off, np.abs(got + y.value))
    assert (off[radius == 0] == 0).all()
    assert 1e-2 < float(np.max(off[radius > 0] / radius[radius > 0])) < 16


def test_a_singular_matrix_has_no_bound():
    flat = graph.variable(np.ones((3, 3)))
    factors = (matrices.cholesky, vectors, matrices.packed_lu, matrices.orthonormal)
    for function in factors:
        y = function(matrices.perturbed(flat))
        assert np.isinf(errors_behind(y)[y]).any()


def test_every_primitive_of_a_factorisation_is_tried():
    behind = [
        graph.topological_order([f(graph.variable(a))]) for f, a, _ in CASES.values()
    ]
    tried = {n.primitive.name for order in behind for n in order if n.primitive}
    tried |= {"factors.to_invert", "factors.returned"}  # in tests/check
    assert {name for name in PRIMITIVES if name.startswith("factors.")} <= tried
