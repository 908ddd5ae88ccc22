"""What flows through a traced program: nodes of floats, exact tensors, numbers.

A float is a node of the engine, in the wide type that is being evaluated. Integers and
booleans that depend on no float stay PyTorch tensors and are evaluated exactly; a
boolean that depends on one is a node, so that the choice it makes has a rounding rule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Array = NDArray[Any]
_WIDE: ContextVar[np.dtype[Any]] = ContextVar("wide")


def wide() -> np.dtype[Any]:
    """The type in which the graph is being built."""
    return _WIDE.get(np.dtype(np.float64))


@contextlib.contextmanager
def in_type(dtype: np.dtype[Any]) -> Iterator[None]:
    """Nodes made inside have this type."""
    token = _WIDE.set(dtype)
    try:
        yield
    finally:
        _WIDE.reset(token)


def constant(value: Any) -> Node:
    """A leaf in the wide type."""
    return graph.variable(np.asarray(value, wide()))


def array_of(tensor: torch.Tensor) -> Array:
    """A tensor's numbers in NumPy; bfloat16, which NumPy lacks, as float64."""
    tensor = tensor.detach().cpu().resolve_neg()
    if tensor._is_zerotensor():
        tensor = torch.zeros_like(tensor)
    return tensor.double().numpy() if tensor.is_floating_point() else tensor.numpy()


def is_number(node: Node) -> bool:
    """Whether a node holds floats, not booleans or integers."""
    return node.dtype.kind not in "biu"


def as_float(value: Any) -> Node:
    """A node of floats: of a node, of an exact tensor, or of a number."""
    if isinstance(value, Node):
        if is_number(value):
            return value
        return graph.astype(value, wide())
    if isinstance(value, torch.Tensor):
        return constant(array_of(value))
    return constant(value)


def as_mask(value: Any) -> Node:
    """A node of booleans."""
    if isinstance(value, Node):
        return value if value.dtype == bool else graph.not_equal(value, 0.0)
    held = array_of(value) if isinstance(value, torch.Tensor) else value
    return graph.variable(np.asarray(held, bool))


def as_exact(value: Any) -> Any:
    """A tensor of a node's values, for what only chooses: an index, a mask, ..."""
    if not isinstance(value, Node):
        return value
    held = value.value
    return torch.from_numpy(np.array(held.astype(float) if is_number(value) else held))


def is_float_tensor(value: Any) -> bool:
    """Whether a value is a node, or a constant tensor, of floats."""
    if isinstance(value, Node):
        return is_number(value)
    return isinstance(value, torch.Tensor) and value.is_floating_point()
