"""Complex numbers: a tensor of them is a pair of real nodes, and all rules are real.

The gradient of a real loss L by z = x + iy is dL/dx + i dL/dy, as PyTorch defines it
(the conjugate Wirtinger derivative, times 2): so it is the pair of real gradients, and
follows from the engine's rules. Moves, sums and stops work on each part separately.

A Fourier transform is one real primitive; the transform with the other sign is its
transpose. A fast algorithm has log2 n levels, each of which may lose a rounding of all
elements' norm (Gentleman and Sande, Fast Fourier transforms: for fun and profit, 1966;
Higham, Accuracy and Stability, 2nd ed., theorem 24.2, whose 6.7 for a level lies below
the judge's least limit). An element has its share of that, the norm of the inputs, but
for waves and constants: where equal terms are added up, their roundings are equal, too,
of which an element has its own, and all have some of the largest one's.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.tracing.aten.windows import prefixes
from gradwatch.harness.tracing.rules.matrices import odd, perturbed, pivoted
from gradwatch.harness.tracing.values import Complex, both, constant, ruled
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Array = NDArray[Any]
Rule = Callable[..., Any]
of = Complex.of

# Functions ----------------------------------------------------------------------------


def nowhere(z: Complex) -> Node:
    """A mask of elements that are 0."""
    return graph.logical_and(graph.equal(z.re, 0.0), graph.equal(z.im, 0.0))


def size(z: Complex) -> Node:
    """|z|; its gradient at 0 is the cotangent times 0, as in PyTorch."""
    nothing = nowhere(z)
    right = graph.hypot(graph.where(nothing, 1.0, z.re), z.im)
    return graph.where(nothing, 0.0 * z.re + 0.0 * z.im, right)


def angle(z: Complex) -> Node:
    """The angle; at 0 the zeros' signs decide it, with gradient 0, as in PyTorch."""
    nothing = nowhere(z)
    at_zero = graph.stop_gradient(graph.atan2(z.im, z.re))
    right = graph.atan2(z.im, graph.where(nothing, 1.0, z.re))
    return graph.where(nothing, at_zero, right)


def power(base: Complex, exponent: Any) -> Complex:
    """A power, by products where the exponent is small and whole."""
    if isinstance(exponent, (int, float)) and exponent == 0.5:
        return _root(base)
    if isinstance(exponent, (int, float)) and exponent in (-2, -1, 1, 2, 3):
        product = functools.reduce(operator.mul, [base] * abs(int(exponent)))
        return product if exponent > 0 else of(1) / product
    return _exp(_log(base) * of(exponent))


def product(z: Complex, dim: Any = None, keepdim: bool = False, **_: Any) -> Complex:
    """The product along an axis."""
    if dim is None:
        z, dim = both(lambda part: graph.reshape(part, (part.size,)), z), 0
    last = (slice(None),) * (dim % z.ndim)
    y: Complex = prefixes(operator.mul, z, dim)
    return y[(*last, slice(-1, None) if keepdim else -1)]


#: A matrix with a gradient rounded by its norm: computed cofactors are not exactly 0.
_normwise = ruled(
    *("complex.normwise", np.copy, lambda dy, y, a: (perturbed(dy),)),
    lambda at: at.e[0],
)


def lu(z: Complex) -> tuple[Array, Array, Complex]:
    """The order of rows, the row of each step, and L and U in one matrix."""
    order, pivots, _ = pivoted(z.re.value + 1j * z.im.value)
    z = both(lambda p: graph.take_along_axis(p, order[..., None], axis=-2), z)
    first, rest, steps = slice(1), slice(1, None), []
    while z.shape[-1] > 1:
        above, below = z[..., first, :], z[..., rest, first] / z[..., first, first]
        steps.append((above, below))
        z = z[..., rest, rest] - below * above[..., rest]
    for above, below in reversed(steps):
        z = both(lambda *parts: graph.concat(parts, axis=-1), below, z)
        z = both(lambda *parts: graph.concat(parts, axis=-2), above, z)
    return order, pivots, z


def determinant(z: Complex) -> Complex:
    """The product of the pivots of an elimination."""
    _, pivots, packed = lu(both(_normwise, z))
    y = product(both(graph.diagonal, packed), -1)
    return y * of(np.where(odd(pivots), -1.0, 1.0))


