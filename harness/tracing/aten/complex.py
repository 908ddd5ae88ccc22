"""ATen's operators of complex numbers; moves and sums work on each part."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from gradwatch.harness.tracing.aten import matrices, moves, reductions
from gradwatch.harness.tracing.aten.windows import prefixes
from gradwatch.harness.tracing.rules import complex as rules
from gradwatch.harness.tracing.rules.complex import length, of, transformed
from gradwatch.harness.tracing.values import Complex, both, is_inexact, is_number
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Rule = Callable[..., Any]


def _complex(*parts: Node) -> Complex:
    shape = np.broadcast_shapes(*(part.shape for part in parts))
    return Complex(*(graph.broadcast_to(part, shape) for part in parts))


def _sign_and_log(z: Complex) -> tuple[Any, ...]:
    y = rules.determinant(z)
    return y / of(rules.size(y)), graph.log(rules.size(y)), None, None


def _scale(n: int, norm: int) -> float:
    """The factor of PyTorch's norm 0, 1 or 2: 1, 1 / sqrt(n) or 1 / n."""
    return (1.0, n**-0.5, 1.0 / max(n, 1))[norm]


def _fourier(
    z: Complex, dim: Sequence[int], norm: int, forward: bool, half: bool = False
) -> Complex:
    scale = _scale(length(z, dim), norm)
    return transformed(z, dim, scale, forward=forward, half=half)


# The table ----------------------------------------------------------------------------

_var = reductions.ON_FLOATS["var"]
#: Rules of real numbers that take complex ones, too.
_SOLVE = ("linalg_inv_ex", "_linalg_solve_ex", "linalg_solve_triangular")
_PRODUCTS = ("mm", "bmm", "addmm", "addmv")

#: Rules that get every tensor as a `Complex`.
ON_COMPLEX: dict[str, Rule] = {
    "complex": lambda re, im: _complex(re.re, im.re),
    "view_as_complex": lambda pairs: Complex.split(pairs.re),
    "view_as_real": lambda z: z.joined(),
    **rules.FUNCTIONS,
    **dict.fromkeys(("_conj", "_conj_physical"), Complex.conj),
    "_neg_view": operator.neg,
    "polar": lambda size, angle: Complex(
        size.re * graph.cos(angle.re), size.re * graph.sin(angle.re)
    ),
    "add": lambda a, b, alpha=1: of(a) + of(alpha) * of(b),
    "sub": lambda a, b, alpha=1: of(a) - of(alpha) * of(b),
    "pow": lambda a, b: rules.power(of(a), b),
    "prod": rules.product,
    "linalg_vector_norm": lambda z, *a, **k: reductions.norm(rules.size(z), *a, **k),
    "var": lambda z, *a, **k: _var(z.re, *a, **k) + _var(z.im, *a, **k),
    "cumprod": lambda z, dim, **_: prefixes(operator.mul, z, dim),
    **{name: matrices.ON_FLOATS[name] for name in _SOLVE},
    **{name: reductions.ON_FLOATS[name] for name in _PRODUCTS},
    "_linalg_det": lambda z: (rules.determinant(z), None, None),
    "_linalg_slogdet": _sign_and_log,
    "_fft_c2c": _fourier,
    "_fft_r2c": lambda z, dim, norm, half: _fourier(z, dim, norm, True, half),
    "_fft_c2r": lambda z, dim, norm, size: rules.to_real(
        z, dim, _scale(length(z, dim[:-1]) * size, norm), size
    ),
}
#: Operators whose rule for real numbers holds for each part.
PARTWISE = frozenset(
    ("cumsum", "detach", "index_put", "mean", "put", "scatter_add", "sum", "where")
)


def has_rule(name: str) -> bool:
    """Whether the operator can be applied to complex numbers."""
    return name in ON_COMPLEX or name in PARTWISE or moves.is_move(name)


def apply(target: Any, name: str, rule: Rule, /, *args: Any, **kwargs: Any) -> Any:
    """Apply an operator to complex numbers; `rule` is that for real ones."""
    if name in ON_COMPLEX:
        args, kwargs = tree_map(_whole, (args, kwargs))
        return ON_COMPLEX[name](*args, **kwargs)
    known = target._schema.arguments
    written = {a.name for a in known if str(a.type) == "number"} - {"alpha"}

    def numbers(name: str, value: Any) -> Any:
        plain = name in written and value is not None
        return of(value) if plain else tree_map(_whole, value)

    own = [numbers(a.name, v) for a, v in zip(known, args, strict=False)]
    other = {n: numbers(n, v) for n, v in kwargs.items()}
    flat, spec = tree_flatten((own, other))

    def of_parts(*parts: Any) -> Any:
        given, named = tree_unflatten(parts, spec)
        return rule(*given, **named)

    return both(of_parts, *flat)


def _whole(value: Any) -> Any:
    """A node or a constant tensor of floats as a pair; other values as they are."""
    if isinstance(value, Node):
        return of(value) if is_number(value) else value
    return of(value) if isinstance(value, Tensor) and is_inexact(value) else value
