"""Constants: plain arrays, which take the precision of the nodes they are used with."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gradwatch.impls.graph.engine import (
    FUNCTIONS,
    Array,
    Node,
    as_array,
    public,
    variable,
)

FUNCTIONS |= {
    "arange": np.arange,
    "zeros": np.zeros,
    "ones": np.ones,
    "full": np.full,
    "eye": np.eye,
    "linspace": np.linspace,
}
#: Attributes of the array API's namespace that are no functions.
CONSTANTS = {
    "pi": math.pi,
    "e": math.e,
    "inf": math.inf,
    "nan": math.nan,
    "newaxis": None,
    **{name: np.dtype(name) for name in ("int64", "int32", "bool")},
}


@public
def asarray(value: Any, *, dtype: Any = None) -> Node | Array:
    """A node as it is; anything else as a plain array."""
    return value if isinstance(value, Node) else as_array(value, dtype)


@public
def zeros_like(x: Node) -> Node:
    """Zeros of the shape and dtype of a node."""
    return variable(np.zeros(x.shape, x.dtype))


@public
def ones_like(x: Node) -> Node:
    """Ones of the shape and dtype of a node."""
    return variable(np.ones(x.shape, x.dtype))


@public
def full_like(x: Node, value: float) -> Node:
    """One number in the shape and dtype of a node."""
    return variable(np.full(x.shape, value, x.dtype))
