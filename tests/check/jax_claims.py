"""Claims about functions of JAX's, which tests/check/test_jax.py runs in JAX's process.

A claim is a function; it raises where it does not hold. `both_` ones need PyTorch, too.
"""

import functools
import json
import pathlib
import runpy
import sys
import tempfile
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.scipy import special
from jax_published import FUNCTIONS, MISTAKES, planted

import gradwatch
from gradwatch.harness.check.child import answered
from gradwatch.harness.check.frameworks.jax import array_of, filled
from gradwatch.harness.tracing import Untraceable
from gradwatch.harness.tracing.lax import Traced
from gradwatch.impls import graph

jax.config.update("jax_platforms", "cpu")
check = gradwatch.check
RNG = np.random.default_rng(0)
X, V = RNG.standard_normal((4, 6)), RNG.standard_normal(6)
P = np.abs(X) + 0.1
S = X @ X.T + np.eye(4)
INDEX = np.array([0, 2, 2, 5, 9])


def with_backward(function, backward):
    """The function with another gradient: backward(x, dy)."""
    own = jax.custom_vjp(function)
    own.defvjp(lambda x: (function(x), x), lambda x, dy: (backward(x, dy),))
    return own


def angles_in_float32_hide_no_rotation():
    """At positions from 2000 on: in bfloat16 all of them are the same."""

    def rotated(q, turn=1.0):
        position = jnp.arange(2000, 2000 + q.shape[-2])[:, None].astype(jnp.float32)
        angle = position * 10000.0 ** (-jnp.arange(4, dtype=jnp.float32) / 4)
        c, s = jnp.cos(angle).astype(q.dtype), turn * jnp.sin(angle).astype(q.dtype)
        a, b = q[..., :4], q[..., 4:]
        return jnp.concatenate((a * c - b * s, b * c + a * s), -1)

    q = jnp.asarray(RNG.standard_normal((2, 6, 8)), jnp.bfloat16)
    found = check(rotated, None, [q], quick=True)
    assert {j.verdict for j in found} == {"agree"}, str(found)
    turned = with_backward(lambda q: rotated(q), lambda q, dy: rotated(dy))
    assert not check(rotated, turned, [q], quick=True).passes  # rotated(dy, -1.0)


def a_step_in_float32_excuses_no_rounding_to_bfloat16():
    def wave(x):
        return jnp.sin(300.0 * x.astype(jnp.float32)).astype(x.dtype)

    def with_slope(factor, rounded):
        def back(x, dy):
            angle = (300.0 * x.astype(jnp.float32)).astype(rounded)
            slope = jnp.cos(angle.astype(jnp.float32)) * (300.0 * factor)
            return (dy.astype(jnp.float32) * slope).astype(dy.dtype)

        return with_backward(wave, back)

    x = jnp.asarray(RNG.standard_normal((8, 9)), jnp.bfloat16)
    for factor, rounded in ((1.0, "float32"), (1.2, "float32"), (1.0, "bfloat16")):
        found = check(wave, with_slope(factor, rounded), [x], quick=True)
        assert found.passes is ((factor, rounded) == (1.0, "float32")), str(found)


def a_cotangent_is_rounded_where_it_leaves_the_finer_type():
    def loss(x):
        x = x.astype(jnp.float32)
        return (x * jax.nn.softmax(x, -1)).sum(-1)

    def halved(x):
        return loss(x) / 2 + lax.stop_gradient(loss(x)) / 2

    x = jnp.asarray(RNG.standard_normal((4, 9)), jnp.bfloat16)
    assert check(loss, None, [x], quick=True).passes
    assert not check(loss, halved, [x], quick=True).passes


