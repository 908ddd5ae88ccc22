"""Operators that work element by element: one line each, also for lax's table."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradwatch.harness.tracing.values import as_float, as_mask, constant, written_over
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Rule = Callable[..., Any]


def _special(name: str, **attributes: Any) -> Rule:
    """A function of `rules.special`, which needs mpmath; an order n comes before x."""

    def rule(*given: Any) -> Node:
        try:
            from gradwatch.harness.tracing.rules import special
        except ModuleNotFoundError as error:  # JAX alone is enough for the others
            said = f"{name} needs {error.name}: pip install 'gradwatch[jax]'"
            raise ModuleNotFoundError(said, name=error.name) from None

        *order, x = given
        named = attributes | dict(zip("n", order, strict=False))
        return getattr(special, name.partition(".")[2])(x, **named)

    return rule


def _pi() -> Node:
    """Pi to the digits of extended precision (np.pi has those of float64)."""
    return constant(np.longdouble("3.14159265358979323846264338327950288"))


def _scaled(x: Any, factor: Any) -> Any:
    return x if isinstance(factor, (int, float)) and factor == 1 else factor * x


def _clamp(x: Node, low: Any = None, high: Any = None) -> Node:
    """A clamp, with the upper bound where the bounds cross, as in PyTorch."""
    x = x if low is None else graph.maximum(x, low)
    return x if high is None else graph.minimum(x, high)


def power(a: Any, b: Any) -> Node:
    """A power; whole and half exponents by the functions that are exact for them."""
    known = {0.5: graph.sqrt, 1: lambda x: x, 2: graph.square, -1: graph.reciprocal}
    exact = known.get(b) if isinstance(b, (int, float)) else None
    return exact(a) if exact else graph.pow(a, b)


def _gelu(x: Node, *, approximate: str = "none") -> Node:
    if approximate == "none":
        return x * 0.5 * (1.0 + graph.erf(x / graph.sqrt(constant(2))))
    cubic = x + 0.044715 * x * x * x
    return x * 0.5 * (1.0 + graph.tanh(graph.sqrt(2.0 / _pi()) * cubic))


def _elu(x: Node, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Node:
    above = graph.greater(x, 0.0)
    below = alpha * scale * graph.expm1(graph.where(above, 0.0, x) * input_scale)
    return graph.where(above, x * scale, below)


def _copysign(a: Any, b: Any) -> Node:
    """|a| with the sign of b, also of -0.0: a choice without a gradient by b."""
    a, b = as_float(a), as_float(b)
    same = np.signbit(a.value) == np.signbit(b.value)
    return graph.where(graph.variable(same), a, -a)


def times_log(x: Any, y: Any, log: Node, end: Node | float = 0.0) -> Node:
    """x log(y); 0 log 0 is the `end`, which is 0, and its slope by y is undefined."""
    finite = graph.isfinite(log)
    empty = graph.logical_and(graph.equal(x, 0.0), graph.logical_not(finite))
    end = graph.where(graph.equal(y, 0.0), x * graph.sqrt(y), 0.0) + end
    return graph.where(empty, graph.where(graph.isnan(y), y, end), x * log)


def _round(x: Node, *, decimals: int = 0) -> Node:
    if not decimals:
        return graph.round(x)
    return graph.round(x * 10.0**decimals) / 10.0**decimals


def _frexp(x: Node) -> tuple[Node, Any]:
    import torch

    exponent = np.asarray(np.frexp(x.value)[1], np.int32)
    return x * constant(np.ldexp(1.0, -exponent)), torch.from_numpy(exponent)


def _fake_quantised(
    x: Node, scale: Node, zero: Node, low: int, high: int
) -> tuple[Node, Node]:
    """Rounded to whole numbers of scales; the rounding's slope is, as documented, 1.

    Beyond the range x has no gradient.
    """
    place = x / scale
    level = written_over(place, graph.round(place)) + zero
    inside = graph.logical_and(level >= float(low), level <= float(high))
    end = graph.clip(graph.stop_gradient(level), float(low), float(high))
    return (graph.where(inside, level, end) - zero) * scale, inside


def _by_channel(rule: Rule) -> Rule:
    def of(x: Node, scale: Node, zero: Node, axis: int, *ends: Any) -> Any:
        shape = tuple(n if i == axis % x.ndim else 1 for i, n in enumerate(x.shape))
        return rule(x, graph.reshape(scale, shape), graph.reshape(zero, shape), *ends)

    return of


def _learnt(
    x: Node, scale: Node, zero: Node, low: int, high: int, factor: float = 1.0
) -> Node:
    """The zero is rounded, too; gradients of scale and zero are scaled."""
    at = graph.clip(graph.round(zero), float(low), float(high))
    scale, zero = written_over(scale * factor, scale), written_over(zero * factor, at)
    return _fake_quantised(x, scale, zero, low, high)[0]


_SAME_NAME = """
    abs acos acosh asin asinh atan atan2 atanh ceil cos cosh erf erfc exp exp2 expm1
    floor hypot reciprocal rsqrt isnan isinf
    log log10 log1p log2 maximum minimum sigmoid sin sinh sqrt tan tanh trunc