def differ(a: Complex, b: Complex) -> Node:
    """A mask of elements that are not equal."""
    return graph.logical_or(graph.not_equal(a.re, b.re), graph.not_equal(a.im, b.im))


# Holomorphic functions ----------------------------------------------------------------


def _ln(base: float) -> Complex:
    return of(graph.log(constant(base)))


def _sigmoid(z: Array) -> Array:
    """The sigmoid, by the exponential that does not overflow."""
    e = np.exp(np.where(z.real < 0, z, -z))
    return np.asarray(np.where(z.real < 0, e, 1) / (1 + e))


#: By name the function, and its gradient as frameworks compute it, from dy, y and z.
HOLOMORPHIC: dict[str, tuple[Rule, Rule]] = {
    "exp": (np.exp, lambda dy, y, z: dy * y.conj()),
    "expm1": (np.expm1, lambda dy, y, z: dy * (y + of(1)).conj()),
    "log": (np.log, lambda dy, y, z: dy / z.conj()),
    "log2": (np.log2, lambda dy, y, z: dy / (z * _ln(2)).conj()),
    "log10": (np.log10, lambda dy, y, z: dy / (z * _ln(10)).conj()),
    "log1p": (np.log1p, lambda dy, y, z: dy / (z + of(1)).conj()),
    "sqrt": (np.sqrt, lambda dy, y, z: dy / (y + y).conj()),
    "sin": (np.sin, lambda dy, y, z: dy * _function("cos")(z).conj()),
    "cos": (np.cos, lambda dy, y, z: -dy * _function("sin")(z).conj()),
    "tan": (np.tan, lambda dy, y, z: dy * (of(1) + y * y).conj()),
    "sinh": (np.sinh, lambda dy, y, z: dy * _function("cosh")(z).conj()),
    "cosh": (np.cosh, lambda dy, y, z: dy * _function("sinh")(z).conj()),
    "tanh": (np.tanh, lambda dy, y, z: dy * (of(1) - y * y).conj()),
    "asin": (np.arcsin, lambda dy, y, z: dy / _root(of(1) - z * z).conj()),
    "acos": (np.arccos, lambda dy, y, z: -dy / _root(of(1) - z * z).conj()),
    "atan": (np.arctan, lambda dy, y, z: dy / (z * z + of(1)).conj()),
    "asinh": (np.arcsinh, lambda dy, y, z: dy / _root(z * z + of(1)).conj()),
    "acosh": (
        np.arccosh,
        lambda dy, y, z: dy / (_root(z - of(1)) * _root(z + of(1))).conj(),
    ),
    "atanh": (np.arctanh, lambda dy, y, z: dy / (of(1) - z * z).conj()),
    "sigmoid": (_sigmoid, lambda dy, y, z: dy * ((of(1) - y) * y).conj()),
}


def _paired(pairs: Array) -> Array:
    """Complex numbers from real ones, whose last axis has the two parts."""
    held = np.ascontiguousarray(pairs)
    return np.asarray(held.view(np.result_type(held, 1j))[..., 0])


def _parts(z: Array, dtype: Any) -> Array:
    return np.stack((z.real, z.imag), -1).astype(dtype, copy=False)


def _function_error(at: Any) -> Array:
    """E of a function: the effect of z's error in four directions, and |y|."""
    function, (source,) = HOLOMORPHIC[at.node.attributes["name"]][0], at.node.inputs
    z, y = _paired(source.value), _paired(at.node.value)
    shift = at.u * np.hypot(at.e[0][..., 0], at.e[0][..., 1])
    moved = [np.abs(function(z + shift * way) - y) for way in (1, -1, 1j, -1j)]
    error = np.max(moved, axis=0) / at.u + np.abs(y) + at.tiny
    if at.node.attributes["name"].startswith("log"):  # of |z|, which is rounded before
        error = error + 1
    error = np.where(np.isnan(error), np.inf, error).astype(np.float64)
    return np.repeat(error[..., None], 2, -1)


function = ruled(
    "complex.function",
    lambda pairs, name: _parts(HOLOMORPHIC[name][0](_paired(pairs)), pairs.dtype),
    lambda dy, y, pairs, name: (
        HOLOMORPHIC[name][1](*map(Complex.split, (dy, y, pairs))).joined(),
    ),
    _function_error,
    stores=True,
)