#: Functions whose nodes and gradients have to be those of JAX in float64.
SAME = {
    "softmax": (jax.nn.softmax, X),
    "scan": (lambda a: lax.scan(lambda c, r: (c * jnp.tanh(r) + 1, c), V, a), X),
    "scan backwards": (
        lambda a: lax.scan(lambda c, r: (c * r, c + r), V, a, reverse=True),
        X,
    ),
    "fori_loop": (
        lambda a: lax.fori_loop(0, 3, lambda i, c: c * a[i], V + 0 * a[0]),
        X,
    ),
    "cond of a float": (
        lambda a: lax.cond(a[0, 0] > 0, jnp.sin, lambda b: b * b, a),
        X,
    ),
    "switch": (
        lambda a, i: lax.switch(i, [jnp.sin, jnp.cos, jnp.exp], a),
        X,
        np.array(1),
    ),
    "remat": (jax.checkpoint(lambda a: jnp.sin(a) * a), X),
    "einsum": (lambda a, b: jnp.einsum("bi,bj->ij", a, b), X, P),
    "conv": (
        lambda a, b: lax.conv_general_dilated(
            *(a, b, (2, 1), "SAME", None, (1, 2), ("NHWC", "HWIO", "NHWC")),
            feature_group_count=2,
        ),
        *(RNG.standard_normal((2, 6, 7, 4)), RNG.standard_normal((3, 3, 2, 6))),
    ),
    "conv_transpose": (
        lambda a, b: lax.conv_transpose(a, b, (2, 2), "SAME"),
        *(RNG.standard_normal((2, 5, 5, 3)), RNG.standard_normal((3, 3, 3, 4))),
    ),
    "max pooling": (
        lambda a: lax.reduce_window(a, -jnp.inf, lax.max, (2, 2), (2, 2), "SAME"),
        X,
    ),
    "mean pooling": (
        lambda a: lax.reduce_window(a, 0.0, lax.add, (2, 3), (1, 1), "SAME"),
        X,
    ),
    "sort of pairs": (lambda a, b: lax.sort((a, b), num_keys=1), X, P),
    "top_k": (lambda a: lax.top_k(a, 2), X),
    "median": (jnp.median, X),
    "cumsum": (lambda a: lax.cumsum(a, 1, reverse=True), X),
    "cumprod": (lambda a: jnp.cumprod(a, 1), X),
    "cummax": (lambda a: lax.cummax(a, 1), X),
    "cumlogsumexp": (lambda a: lax.cumlogsumexp(a, 0), X),
    "associative_scan": (lambda a: lax.associative_scan(jnp.multiply, a, axis=1), X),
    "take with nan outside": (
        lambda a, i: jnp.nan_to_num(jnp.take(a, i, axis=1)),
        X,
        INDEX,
    ),
    "at add": (lambda a, i: a.at[:, i].add(2 * a[:, :5]), X, INDEX),
    "at set": (lambda a: a.at[1:3, ::2].set(7.0 * a[0, 0]), X),
    "at max": (lambda a, i: a.at[i].max(2 * a[:5]), V, INDEX),
    "at multiply": (
        lambda a, i: a.at[i].multiply(a[:5], unique_indices=True),
        *(V, np.array([0, 2, 3, 5, 1])),
    ),
    "segment_min": (
        lambda a: jax.ops.segment_min(a, jnp.array([0, 1, 1, 0, 2, 2]), 3),
        V,
    ),
    "dynamic_slice": (
        lambda a, i: 2 * lax.dynamic_slice(a, (i, 0), (2, 3)),
        X,
        np.array(1),
    ),
    "dynamic_update_slice": (
        lambda a, b: lax.dynamic_update_slice(a, b[:2, :2], (1, 2)),
        *(X, P),
    ),
    "reshape of turned axes": (jnp.column_stack, X),
    "stack": (
        lambda a, b: [2 * c for c in jnp.unstack(jnp.stack([a, b], 1), axis=0)],
        X,
        P,
    ),
    "tile": (lambda a: 2 * jnp.tile(a, (2, 1)), X),
    "pad": (lambda a: lax.pad(a, a[0, 0], [(1, 2, 1), (-1, 0, 0)]), X),
    "random numbers": (lambda a: a * jax.random.uniform(jax.random.key(0), (4, 6)), X),
    "dropout": (
        lambda a: jnp.where(jax.random.bernoulli(jax.random.key(0), 0.5, (4, 6)), a, 0),
        X,
    ),
    "powers": (lambda a: a**3 + a**-2 + a**0.5 + a**a, P),
    "argmax beside": (lambda a: (a.argmax(1), a * a), X),
    "vmap": (lambda a: jax.vmap(lambda r, i: r[i])(a, jnp.arange(4)), X),
    "norm": (lambda a: jnp.linalg.norm(a, axis=1), X),
    "interp": (lambda a: jnp.interp(a, jnp.arange(4.0), jnp.arange(4.0) ** 2), P),
    "log_sigmoid": (jax.nn.log_sigmoid, X),
    "real transforms": (
        lambda a: jnp.fft.irfft2(jnp.fft.rfft2(a) * jnp.arange(1, 5), s=(4, 6)),
        X,
    ),
    "cholesky": (jnp.linalg.cholesky, S),
    "a factor of one triangle": (lambda a: jax.scipy.linalg.cho_factor(a)[0], S),
    "a function of a matrix": (
        lambda a: (lambda w, v: (v * jnp.exp(-w)) @ v.T)(*jnp.linalg.eigh(a)),
        S,
    ),
    "svd": (
        lambda a: (lambda u, s, v: (u * jnp.log(s)) @ v)(
            *jnp.linalg.svd(a, full_matrices=False)
        ),
        X,
    ),
    "qr": (jnp.linalg.qr, X.T),
    "solve": (jnp.linalg.solve, S, X),
    "slogdet": (lambda a: jnp.linalg.slogdet(a)[1], S),
    "least squares": (lambda a, b: jnp.linalg.lstsq(a, b)[0], X.T, P.T),
    "a transposed triangle": (
        lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True, trans=1),
        *(S, X),
    ),
    "rotary in complex numbers": (
        lambda a, b: (lax.complex(a[:, ::2], a[:, 1::2]) * jnp.exp(1j * b)).real,
        *(X, P[:, :3]),
    ),
    "complex functions": (
        lambda z: jnp.sqrt(z) + jnp.log(z) * jnp.sin(z) + 1 / z + z**2.5 + z**-2,
        X + 1j * P,
    ),
    "parts and choices": (
        lambda z: jnp.where(z.real > 0, z, 1j * jnp.conj(z)) * jnp.angle(z),
        X + 1j * P,
    ),
    "complex sums": (
        lambda z: jnp.cumprod(z, 1) + jnp.cumsum(z, 0) + z.prod(0) + z.mean(),
        X + 1j * P,
    ),
    "a complex scan": (
        lambda z: lax.scan(lambda c, r: (c * r + 1, c), z[0], z),
        X + 1j * P,
    ),
    "a complex system": (
        lambda z: jnp.linalg.solve(z @ jnp.conj(z.T), z) * jnp.linalg.det(z[:, :4]),
        X + 1j * P,
    ),
    "a complex convolution": (
        lambda z: jnp.convolve(z[0], z[1, :3]),
        X + 1j * P,
    ),
}


