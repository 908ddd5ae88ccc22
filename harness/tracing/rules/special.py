"""Special functions that PyTorch has and the engine has not.

Each has its value in float64 from SciPy and in any wider type from mpmath, a VJP rule,
and the rounding rule of functions that are monotone or convex between their poles.
Slopes: Abramowitz and Stegun, Handbook of Mathematical Functions, 6.3 (digamma), 6.4
(polygamma), 7.1 (error functions), 9.6 (modified Bessel functions).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import scipy.special
from numpy.typing import NDArray

from gradwatch.harness.judging.rounding.analysis import RULES
from gradwatch.harness.tracing.values import ruled
from gradwatch.impls import graph
from gradwatch.impls.graph import Node
from gradwatch.impls.graph.elementwise import number
from gradwatch.impls.graph.engine import broadcast

Array = NDArray[Any]
_MP = mpmath.mp.clone()
_MP.prec = 420  # bits: exact numbers of the tests have 400; extended precision needs 64


def _computed(double: Callable[..., Any], exact: Callable[..., Any]) -> Any:
    """A function of arrays: SciPy's in float64, mpmath's in wider types."""

    def one(x: Any, **attributes: Any) -> Any:
        ball = hasattr(x, "man_exp")  # a number of an exact library
        given = tuple(map(int, x.mid().man_exp())) if ball else _MP.convert(x)
        try:
            y = _MP.re(exact(_MP.mpf(given), **attributes))
        except (ValueError, ArithmeticError):  # at a pole
            y = _MP.nan
        if ball:
            return type(x)((int(y.man if y > 0 else -y.man), int(y.exp)))
        high = float(y)
        rest = float(y - high) if math.isfinite(high) else 0.0
        return np.longdouble(high) + np.longdouble(rest)

    def compute(x: Array, **attributes: Any) -> Array:
        if x.dtype.itemsize <= 8 and x.dtype != object:
            y = double(x.astype(np.float64), **attributes)
            return np.asarray(y).astype(x.dtype)
        each = np.frompyfunc(functools.partial(one, **attributes), 1, 1)
        return np.asarray(each(x)).astype(x.dtype)

    return compute


_monotone = RULES["log"].error


def _between_poles(at: Any) -> Any:
    """As `_monotone`, but infinite if a pole (0, -1, -2, ...) is within reach."""
    x, h = at.node.inputs[0].value, at.u * at.e[0]
    pole = (h > 0) & (x - h <= 0) & (np.ceil(x - h) <= x + h)
    # Near its root a digamma is what remains of log(x) - 1 / (2 x) and like terms.
    parts = np.isfinite(x) * float(at.node.attributes.get("n") == 0)
    return np.where(pole, np.inf, _monotone(at) + parts)


def _special(
    name: str,
    double: Callable[..., Any],
    exact: Callable[..., Any],
    slope: Callable[..., Node],
    error: Callable[..., Any] = _monotone,
) -> Callable[..., Node]:
    def rule(dy: Node, y: Node, a: Node, **attributes: Any) -> tuple[Node]:
        return (dy * slope(a, y, **attributes),)

    compute = _computed(double, exact)
    return ruled(f"special.{name}", compute, rule, error, shape=broadcast)


def _root_pi(a: Node) -> Node:
    return graph.sqrt(4.0 * graph.atan(number(1, a)))


polygamma: Callable[..., Node] = _special(
    "polygamma",
    lambda x, n: scipy.special.polygamma(n, x) if n else scipy.special.psi(x),
    lambda x, n: _MP.polygamma(n, x),
    lambda a, y, n: polygamma(a, n=n + 1),
    _between_poles,
)
lgamma = _special(
    "lgamma",
    scipy.special.gammaln,
    _MP.loggamma,
    lambda a, y: polygamma(a, n=0),
    _between_poles,
)
erfinv = _special(
    "erfinv",
    scipy.special.erfinv,
    _MP.erfinv,
    lambda a, y: 0.5 * _root_pi(a) * graph.exp(y * y),
)
ndtri = _special(
    "ndtri",
    scipy.special.ndtri,
    lambda x: _MP.sqrt(2) * _MP.erfinv(2 * x - 1),
    lambda a, y: graph.sqrt(number(2, a)) * _root_pi(a) * graph.exp(0.5 * (y * y)),
)
erfcx = _special(
    "erfcx",
    scipy.special.erfcx,
    lambda x: _MP.exp(x * x) * _MP.erfc(x),
    lambda a, y: 2.0 * a * y - 2.0 / _root_pi(a),
)
bessel_i: Callable[..., Node] = _special(
    "bessel_i",
    lambda x, n: scipy.special.iv(n, x),
    lambda x, n: _MP.besseli(n, x),
    lambda a, y, n: 0.5 * (bessel_i(a, n=n - 1 if n else 1) + bessel_i(a, n=n + 1)),
)
bessel_ie: Callable[..., Node] = _special(
    "bessel_ie",  # scaled by exp(-|x|)
    lambda x, n: scipy.special.ive(n, x),
    lambda x, n: _MP.besseli(n, x) * _MP.exp(-abs(x)),
    lambda a, y, n: (
        0.5 * (bessel_ie(a, n=n - 1 if n else 1) + bessel_ie(a, n=n + 1))
        - graph.sign(a, at_tie=0.0) * y
    ),
)


def log_ndtr(x: Node) -> Node:
    """log_ndtr as in PyTorch, but each branch gets only the numbers that choose it.

    Elsewhere its slope may be infinite, and 0 times that is nan.
    """
    t, below = x / graph.sqrt(number(2, x)), graph.less(x, 1.0)
    low, high = graph.where(below, t, 0.0), graph.where(below, 0.0, t)
    left = graph.log(0.5 * erfcx(-low)) - low * low
    return graph.where(below, left, graph.log1p(-0.5 * graph.erfc(high)))
