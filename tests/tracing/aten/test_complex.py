"""Complex numbers as pairs: against autograd, real arithmetic, and the DFT's matrix."""

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import fft  # noqa: E402  # after importorskip

from gradwatch.harness.judging.precisions import arithmetics  # noqa: E402  # likewise
from gradwatch.harness.judging.rounding.analysis import running_errors  # noqa: E402  # likewise
from gradwatch.harness.judging.rounding.thresholds import ALWAYS  # noqa: E402  # likewise
from gradwatch.harness.tracing import Untraceable  # noqa: E402  # likewise
from gradwatch.harness.tracing.aten.complex import ON_COMPLEX, PARTWISE  # noqa: E402  # likewise
from gradwatch.harness.tracing.rules.complex import transform  # noqa: E402  # likewise
from gradwatch.harness.tracing.traced import trace  # noqa: E402  # likewise
from gradwatch.impls import graph  # noqa: E402  # likewise
from tests.tracing.slopes import gradients  # noqa: E402  # likewise

C, R = torch.complex128, torch.float64
J = {"dtype": C}


def drawn(kind, *shape, seed=0):
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=kind, generator=draw)


def numbers(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).numpy()


def difference(function, inputs):
    """Of values and gradients from those of autograd, over their size."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    y = function(*leaves)
    dy = drawn(y.dtype, *y.shape, seed=9)
    made = trace(function, leaves).graph(np.longdouble)
    found = gradients(made, {"y": numbers(dy).astype(np.longdouble)})
    wanted = torch.autograd.grad(y, leaves, dy)
    pairs = [(made.outputs["y"].value, numbers(y))]
    pairs += [
        (0 * numbers(x) if node is None else node.value, numbers(dx))
        for node, x, dx in zip(found.values(), leaves, wanted, strict=True)
    ]
    return max(np.abs(a - b).max() / (np.abs(b).max() or 1) for a, b in pairs)


UNARY = """
    abs acos acosh angle asin asinh atan atanh conj_physical cos cosh exp exp2 expm1
    imag log log10 log1p log2 mean neg
    prod real reciprocal rsqrt sgn sigmoid sin sinh sqrt square sum tan tanh
    view_as_real