def same(name):
    """Values and gradients of the engine's graph are JAX's own."""
    function, *given = SAME[name]
    with jax.enable_x64(True):
        arrays = [jnp.asarray(a) for a in given]
        leaves = [graph.variable(array_of(a)) for a in arrays]
        made = Traced(function, [a.dtype for a in arrays], True)(None, *leaves)
        floats = [i for i, a in enumerate(arrays) if a.dtype.kind in "fc"]

        def plain(*ws):
            pairs = dict(zip(floats, ws, strict=True))
            held = [pairs.get(i, a) for i, a in enumerate(arrays)]
            return [y for y in jax.tree.leaves(function(*held)) if y.dtype.kind in "fc"]

        nodes = [node for node in made if node.dtype.kind == "f"]
        dys = [RNG.standard_normal(node.shape) for node in nodes]

        @jax.jit  # one program in place of one for each step
        def theirs(*ws):
            ys, back = jax.vjp(plain, *ws)
            given = [jnp.conj(filled(dy, y)) for dy, y in zip(dys, ys, strict=True)]
            return ys, back(given)

        ys, dxs = theirs(*(arrays[i] for i in floats))
        for node, y in zip(nodes, ys, strict=True):
            np.testing.assert_allclose(node.value, array_of(y), rtol=1e-10, atol=1e-12)
        found = graph.gradient(nodes, dys, [leaves[i] for i in floats])
        for node, dx in zip(found, dxs, strict=True):
            expected = array_of(jnp.conj(dx))
            np.testing.assert_allclose(node.value, expected, rtol=1e-9, atol=1e-10)


