"""Values that are rounded to a narrower type than the inputs have: casts, autocast.

The engine's value is not rounded, but has the error of that rounding. So has the
cotangent on its way back, which is rounded to the same type, and what a backward
computes from the value that was stored (1 - y^2 of a tanh). An `info` is what
`torch.finfo` or `jax.numpy.finfo` say of a type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.rounding.analysis import ERROR
from gradwatch.harness.judging.rounding.errors import At, Error
from gradwatch.impls.graph import Node, primitive

_NAME, _LEAF, _WRITTEN = "cast.narrowed", "cast.leaf", "written.over"
_TABLE = "made.table"


def is_inexact(tensor: Any) -> bool:
    """Whether a tensor, or what one is like, holds floats or complex numbers."""
    return bool(tensor.dtype.is_floating_point or tensor.dtype.is_complex)


def _compute(x: NDArray[Any], info: Any) -> NDArray[Any]:
    if str(info.dtype) == "float8_e4m3fn":  # has no infinity: PyTorch's casts saturate
        return np.clip(x, -info.max, info.max)
    # Half a unit in the last place above the largest number.
    beyond = info.max * (1 + info.eps / (4 - 2 * info.eps))
    return np.where(np.abs(x) < beyond, x, np.copysign(np.inf, x) + 0 * x)


def _error(at: At) -> Error:
    info = at.node.attributes["info"]
    rounding = at.v * (info.eps / 2 / at.roundoff)
    least = info.smallest_normal * info.eps / 2 / at.roundoff
    return np.asarray(at.e[0] + rounding + np.where(at.v != 0, least, 0.0))


def _table_error(at: At) -> Error:
    info = at.node.attributes["info"]
    rounding = at.v.max(initial=0.0) * (info.eps / 2 / at.roundoff)
    return np.full_like(at.v, rounding)


def _rule(dy: Node, y: Node, x: Node, info: Any) -> tuple[Node]:
    return (rounded(dy, info=info),)


ERROR[_NAME] = _error
rounded = primitive(_NAME, _compute, _rule, stores=True)
ERROR[_LEAF] = lambda at: at.e[0]
leaf = primitive(_LEAF, lambda x, info: np.asarray(x), _rule)
ERROR[_TABLE] = _table_error
table = primitive(_TABLE, lambda x, info: np.asarray(x), _rule)
ERROR[_WRITTEN] = lambda at: at.e[1]
written_over = primitive(
    _WRITTEN,
    lambda before, after: np.broadcast_to(after, np.shape(before)),
    lambda dy, y, before, after: (dy, None),
)