"""
RULES = {name: (getattr(torch, name), [(C, 3, 4)]) for name in UNARY.split()}
RULES |= {
    "add": (lambda a, b: torch.add(a, b, alpha=2 - 1j), [(C, 3), (C, 3)]),
    "sub": (lambda a, x: torch.sub(x, a, alpha=2), [(C, 3), (R, 3)]),
    "rsub": (lambda a: 1j - a, [(R, 3)]),
    "mul by a real": (torch.mul, [(C, 3, 4), (R, 4)]),
    "div": (torch.div, [(C, 3, 4), (C, 4)]),
    "polar": (lambda x, f: torch.polar(x.exp(), f), [(R, 3), (R, 3)]),
    "complex": (torch.complex, [(R, 3), (R, 2, 1)]),
    "view_as_complex": (torch.view_as_complex, [(R, 3, 2)]),
    "mm": (lambda a, b: a.mH @ b, [(C, 3, 2), (C, 3, 4)]),
    "einsum": (
        lambda a, b: torch.einsum("bij,bjk->ik", a, b.conj()),
        [(C, 2, 3, 3), (C, 2, 3, 4)],
    ),
    "vdot": (torch.vdot, [(C, 4), (C, 4)]),
    "addmm": (
        lambda c, a, b: torch.addmm(c, a, b, beta=2, alpha=1j),
        [(C, 2, 4), (C, 2, 3), (C, 3, 4)],
    ),
    "addmv": (torch.addmv, [(C, 3), (C, 3, 4), (C, 4)]),
    "scatter_add": (lambda a, b: a.scatter_add(0, ROWS % 3, b), [(C, 3), (C, 3)]),
    "index_put": (
        lambda a, b: a.index_put((ROWS % 3,), b, accumulate=True),
        [(C, 3), (C, 3)],
    ),
    "put": (lambda a, b: a.put(ROWS, b), [(C, 5), (C, 3)]),
    "cumsum": (lambda a: a.cumsum(0), [(C, 3)]),
    "ne": (lambda a, b: torch.where(a != b, 2 * a, b), [(C, 3), (C, 3)]),
    "conv": (torch.nn.functional.conv1d, [(C, 1, 2, 8), (C, 3, 2, 3)]),
    "pow": (lambda a, b: (a * a + 2) ** b, [(C, 3), (C, 3)]),
    "pow of numbers": (lambda a: a**3 + a**-2 + a**0.5 + a**2.5, [(C, 3)]),
    "prefixes": (lambda a: a.cumprod(1), [(C, 3, 5)]),
    "inv": (torch.linalg.inv, [(C, 2, 3, 3)]),
    "solve": (torch.linalg.solve, [(C, 2, 3, 3), (C, 2, 3, 2)]),
    "solve a vector": (torch.linalg.solve, [(C, 3, 3), (C, 3)]),
    "solve from the right": (
        lambda a, b: torch.linalg.solve(a, b, left=False),
        [(C, 3, 3), (C, 2, 3)],
    ),
    "solve_triangular": (
        lambda a, b: torch.linalg.solve_triangular(a, b, upper=False),
        [(C, 3, 3), (C, 3, 2)],
    ),
    "unit triangle": (
        lambda a, b: torch.linalg.solve_triangular(
            a, b, upper=True, unitriangular=True
        ),
        [(C, 3, 3), (C, 3, 2)],
    ),
    "det": (torch.linalg.det, [(C, 2, 4, 4)]),
    "slogdet": (lambda a: sum(torch.linalg.slogdet(a)), [(C, 2, 3, 3)]),
    "prod of rows": (lambda a: a.prod(1, keepdim=True), [(C, 3, 4)]),
    "norm, var": (lambda a: a.norm(dim=1) + a.var(), [(C, 3, 4)]),
    "where, eq": (lambda a, b: torch.where(a == b, 2 * a, b), [(C, 3), (C, 3)]),
    "where": (lambda a, b: torch.where(a.real > 0, a, b), [(C, 9), (C, 9)]),
    "masked_fill": (lambda a: a.masked_fill(a.real > 0, 1j), [(C, 9)]),
    "moves": (
        lambda a, b: torch.cat([a, b.T.conj()], 1)[:, [0, 0, 3]].roll(1).flip(0),
        [(C, 3, 3), (C, 3, 3)],
    ),
    "in place": (lambda a: a.clone().mul_(2j).add_(1), [(C, 4)]),
    "a buffer": (lambda a: torch.zeros(8, **J).index_copy(0, ROWS, a), [(C, 3)]),
    "abs at 0": (lambda a: (a * 0).abs() + a.sgn().imag + (0 * a).angle(), [(C, 4)]),
    "a cast": (lambda x: x.to(C) * 1j, [(R, 3)]),
    "factories": (lambda a: a + torch.full_like(a, 1 + 2j), [(C, 3)]),
    "detach": (lambda a: a.conj().detach() * a + a.conj(), [(C, 3)]),
    "detach of a copy": (lambda a: a.conj().clone().detach_() * a, [(C, 3)]),
    "imag of conj": (lambda a: a.conj().imag * 2, [(C, 3)]),
    "|z|^2": (lambda a: (a * a.conj()).real.sum(), [(C, 5)]),
    "rotary": (
        lambda x, f: torch.view_as_real(
            torch.view_as_complex(x.reshape(2, 3, 4, 2)) * torch.polar(f * 0 + 1, f)
        ).flatten(2),
        [(R, 2, 3, 8), (R, 3, 4)],
    ),
    "stft": (
        lambda x: torch.stft(
            x, 8, 4, window=torch.hann_window(8, dtype=R), return_complex=True
        ).abs(),
        [(R, 32)],
    ),
}
ROWS = torch.tensor([1, 4, 2])
SHAPES = {"2": {"s": (6, 3)}, "n": {"dim": (0, 2), "s": (3, 7)}}
for name in ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"):
    kind = R if name in ("rfft", "ihfft") else C
    for n in (1, 2, 7, 12):
        for norm in ("backward", "ortho", "forward"):
            RULES[f"{name} {n} {norm}"] = (
                functools.partial(getattr(fft, name), n=n, norm=norm),
                [(kind, 2, 8)],
            )
    for more, how in SHAPES.items():
        RULES[name + more] = (
            functools.partial(getattr(fft, name + more), **how),
            [(kind, 2, 5, 4)],
        )


@pytest.mark.parametrize("rule", RULES)
def test_values_and_gradients_are_those_of_autograd(rule):
    function, shapes = RULES[rule]
    inputs = [drawn(*shape, seed=i) for i, shape in enumerate(shapes)]
    assert difference(function, inputs) < 1e-13


def test_the_operators_of_the_table_are_tried():
    tried = set().union(*(ops_of(*RULES[rule]) for rule in RULES))
    assert not {*ON_COMPLEX, *PARTWISE} - tried


def ops_of(function, shapes):
    return set(trace(function, [drawn(*shape) for shape in shapes]).ops)


BY_HAND = {
    "product": (
        lambda z, w: (z * w).real.sum(),
        lambda x, y, u, v: (x * u - y * v).sum(),
    ),
    "modulus": (
        lambda z, w: ((z.abs() ** 2) * w.abs()).sum(),
        lambda x, y, u, v: ((x * x + y * y) * (u * u + v * v).sqrt()).sum(),
    ),
    "angle of a quotient": (
        lambda z, w: (z / w).angle().sum(),
        lambda x, y, u, v: (torch.atan2(y, x) - torch.atan2(v, u)).sum(),
    ),
    "logarithm": (
        lambda z, w: (z.log() * w).imag.sum(),
        lambda x, y, u, v: (
            torch.atan2(y, x) * u + (x * x + y * y).log() / 2 * v
        ).sum(),
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_a_gradient_is_that_by_the_real_part_plus_i_times_that_by_the_imaginary(name):
    ours, real = BY_HAND[name]
    pair = [drawn(C, 6, seed=i) for i in range(2)]
    parts = [t.clone().requires_grad_() for z in pair for t in (z.real, z.imag)]
    expected = [dx.numpy() for dx in torch.autograd.grad(real(*parts), parts)]
    found = gradients(trace(ours, pair).graph(np.longdouble), {"y": np.ones(())})
    for i, node in enumerate(found.values()):
        wanted = np.stack(expected[2 * i : 2 * i + 2], -1)
        np.testing.assert_allclose(node.value.astype(float), wanted, rtol=1e-13)


# The transform ------------------------------------------------------------------------


def by_the_matrix(x, sign, scale):
    """The definition, in the type of x; its angles are reduced in whole numbers."""
    n = x.shape[-1]
    turns = (np.outer(np.arange(n), np.arange(n)) % n).astype(x.real.dtype) / n
    angle = sign * 2 * turns * np.longdouble("3.14159265358979323846264338327950288")
    return x @ (np.cos(angle) + 1j * np.sin(angle)) * scale


@pytest.mark.parametrize("n", [1, 2, 5, 16, 97])
@pytest.mark.parametrize("sign", [-1, 1])
def test_the_transform_is_that_of_its_definition_in_extended_precision(n, sign):
    x = np.random.default_rng(n).standard_normal((3, n, 2)).astype(np.longdouble)
    y = transform(graph.variable(x), axes=(1,), sign=sign, scale=0.25).value
    wanted = by_the_matrix(x[..., 0] + 1j * x[..., 1], sign, 0.25)
    assert y.dtype == np.longdouble
    assert np.abs(y[..., 0] + 1j * y[..., 1] - wanted).max() < 1e-18 * n


SIGNALS = {
    "noise": lambda rng, n: rng.standard_normal((n, 2)),
    "constant": lambda rng, n: np.ones((n, 2)),
    "a wave": lambda rng, n: np.stack([np.cos(np.arange(n)), np.zeros(n)], -1),
    "decades": lambda rng, n: 10.0 ** rng.uniform(-6, 6, (n, 2)),
    "a pulse": lambda rng, n: np.eye(n, 2, 1) + 1e-4,
}


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize("n", [3, 64, 97, 1000])
def test_pytorch_s_float32_stays_within_the_bound_and_a_lost_bin_does_not(signal, n):
    """97 is a prime, which takes three transforms of other lengths."""
    x = SIGNALS[signal](np.random.default_rng(n), n).astype(np.float32)
    leaf = graph.variable(x.astype(np.float64))
    y = transform(leaf, axes=(0,), sign=-1, scale=1.0)
    order = graph.topological_order([y])
    arithmetic = arithmetics("float32")[0]
    errors = running_errors(order, arithmetic, ALWAYS).errors
    allowed = ALWAYS * arithmetic.step.roundoff * errors[y]
    got = numbers(torch.fft.fft(torch.view_as_complex(torch.from_numpy(x))))
    assert (np.abs(got - y.value) <= allowed).all()
    lost = got - got[np.abs(got).max(-1).argmax()]
    assert (np.abs(lost - y.value) > allowed).any()


@pytest.mark.parametrize("n", [8, 1021, 4096])
def test_an_element_of_a_long_transform_may_be_off_by_the_norm_s_share(n):
    """Of the sum of all magnitudes in place of the norm it would be the root of n."""
    x = SIGNALS["noise"](np.random.default_rng(n), n)
    y = transform(graph.variable(x), axes=(0,), sign=-1, scale=1.0)
    arithmetic = arithmetics("float32")[0]
    errors = running_errors(graph.topological_order([y]), arithmetic, ALWAYS).errors
    share = ALWAYS * arithmetic.step.roundoff * errors[y] / np.abs(y.value).max()
    assert share.max() < ALWAYS * arithmetic.step.roundoff * 4 * (np.log2(n) + 1)


def test_an_input_s_error_reaches_all_results():
    x = np.random.default_rng(0).standard_normal((8, 2))
    y = transform(graph.exp(graph.variable(x)), axes=(0,), sign=1, scale=1.0)
    order = graph.topological_order([y])
    errors = running_errors(order, arithmetics("float32")[0], 1.0).errors
    assert (errors[y] >= np.exp(x).sum() * (1 - 1e-6)).all()


# Refusals -----------------------------------------------------------------------------


def written_to_the_real_part(z):
    w = z.clone()
    w.real.mul_(2)
    return w


REFUSED = {
    "aten.logcumsumexp": lambda z: z.logcumsumexp(0),
    "aten.linalg_cholesky_ex": lambda z: torch.linalg.cholesky(z[:1, None].abs() + 0j),
    "aten.view": written_to_the_real_part,
}


@pytest.mark.parametrize("op", REFUSED)
def test_what_has_no_rule_for_complex_numbers_is_refused_with_its_line(op):
    with pytest.raises(Untraceable, match="real and imaginary parts") as raised:
        trace(REFUSED[op], [drawn(C, 3)])
    assert (raised.value.op, raised.value.kind) == (op, "complex")
    assert "test_complex.py" in raised.value.line