def refuses(function, *words, given=X):
    """The function is refused, with its primitive and the caller's line."""
    with pytest.raises(Untraceable) as refused:
        check(function, inputs=[jnp.asarray(given, jnp.float32)])
    for word in words:
        assert word in str(refused.value), refused.value


def numbers_that_are_made_of_bits_are_refused():
    refuses(lambda a: jnp.frexp(a)[0], "makes numbers of bits")


def a_loop_that_a_float_ends_is_refused_with_its_line():
    refuses(
        lambda a: lax.while_loop(lambda c: c[0] < 3, lambda c: c + 1, a[0]),
        *("lax.while", "jax_claims.py", "lax.while_loop(", "lax.scan"),
    )


def a_loop_is_followed_whose_count_is_known():
    def powers(a, n):
        return lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * a), (0, 1.0 + 0 * a)
        )[1]

    given = [jnp.asarray(X, jnp.float32), jnp.array(3)]
    check(powers, lambda a, n: a**3, inputs=given, quick=True).assert_ok()
    assert not check(powers, lambda a, n: a**4, inputs=given, quick=True).passes


def vectors_whose_signs_show_are_refused_and_others_are_not():
    refuses(lambda a: jnp.linalg.svd(a)[0], "lax.svd", "returns vectors")
    refuses(lambda a: jnp.linalg.eigh(a @ a.T)[1], "lax.eigh", "whose signs are free")


def a_factorisation_without_a_rule_is_refused_by_name():
    refuses(lambda a: jnp.linalg.eigvals(a @ a.T).real, "lax.eig", "factorises")


def a_wrong_gradient_behind_a_factorisation_is_found():
    def loss(a):
        low = jnp.linalg.cholesky(a @ a.T + jnp.eye(4, dtype=a.dtype))
        return 2 * jnp.log(jnp.diagonal(low)).sum()

    dloss = jax.grad(loss)
    for factor, passes in ((1.0, True), (1.001, False)):
        own = with_backward(loss, lambda x, dy, by=factor: by * dy * dloss(x))
        report = check(loss, own, inputs=[jnp.asarray(X, jnp.float32)], quick=True)
        assert report.passes is passes, report


def a_callback_is_refused_with_its_line():
    shape = jax.ShapeDtypeStruct(X.shape, np.float32)
    refuses(lambda a: jax.pure_callback(np.sin, shape, a), "pure_callback(np.sin")


def complex_numbers_are_judged_on_both_sides():
    def filtered(z, w):
        return jnp.fft.ifft(jnp.fft.fft(z) * w) * jnp.conj(z)

    z, w = (jnp.asarray(a, jnp.complex64) for a in (X + 1j * P, P - 1j))
    for order in ("vjp", "jvp", "hvp"):
        check(filtered, inputs=[z, w], order=order, quick=True).assert_ok()
    check(filtered, shapes=["8:complex"] * 2, only=["large"]).assert_ok()

    def planted(change):
        own = jax.custom_vjp(filtered)
        own.defvjp(
            lambda *zw: (filtered(*zw), zw),
            lambda zw, dy: tuple(map(change, jax.vjp(filtered, *zw)[1](dy))),
        )
        return check(filtered, own, inputs=[z, w], quick=True).passes

    assert planted(lambda g: g)
    assert not planted(jnp.conj)
    assert not planted(lambda g: g.at[0, 0].multiply(1.01))


