"""What flows through a traced program: nodes of floats, exact tensors, numbers.

A float is a node of the engine, in the wide type that is being evaluated; a complex
number is a pair of such nodes, and where it goes in or comes out a node whose last axis
has the two parts. Integers and
booleans that depend on no float stay PyTorch tensors and are evaluated exactly; a
boolean that depends on one is a node, so that the choice it makes has a rounding rule.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from gradwatch.harness.tracing.aten.narrow import is_inexact
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Array = NDArray[Any]
_WIDE: ContextVar[np.dtype[Any]] = ContextVar("wide")
#: Masks and whole numbers that depend on floats, and that were taken for exact.
_TAKEN: ContextVar[list[Node]] = ContextVar("taken")


def wide() -> np.dtype[Any]:
    """The type in which the graph is being built."""
    return _WIDE.get(np.dtype(np.float64))


@contextlib.contextmanager
def in_type(dtype: np.dtype[Any]) -> Iterator[list[Node]]:
    """Nodes made inside have this type; the list holds those that `as_exact` took."""
    token, taken = _WIDE.set(dtype), _TAKEN.set([])
    try:
        yield _TAKEN.get()
    finally:
        _WIDE.reset(token)
        _TAKEN.reset(taken)


def constant(value: Any) -> Node:
    """A leaf in the wide type."""
    return graph.variable(np.asarray(value, wide()))


def array_of(tensor: torch.Tensor) -> Array:
    """A tensor's numbers in NumPy, the parts of complex ones as the last axis.

    They are in float64, as NumPy lacks bfloat16.
    """
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if tensor._is_zerotensor():
        tensor = torch.zeros_like(tensor)
    if tensor.is_complex():
        return np.asarray(torch.view_as_real(tensor.to(torch.complex128)).numpy())
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
    if isinstance(value, Complex):
        return torch.view_as_complex(as_exact(value.joined()))
    if not isinstance(value, Node):
        return value
    if not is_number(value):
        _TAKEN.get([]).append(value)
    held = value.value
    return torch.from_numpy(np.array(held.astype(float) if is_number(value) else held))


def is_float_tensor(value: Any) -> bool:
    """Whether a value is a node, a pair, or a constant tensor, of floats."""
    if isinstance(value, Node):
        return is_number(value)
    held = isinstance(value, torch.Tensor) and is_inexact(value)
    return held or isinstance(value, Complex)


@dataclass(frozen=True, eq=False)
class Complex:
    """A tensor of complex numbers: two nodes of one shape."""

    re: Node
    im: Node

    @classmethod
    def of(cls, value: Any) -> Complex:
        """Of a number, a tensor or a node."""
        if isinstance(value, Complex):
            return value
        if isinstance(value, complex):
            return cls(constant(value.real), constant(value.imag))
        if isinstance(value, torch.Tensor) and value.is_complex():
            return cls.split(constant(array_of(value)))
        re = as_float(value)
        return cls(re, constant(np.zeros(re.shape)))

    @classmethod
    def split(cls, pairs: Node) -> Complex:
        """Of a node whose last axis has the two parts."""
        return cls(pairs[..., 0], pairs[..., 1])

    def joined(self) -> Node:
        """The node whose last axis has the two parts."""
        return graph.stack([self.re, self.im], axis=-1)

    def conj(self) -> Complex:
        """The conjugate."""
        return Complex(self.re, -self.im)

    def __neg__(self) -> Complex:
        return Complex(-self.re, -self.im)

    def __add__(self, other: Complex) -> Complex:
        return Complex(self.re + other.re, self.im + other.im)

    def __sub__(self, other: Complex) -> Complex:
        return Complex(self.re - other.re, self.im - other.im)

    def __mul__(self, other: Complex) -> Complex:
        return self.product(operator.mul, other)

    def __matmul__(self, other: Complex) -> Complex:
        return self.product(graph.matmul, other)

    def product(self, times: Callable[..., Node], other: Complex) -> Complex:
        """Any product of two, such as that of matrices."""
        re = times(self.re, other.re) - times(self.im, other.im)
        return Complex(re, times(self.re, other.im) + times(self.im, other.re))

    def __truediv__(self, other: Complex) -> Complex:
        size = graph.hypot(other.re, other.im)
        safe = graph.where(graph.equal(size, 0.0), 1.0, size)
        turned = self * Complex(other.re / safe, -(other.im / safe))
        return Complex(turned.re / size, turned.im / size)


def parts(value: Any) -> tuple[Node, ...]:
    """The nodes of a value: one, two, or none."""
    if isinstance(value, Complex):
        return value.re, value.im
    return (value,) if isinstance(value, Node) else ()


def joined(value: Any) -> Any:
    """A pair as a node with one axis more; everything else as it is."""
    return value.joined() if isinstance(value, Complex) else value
