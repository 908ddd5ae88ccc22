"""Values of a traced function: nodes of floats, exact tensors, numbers.

A tensor of floats is a node of the engine, in the wide type of the evaluation. Complex
numbers are a pair of such nodes, and as an input or a result a node whose last axis has
the two parts. Integers and booleans that depend on no float stay the framework's and
are evaluated exactly; a boolean that depends on one is a node, so that the choice it
makes has a rounding rule.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.rounding import analysis
from gradwatch.impls import graph
from gradwatch.impls.graph import Node, as_array, primitive
from gradwatch.impls.graph.engine import broadcast, setting

Array = NDArray[Any]
_WIDE: ContextVar[np.dtype[Any]] = ContextVar("wide")
#: Nodes' tensors from a run in the precision under test, which decide its choices.
_RAN: ContextVar[dict[Node, Any]] = ContextVar("ran")


def ruled(
    name: str,
    compute: Any,
    rule: Any,
    error: Callable[[analysis.At], analysis.Error],
    rounds: bool = False,
    **how: Any,
) -> Callable[..., Node]:
    """A primitive of the engine with its VJP rule and its rounding rule."""
    analysis.RULES[name] = analysis.Rule(error, rounds)
    return primitive(name, compute, rule, **how)


def wide() -> np.dtype[Any]:
    """The dtype in which the graph is being built."""
    return _WIDE.get(np.dtype(np.float64))


@contextlib.contextmanager
def in_type(dtype: np.dtype[Any]) -> Iterator[dict[Node, Any]]:
    """Give nodes made inside this dtype; yields their tensors from a run."""
    with setting(_WIDE, dtype), setting(_RAN, dict[Node, Any]()) as ran:
        yield ran


def constant(value: Any) -> Node:
    """A leaf in the wide type."""
    return graph.variable(np.asarray(value, wide()))


def array_of(value: Any) -> Array:
    """Numbers as a NumPy array, the parts of complex ones as the last axis.

    Floats of a tensor become float64, as NumPy lacks bfloat16.
    """
    if hasattr(value, "resolve_conj"):  # a tensor of PyTorch's
        value = value.detach().cpu().resolve_conj().resolve_neg()
        if value._is_zerotensor():
            value = value.new_zeros(value.shape)
        if value.is_complex():
            value = value.cdouble()
        if value.is_floating_point() and value.itemsize < 8:
            value = np.asarray(value.float().numpy(), np.float64)  # in huge pages
    held = np.asarray(value)
    return np.stack((held.real, held.imag), -1) if held.dtype.kind == "c" else held


def is_number(node: Node) -> bool:
    """Whether a node holds floats, not booleans or integers."""
    return node.dtype.kind not in "biu"


def as_float(value: Any) -> Node:
    """A node of floats from a node, an exact tensor or a number."""
    if isinstance(value, Node):
        return value if is_number(value) else graph.astype(value, wide())
    return constant(array_of(value))


def as_mask(value: Any) -> Node:
    """A node of booleans."""
    if isinstance(value, Node):
        return value if value.dtype == bool else graph.not_equal(value, 0.0)
    return graph.variable(np.asarray(array_of(value), bool))


def as_exact(value: Any) -> Any:
    """A tensor of a node's values, for an argument that only chooses, as an index."""
    import torch

    if isinstance(value, Complex):
        return torch.view_as_complex(as_exact(value.joined()))
    if not isinstance(value, Node):
        return value
    if (was := _RAN.get({}).get(value)) is not None:
        return was.double() if is_number(value) else was
    held = value.value
    return torch.from_numpy(np.array(held.astype(float) if is_number(value) else held))


def as_it_ran(value: Any, was: Any) -> Any:
    """A value for which `as_exact` returns the tensor `was` that it had in a run."""
    if was is None:
        return value
    if isinstance(value, Node):
        _RAN.get()[value] = was
        return value
    return was if hasattr(value, "resolve_conj") else value


def is_inexact(tensor: Any) -> bool:
    """Whether a tensor or its `Geometry` is of floats or complex numbers."""
    return bool(tensor.dtype.is_floating_point or tensor.dtype.is_complex)