def a_kernel_of_pallas_is_followed_over_its_grid():
    def kernel(x_ref, w_ref, o_ref):
        o_ref[...] = jnp.tanh(x_ref[...]) @ w_ref[...] + pl.program_id(0)

    def rows(x, w):
        return pl.pallas_call(
            kernel,
            out_shape=jax.ShapeDtypeStruct((4, 3), x.dtype),
            grid=(2,),
            in_specs=[
                pl.BlockSpec((2, 6), lambda i: (i, 0)),
                pl.BlockSpec((6, 3), lambda i: (0, 0)),
            ],
            out_specs=pl.BlockSpec((2, 3), lambda i: (i, 0)),
            interpret=True,
        )(x, w)

    def plain(x, w):
        return jnp.tanh(x) @ w + jnp.array([[0.0], [0], [1], [1]], x.dtype)

    given = [jnp.asarray(X, jnp.float32), jnp.asarray(P.T[:, :3], jnp.float32)]
    check(rows, plain, inputs=given, quick=True).assert_ok()
    wrong = check(rows, lambda x, w: plain(x, 1.01 * w), inputs=given)
    assert not wrong.passes


def a_loop_without_end_is_bounded():
    refuses(lambda a: lax.fori_loop(0, 10**6, lambda i, c: c * a, a), "equations")


def a_right_function_passes_in_every_precision():
    def norm(x, w):
        held = x.astype(jnp.float32)
        scale = lax.rsqrt(jnp.mean(held * held, -1, keepdims=True) + 1e-5)
        return (held * scale).astype(x.dtype) * w

    for dtype in ("float64", "bfloat16"):
        check(norm, shapes=[(4, 8), (8,)], dtypes=[dtype], quick=True).assert_ok()


def a_cast_inside_counts_as_a_rounding():
    def rounded(x):
        return jnp.sin(x.astype(jnp.bfloat16).astype(jnp.float32))

    check(rounded, shapes=[(4, 8)], quick=True).assert_ok()
    wrong = check(lambda x: jnp.sin(x), rounded, shapes=[(4, 8)], quick=True)
    assert not wrong.passes, wrong


def a_cast_to_float8_is_nan_beyond_the_range_as_jax_makes_it():
    def cast(x):
        return x.astype(jnp.float8_e4m3fn).astype(jnp.float32)

    given = jnp.asarray([3.0, 440.0, 500.0, 1e6, 0.6, 0.1], jnp.float32)
    assert {j.verdict for j in check(cast, None, (given,))} <= {"agree", "vacuous"}
    saturated = check(cast, lambda x: cast(jnp.clip(-x, -448, 448)), (given,))
    assert not saturated.passes


def the_slope_of_x_log_y_by_x_is_log_y_at_zero_too():
    p, q = jnp.asarray([0.0, 1.5, 0.2]), jnp.asarray([2.0, 3.0, 0.5])
    for f, log in ((special.xlogy, jnp.log), (special.xlog1py, jnp.log1p)):
        check(jax.jit(f), None, (p, q)).assert_ok()
        wrong = check(f, lambda x, y, g=log: jnp.where(x == 0, 0.0, x * g(y)), (p, q))
        assert {r.judgement.tensor for r in wrong.failures} == {"dx"}, wrong
    check(special.entr, None, (p,)).assert_ok()


def at_zero_log_zero_the_slope_by_x_is_undefined_and_nowhere_else():
    p = jnp.asarray([0.0, 0.0, 1.5])
    for f, log, least in (
        (special.xlogy, jnp.log, 0),
        (special.xlog1py, jnp.log1p, -1),
    ):
        q = jnp.asarray([least, least + 2.0, 3.0])
        check(f, None, (p, q), quick=True).assert_ok()

        def branch(x, q=q, log=log, least=least):
            return jnp.where(q == least, 0.0, x * log(jnp.where(q == least, 1.0, q)))

        def right(x, q=q, f=f):
            return f(x, q)

        check(right, branch, (p,), quick=True).assert_ok()
        for factor in (0.0, -1.0, 1.01):

            def backward(x, dy, factor=factor, branch=branch):
                return factor * jax.vjp(branch, x)[1](dy)[0]

            wrong = with_backward(branch, backward)
            assert check(right, wrong, (p,), quick=True).failures, factor