"""
#: Operators whose results are nodes of booleans.
_COMPARISONS = {
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "gt": "greater",
    "le": "less_equal",
    "ge": "greater_equal",
}

ON_FLOATS: dict[str, Rule] = {
    "detach": graph.stop_gradient,
    **{name: getattr(graph, name) for name in _SAME_NAME.split()},
    "add": lambda a, b, alpha=1: a + _scaled(b, alpha),
    "sub": lambda a, b, alpha=1: a - _scaled(b, alpha),
    "mul": lambda a, b: a * b,
    "div": lambda a, b, rounding_mode=None: (
        getattr(graph, rounding_mode)(a / b) if rounding_mode else a / b
    ),
    **dict.fromkeys(("neg", "_neg_view"), lambda x: -x),
    "pow": power,
    "ldexp": lambda a, b: a * graph.exp2(b),
    "remainder": lambda a, b: a - b * graph.floor(a / b),
    "fmod": lambda a, b: a - b * graph.trunc(a / b),
    "xlogy": lambda x, y: times_log(x, y, graph.log(y)),
    "special_xlog1py": lambda x, y: times_log(x, 1.0 + y, graph.log1p(y)),
    "special_entr": lambda x: -times_log(x, x, graph.log(x)),
    "fmax": graph.maximum,
    "fmin": graph.minimum,
    "clamp": _clamp,
    "hardtanh": lambda x, low=-1, high=1: graph.minimum(high, graph.maximum(low, x)),
    "relu": lambda x: graph.maximum(0.0, x),  # at a tie 0 is first, as in PyTorch
    "leaky_relu": lambda x, slope=0.01: graph.where(
        graph.greater(x, 0.0), x, x * slope
    ),
    "elu": _elu,
    "gelu": _gelu,
    "sign": lambda x: graph.sign(x, at_tie=0.0),
    "round": _round,
    "nextafter": lambda a, b: a / graph.where(graph.isnan(b), b, 1.0),  # a rounding
    "angle": lambda x: graph.where(graph.isnan(x), x, _pi() * (x < 0.0)),
    "frexp": _frexp,
    "fake_quantize_per_tensor_affine_cachemask": lambda x, scale, zero, *ends: (
        _fake_quantised(x, constant(scale), constant(zero), *ends)
    ),
    "fake_quantize_per_channel_affine_cachemask": _by_channel(_fake_quantised),
    "_fake_quantize_learnable_per_tensor_affine": _learnt,
    "_fake_quantize_learnable_per_channel_affine": _by_channel(_learnt),
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": (
        lambda x, scale, zero, enabled, *ends: _fake_quantised(x, scale, zero, *ends)
    ),
    "digamma": _special("special.polygamma", n=0),
    "polygamma": _special("special.polygamma"),
    "lgamma": _special("special.lgamma"),
    "erfinv": _special("special.erfinv"),
    "special_ndtri": _special("special.ndtri"),
    "special_erfcx": _special("special.erfcx"),
    "special_log_ndtr": _special("special.log_ndtr"),
    "i0": _special("special.bessel_i", n=0),
    "special_i1": _special("special.bessel_i", n=1),
    "special_i0e": _special("special.bessel_ie", n=0),
    "special_i1e": _special("special.bessel_ie", n=1),
    "_log_softmax": lambda x, axis, *_: _log_softmax(x, axis if x.ndim else None),
    "_softmax": lambda x, axis, *_: _softmax(x, axis if x.ndim else None),
    "_safe_softmax": lambda x, axis, *_: _safe_softmax(x, axis if x.ndim else None),
    **{name: getattr(graph, ours) for name, ours in _COMPARISONS.items()},
}


def _shifted(x: Node, axis: int | None) -> Node:
    return x - graph.stop_gradient(graph.max(x, axis=axis, keepdims=True))


def _softmax(x: Node, axis: int | None) -> Node:
    e = graph.exp(_shifted(x, axis))
    return e / graph.sum(e, axis=axis, keepdims=True)


def _safe_softmax(x: Node, axis: int | None) -> Node:
    """Zeros where a whole row is -inf, as under a mask, and no nan in the gradient."""
    most = graph.stop_gradient(graph.max(x, axis=axis, keepdims=True))
    hidden = graph.equal(most, -np.inf)
    e = graph.exp(x - graph.where(hidden, 0.0, most))
    return e / graph.where(hidden, 1.0, graph.sum(e, axis=axis, keepdims=True))


def _log_softmax(x: Node, axis: int | None) -> Node:
    z = _shifted(x, axis)
    return z - graph.log(graph.sum(graph.exp(z), axis=axis, keepdims=True))


def logical(name: str) -> Rule:
    """The engine's function of that name, of truth values."""
    return lambda *masks: getattr(graph, name)(*map(as_mask, masks))


ON_VALUES: dict[str, Rule] = {
    "where": lambda mask, a, b: graph.where(as_mask(mask), as_float(a), as_float(b)),
    "copysign": _copysign,
    **{
        f"{kind}_{how}": logical(f"logical_{how}")
        for kind in ("logical", "bitwise")
        for how in ("and", "or", "not", "xor")
    },
}