@dataclass(frozen=True, eq=False)
class Complex:
    """A tensor of complex numbers: two nodes of one shape."""

    re: Node
    im: Node

    @classmethod
    def of(cls, value: Any) -> Complex:
        """Convert a number, an array, a tensor or a node."""
        if isinstance(value, Complex):
            return value
        if not isinstance(value, Node):
            held = array_of(value)
            if held.ndim > np.ndim(value):
                return cls.split(constant(held))
        re = as_float(value)
        return cls(re, constant(np.zeros(re.shape)))

    @classmethod
    def split(cls, pairs: Node) -> Complex:
        """Split a node whose last axis has the two parts."""
        return cls(pairs[..., 0], pairs[..., 1])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of both parts."""
        return self.re.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.re.ndim

    def __getitem__(self, place: Any) -> Complex:
        return Complex(self.re[place], self.im[place])

    def joined(self) -> Node:
        """The node whose last axis has the two parts."""
        return graph.stack([self.re, self.im], axis=-1)

    def conj(self) -> Complex:
        """The conjugate."""
        return Complex(self.re, -self.im)

    def __neg__(self) -> Complex:
        return Complex(-self.re, -self.im)

    def __add__(self, other: Any) -> Complex:
        other = Complex.of(other)
        return Complex(self.re + other.re, self.im + other.im)

    def __sub__(self, other: Complex) -> Complex:
        return Complex(self.re - other.re, self.im - other.im)

    def __mul__(self, other: Any) -> Complex:
        return self.product(operator.mul, Complex.of(other))

    def __matmul__(self, other: Complex) -> Complex:
        return self.product(graph.matmul, other)

    def product(self, times: Callable[..., Node], other: Complex) -> Complex:
        """A bilinear product with another, such as that of matrices."""
        re = times(self.re, other.re) - times(self.im, other.im)
        return Complex(re, times(self.re, other.im) + times(self.im, other.re))

    def __truediv__(self, other: Complex) -> Complex:
        size = graph.hypot(other.re, other.im)
        safe = graph.where(graph.equal(size, 0.0), 1.0, size)
        turned = self * Complex(other.re / safe, -(other.im / safe))
        return Complex(turned.re / size, turned.im / size)


def both(rule: Callable[..., Any], *values: Any) -> Any:
    """A rule applied to real and to imaginary parts; for real values, applied once."""
    if not any(isinstance(v, Complex) for v in values):
        return rule(*values)
    re, im = (
        rule(*(getattr(v, part) if isinstance(v, Complex) else v for v in values))
        for part in ("re", "im")
    )
    if isinstance(re, (list, tuple)):
        return [_pair(*pair) for pair in zip(re, im, strict=True)]
    return _pair(re, im)


def _pair(re: Any, im: Any) -> Any:
    return Complex(re, im) if isinstance(re, Node) else re


def narrow(how: Callable[..., Any], value: Any, info: Any, widest: float) -> Any:
    """A value rounded to a type, if that is narrower than the inputs'.

    Args:
        how: `rounded`; for an input `leaf`, as only its gradient is rounded.
        value: Nodes, or anything else, which is returned as it is.
        info: The type's `torch.finfo` or `jax.numpy.finfo`; None for the inputs' own.
        widest: The machine epsilon of the widest input.
    """
    kept = info is not None and float(info.eps) <= widest
    if kept and float(info.eps) < widest:  # float16 has more digits than bfloat16
        kept = float(info.smallest_normal) <= PRECISIONS["bfloat16"].smallest
    if kept or not parts(value):
        return value
    return both(functools.partial(how, info=info), value)


def finer(eps: float, widest: float) -> str:
    """Name of the format of a machine epsilon if finer than all inputs; else empty."""
    own = (p.name for p in PRECISIONS.values() if 2 * p.roundoff == eps)
    return next(own, "") if eps < widest else ""


def parts(value: Any) -> tuple[Node, ...]:
    """The nodes of a value: one, two, or none."""
    if isinstance(value, Complex):
        return value.re, value.im
    return (value,) if isinstance(value, Node) else ()


def joined(value: Any) -> Any:
    """A pair as a node with one more axis; any other value as it is."""
    return value.joined() if isinstance(value, Complex) else value


# Values that are rounded to a narrower type than the inputs have ----------------------

# The engine's value is not rounded, but has the error of that rounding. So has its
# cotangent, which is rounded to the same type, and every value that a backward computes
# from the stored result (1 - y^2 of a tanh).


def _narrowed(x: Array, info: Any) -> Array:
    if info is None:
        return as_array(x)
    top, end = float(info.max), np.nan if "fn" in str(info.dtype) else np.inf
    if np.isnan(end) and isinstance(info.dtype, str):  # PyTorch's casts saturate
        return np.clip(x, -top, top)
    beyond = top + float(info.eps) / 2 * np.exp2(np.floor(np.log2(top)))
    return np.where(np.abs(x) >= beyond, np.copysign(end, x), x)


def _error(at: analysis.At) -> analysis.Error:
    info = at.node.attributes["info"]
    if info is None:
        x, step = at.node.value, at.arithmetic.step
        kept = (at.known[0] == 0) & (step.round(x) == x)
        return np.where(kept, 0.0, at.e[0] + analysis.one_rounding(at))
    share = float(info.eps) / 2 / at.roundoff
    rounding, least = at.v * share, float(info.smallest_normal) * share
    return as_array(at.e[0] + rounding + np.where(at.v != 0, least, 0.0))


def _apart(at: analysis.At) -> analysis.Error:
    value, (source,) = at.node.value, at.node.inputs
    off = np.abs(value - source.value).astype(np.float64) / at.roundoff
    # What a saturated sigmoid or tanh keeps is 1, whoever computes it again.
    kept = bool(source.inputs) and analysis.exact_at_one(source)
    certain = kept & (np.abs(value) == 1)
    return np.where(certain, off, np.fmax(analysis.one_rounding(at), off))


def _rule(dy: Node, y: Node, x: Node, info: Any) -> tuple[Node]:
    return (rounded(dy, info=info),)


_EACH: dict[str, Any] = {"shape": broadcast}
rounded = ruled("cast.narrowed", _narrowed, _rule, _error, stores=True, **_EACH)
leaf = ruled(
    "cast.leaf", lambda x, info: as_array(x), _rule, lambda at: at.e[0], **_EACH
)
#: A value that a candidate keeps, and may yet compute again.
fact = ruled(
    *("cast.fact", lambda x, value: value, lambda dy, y, x, value: (dy,), _apart),
    stores=True,
)
table = ruled(
    *("made.table", lambda x, info: as_array(x), _rule),
    lambda at: (
        np.full_like(at.v, at.v.max(initial=0.0))
        * (float(at.node.attributes["info"].eps) / 2 / at.roundoff)
    ),
)
written_over = ruled(
    "written.over",
    lambda before, after: np.broadcast_to(after, np.shape(before)),
    lambda dy, y, before, after: (dy, None),
    lambda at: at.e[1],
)