def an_index_that_rounding_decides_is_uncertain_where_it_is_moved():
    """A choice by Gumbel noise, with the gradient of a softmax (straight through)."""

    def chosen(x, u, soft=jax.nn.softmax, factor=1.0):
        y = soft((x - jnp.log(-jnp.log(u))) / 0.7)
        h = jax.nn.one_hot(jnp.argmax(y, -1), 7, dtype=y.dtype)
        y = factor * y
        return y + jax.lax.stop_gradient(h - y)

    def rewritten(x, u):
        return chosen(x, u, lambda s: jnp.exp(jax.nn.log_softmax(s, -1)))

    rng = np.random.default_rng(1)
    numbers = rng.standard_normal((5, 7)), 0.9 * rng.random((5, 7)) + 0.05
    given = tuple(jnp.asarray(a, jnp.bfloat16) for a in numbers)
    for candidate in (None, rewritten):
        check(chosen, candidate, given, only="tiny", seed=1).assert_ok()
    for factor in (0.0, -1.0, 1.35):
        wrong = functools.partial(chosen, factor=factor)
        bad = check(chosen, wrong, given, only="tiny", seed=1).failures
        assert {(r.trial, r.judgement.tensor) for r in bad} >= {
            (trial, name) for trial in ("given", "given, tiny") for name in ("dx", "du")
        }, factor
    other = check(chosen, lambda x, u: -chosen(x, u), given, quick=True)
    assert "y" in {r.judgement.tensor for r in other.failures}


def a_cast_to_float16_inside_float64_is_a_rounding_and_hides_no_factor():
    def rounded(x):
        return jnp.tanh(x.astype(jnp.float16)).astype(x.dtype)

    def wrong(factor):
        def backward(x, dy):
            return factor * jax.vjp(jnp.tanh, x)[1](dy)[0]

        return with_backward(rounded, backward)

    found = check(rounded, shapes=[(4, 6)], dtypes="float64", quick=True)
    assert {j.verdict for j in found} == {"agree"}, str(found)
    for factor in (0.0, -1.0, 1.35):
        trial = {"shapes": [(4, 6)], "dtypes": "float64", "quick": True}
        assert check(rounded, wrong(factor), **trial).failures, factor


def a_maximum_by_sorting_is_a_maximum_at_ties_too():
    x = jnp.asarray([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]])

    def ends(x):
        return jnp.sort(x, -1)[..., -1]

    check(ends, lambda x: x.max(-1), [x], quick=True).assert_ok()
    top = check(lambda x: lax.top_k(x, 1)[0][:, 0], lambda x: x.max(-1), [x])
    top.assert_ok()
    wrong = with_backward(ends, lambda x, dy: (x == 3) * dy[:, None])
    assert check(ends, wrong, [x], quick=True).failures


def a_gradient_of_zeros_fails():
    zero = with_backward(lambda x: x * x, lambda x, dy: jnp.zeros_like(x))
    report = check(lambda x: x * x, zero, shapes=[(4, 8)], quick=True)
    assert {r.judgement.tensor for r in report.failures} == {"dx"}, report


def a_planted_factor_fails_and_is_named():
    double = with_backward(jnp.tanh, lambda x, dy: 2 * dy / jnp.cosh(x) ** 2)
    report = check(jnp.tanh, double, shapes=[(4, 8)], quick=True)
    assert not report.passes, report
    assert "2" in report.failures[0].judgement.diagnosis, report


def a_wrong_gradient_is_found_without_a_candidate():
    wrong = with_backward(jnp.sin, lambda x, dy: -dy * jnp.cos(x))
    assert not check(wrong, shapes=[(4, 8)], quick=True).passes