def _function(name: str) -> Rule:
    return lambda z: Complex.split(function(z.joined(), name=name))


_exp: Rule = _function("exp")
_log: Rule = _function("log")
_root: Rule = _function("sqrt")
_NUMBERS: dict[str, Rule] = {
    **{name: _function(name) for name in HOLOMORPHIC},
    "exp2": lambda z: _exp(z * _ln(2)),  # as in PyTorch, where ln(2) z is rounded
    "rsqrt": lambda z: of(1) / _root(z),
    "reciprocal": lambda z: of(1) / z,
    "abs": size,
    "angle": angle,
    "neg": operator.neg,
    "mul": operator.mul,
    "div": operator.truediv,
    "eq": lambda a, b: graph.logical_not(differ(a, b)),
    "ne": differ,
}


def of_numbers(rule: Rule) -> Rule:
    """A rule for complex numbers that also takes real ones."""
    return lambda *numbers: rule(*map(of, numbers))


#: Functions of real or complex numbers, by their names in ATen.
FUNCTIONS = {name: of_numbers(rule) for name, rule in _NUMBERS.items()}


# Fourier transforms -------------------------------------------------------------------


def _compute(x: Array, axes: tuple[int, ...], sign: int, scale: float) -> Array:
    z = _paired(x)  # transformed in either direction without a factor
    y = (
        np.fft.fftn(z, axes=axes)
        if sign < 0
        else np.fft.ifftn(z, None, axes, "forward")
    )
    return _parts(y, x.dtype) * x.dtype.type(scale)


def _error(at: Any) -> Array:
    how, x = at.node.attributes, at.a
    axes = (*how["axes"], x.ndim - 1)
    levels = np.log2(max(1, np.prod([x.shape[i] for i in how["axes"]]))) + 1
    carried = at.e[0].sum(axis=axes, keepdims=True)
    norm = levels * np.sqrt((x * x).sum(axis=axes, keepdims=True))
    own = np.sqrt((at.v * at.v).sum(axis=-1, keepdims=True))
    peak = own.max(axis=how["axes"], keepdims=True, initial=0.0)
    lost = (carried + norm) * abs(how["scale"]) + levels * own + peak + at.tiny
    return np.array(np.broadcast_to(lost, x.shape))


transform: Rule = ruled(
    *("complex.fourier", _compute),
    lambda dy, y, x, sign, **how: (transform(dy, sign=-sign, **how),),
    _error,
)


def length(z: Complex, dim: Sequence[int]) -> int:
    """The number of elements along axes together."""
    return math.prod(z.shape[i] for i in dim)


def transformed(
    z: Complex, dim: Sequence[int], scale: float, *, forward: bool, half: bool = False
) -> Complex:
    """The discrete transform along axes, times a number.

    With `half`, without the part of the spectrum that mirrors the other one.
    """
    axes, sign = tuple(i % z.ndim for i in dim), -1 if forward else 1
    if length(z, dim) == 1:  # nothing is added up
        y = both(lambda part: part if scale == 1 else part * scale, z)
    else:
        pairs = transform(z.joined(), axes=axes, sign=sign, scale=scale)
        y = Complex.split(pairs)
    last = (slice(None),) * axes[-1]
    return y[(*last, slice(y.shape[axes[-1]] // 2 + 1))] if half else y


def to_real(z: Complex, dim: Sequence[int], scale: float, size: int) -> Node:
    """The real inverse of half a spectrum, whose parts that are not real are unread."""
    last, place = dim[-1] % z.ndim, np.arange(size)
    if len(dim) > 1:
        z = transformed(z, dim[:-1], 1.0, forward=False)
    shape = (size, *[1] * (z.ndim - 1 - last))
    side = (np.sign(size - 2 * place) * (place > 0)).reshape(shape)
    where = (slice(None),) * last + (np.minimum(place, size - place),)
    odd = graph.where(side < 0, -z.im[where], z.im[where])
    spectrum = Complex(z.re[where], graph.where(side == 0, 0.0, odd))
    return transformed(spectrum, dim[-1:], scale, forward=False).re