def a_right_kernel_of_pallas_passes_and_a_wrong_one_fails():
    def kernel(x_ref, o_ref):
        o_ref[...] = x_ref[...] * jax.nn.sigmoid(x_ref[...])

    def silu(x):
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(kernel, out_shape=out, interpret=True)(x)

    def backward(x, dy, one=1.0):
        s = jax.nn.sigmoid(x)
        return dy * s * (one + x * (1 - s))

    right = with_backward(silu, backward)
    check(jax.nn.silu, right, shapes=[(8, 16)], quick=True).assert_ok()
    wrong = with_backward(silu, lambda x, dy: backward(x, dy, 0.999))
    assert not check(jax.nn.silu, wrong, shapes=[(8, 16)], quick=True).passes


def what_is_wrong_under_jit_alone_is_found():
    def sin(x):
        traced = isinstance(x, jax.core.Tracer) and "Dynamic" in type(x).__name__
        return jnp.sin(x) * (1.01 if traced else 1.0)

    report = check(jnp.sin, sin, shapes=[(4, 8)], quick=True)
    assert {r.how for r in report.failures} == {"under jit"}, report


def forward_mode_and_the_double_backward_are_judged():
    def product(x, y):
        return jnp.sin(x) * y

    for order in ("jvp", "hvp"):
        check(product, shapes=[(3, 4)] * 2, order=order, quick=True).assert_ok()
    detached = with_backward(
        lambda x: x**3, lambda x, dy: 3 * lax.stop_gradient(x) ** 2 * dy
    )
    wrong = check(lambda x: x**3, detached, shapes=[(3, 4)], order="hvp", quick=True)
    assert not wrong.passes


def what_jax_refuses_does_not_pass():
    own = with_backward(jnp.sin, lambda x, dy: dy * jnp.cos(x))
    report = check(jnp.sin, own, shapes=[(3, 4)], order="jvp", quick=True)
    assert not report.passes
    assert {j.verdict for j in report} == {"unsupported"}


def trees_are_inputs():
    held = {"w": jnp.asarray(X, jnp.float32), "b": jnp.zeros(6)}
    given = [held, jnp.ones((2, 4))]
    report = check(lambda p, x: jnp.tanh(x @ p["w"] + p["b"]), inputs=given, quick=True)
    report.assert_ok()
    assert {"dp['w']", "dp['b']", "dx"} <= {j.tensor for j in report}


def cases_are_sets_of_shapes_and_without_any_it_is_said_what_to_give():
    case = gradwatch.Case("rows", x=(3, 4))
    check(jax.nn.silu, cases=[case], quick=True).assert_ok()
    axes = {"rows": -1, "columns": 0}
    both = [gradwatch.Case(name, x=(3, 8), axis=axis) for name, axis in axes.items()]
    check(lambda x, axis: jnp.cumsum(x * x, axis), cases=both, quick=True).assert_ok()
    with pytest.raises(ValueError, match="give inputs, shapes or cases"):
        check(jax.nn.silu)


def an_op_page_judges_a_function_of_jax():
    wrong = with_backward(lambda x: jax.nn.softmax(x), lambda x, dy: dy)
    for candidate, passes in (
        (jax.nn.softmax, True),
        (lambda x, axis: wrong(x), False),
    ):
        given = {"shapes": [(3, 4)], "kwargs": {"axis": -1}, "quick": True}
        assert check("softmax", candidate, **given).passes is passes


def check_grads_takes_what_jax_takes():
    gradwatch.jax.check_grads(jnp.tanh, (jnp.ones(3),), 2, ("fwd", "rev"), 1e-2, 1e-2)
    wrong = with_backward(jnp.sin, lambda x, dy: dy)
    with pytest.raises(AssertionError, match="the tolerance is derived"):
        gradwatch.jax.check_grads(wrong, (jnp.ones(3),), modes=["rev"], atol=1.0)


def a_reference_that_raises_is_a_mistake_of_the_call():
    with pytest.raises(ValueError, match="the reference raises"):
        check(lambda x: x @ x, shapes=[(3, 4)])


def both_a_reference_of_pytorch_judges_a_function_of_jax():
    import torch

    silu = torch.nn.functional.silu
    check(
        silu, jax.nn.silu, shapes=[(4, 8)], dtypes=["float32", "bfloat16"]
    ).assert_ok()
    wrong = with_backward(jax.nn.silu, lambda x, dy: dy * jax.nn.sigmoid(x))
    assert not check(silu, wrong, shapes=[(4, 8)], quick=True).passes


def both_a_reference_of_jax_judges_a_function_of_pytorch():
    import torch

    check(jax.nn.silu, torch.nn.functional.silu, shapes=[(4, 8)]).assert_ok()
    report = check(jax.nn.silu, torch.nn.functional.gelu, shapes=[(4, 8)], quick=True)
    assert not report.passes


def both_a_name_on_the_command_line_may_be_a_function_of_jax():
    asked = {"reference": "jax.nn.silu", "shapes": ["4x8"], "kwargs": {}, "dtypes": []}
    asked |= {"kernelbench": [], "repro": False, "choice": {"quick": True}}
    assert answered({**asked, "candidate": "jax.nn.swish"})["passes"]
    assert not answered({**asked, "candidate": "jax.nn.gelu"})["passes"]


@jax.custom_vjp
def wrong_silu(x):
    """A function whose gradient is a hundredth too large."""
    return jax.nn.silu(x)


wrong_silu.defvjp(
    lambda x: (jax.nn.silu(x), x),
    lambda x, dy: (1.01 * dy * jax.grad(lambda x: jax.nn.silu(x).sum())(x),),
)


def ran(text):
    """The exit code of a script."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])  # the script has folders of its own
        path = pathlib.Path(folder, "repro.py")
        path.write_text(text)
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(path))
        return ended.value.code


def a_failure_is_a_script_that_needs_jax_alone():
    text = check(jax.nn.silu, wrong_silu, shapes=[(4, 6)], quick=True).repro()
    assert ran(text) == 1
    assert "torch" not in text
    assert ran(text.replace("candidate = wrong_silu", "candidate = jax.nn.silu")) == 0


def a_complex_gradient_that_is_no_conjugate_is_a_script():
    wrong = check(jnp.square, wrong_square, shapes=["3:complex"], quick=True)
    assert ran(wrong.repro()) == 1


@jax.custom_vjp
def wrong_square(z):
    """A function whose gradient is that of JAX's convention."""
    return z * z


wrong_square.defvjp(lambda z: (z * z, z), lambda z, dy: (dy * 2 * jnp.conj(z),))


def a_function_whose_backward_has_no_name_is_asked_for():
    wrong = with_backward(jnp.tanh, lambda x, dy: dy)
    assert ran(check(jnp.tanh, wrong, shapes=[(3,)], quick=True).repro()) == 2


def both_a_failure_of_jax_beside_pytorch_is_a_script_of_jax():
    import torch

    silu = torch.nn.functional.silu
    text = check(silu, wrong_silu, shapes=[(4, 6)], quick=True).repro()
    assert ran(text) == 1
    assert "torch" not in text


def published(name):
    """A published function passes, and one of the mistakes in it fails.

    Each of them is made in every sixth function, in a gradient that it changes there.
    """
    reference, candidate, arrays = FUNCTIONS[name]
    check(reference, candidate, inputs=arrays, quick=True).assert_ok()
    floats = [i for i, array in enumerate(arrays) if array.dtype.kind == "f"]
    number = list(FUNCTIONS).index(name)
    place = floats[number // len(MISTAKES) % len(floats)]
    mistake = list(MISTAKES.values())[number % len(MISTAKES)]
    wrong = planted(candidate or reference, arrays, place, mistake)
    report = check(reference, wrong, inputs=arrays, quick=True)
    assert not report.passes, place


def _of_table(name):
    return lambda: (published if name in FUNCTIONS else same)(name)


def main():
    """Print a document: what each named claim raised, "" where it holds."""
    told = {}
    for name in sys.argv[1:]:
        claim = globals().get(name) or _of_table(name)
        try:
            claim()
            told[name] = ""
        except Exception:  # noqa: BLE001  # the outcome of the test
            told[name] = traceback.format_exc()
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
