"""JAX arrays with the methods of PyTorch's tensors, for the pages' `custom` classes.

An array of JAX never changes, so to write is to give a tensor another one. A view keeps
the tensor that it shows a part of, reads from it and writes to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from numpy.lib.mixins import NDArrayOperatorsMixin


class Tensor(NDArrayOperatorsMixin):
    """A JAX array, or a view of another tensor, with the methods that pages call."""

    def __init__(self, array: Any, whole: Any = None, put: Any = None) -> None:
        # A view's `array` reads it from the array of the whole; `put` returns the array
        # of the whole with another value of the view.
        self._array, self._whole, self._put = array, whole, put

    @property
    def array(self) -> Any:
        """The current array."""
        return self._array if self._whole is None else self._array(self._whole.array)

    @property
    def shape(self) -> tuple[int, ...]:
        """The length of each axis."""
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    T = property(lambda self: self.transpose(0, 1))

    def __array_ufunc__(
        self, ufunc: Any, method: str, *given: Any, out: Any = None
    ) -> Tensor:
        """An operator; `out` holds the tensor to write to."""
        new = getattr(jnp, ufunc.__name__)(*map(plain, given))
        return Tensor(new) if out is None else out[0].copy_(new)

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    def __getattr__(self, name: str) -> Callable[..., Tensor]:
        """A method; those with a trailing underscore write."""
        call = METHODS.get(name.removesuffix("_"))
        if call is None:
            raise AttributeError(f"no {name} here: add it to METHODS")
        if not name.endswith("_"):
            return lambda *given, **named: Tensor(
                call(self.array, *map(plain, given), **named)
            )
        return lambda *given: self.copy_(call(self.array, *map(plain, given)))

    def copy_(self, value: Any) -> Tensor:
        """Other values, also in the tensor that it shows a part of."""
        new = jnp.broadcast_to(plain(value), self.shape).astype(self.array.dtype)
        if self._whole is None:
            self._array = new
        else:
            self._whole.copy_(self._put(self._whole.array, new))
        return self

    def __getitem__(self, index: Any) -> Tensor:
        at = plain(index)
        return Tensor(lambda array: array[at], self, lambda a, v: a.at[at].set(v))

    def __setitem__(self, index: Any, value: Any) -> None:
        self[index].copy_(value)

    def transpose(self, a: int, b: int) -> Tensor:
        """A view with two axes exchanged."""
        swap = partial(jnp.swapaxes, axis1=a, axis2=b)
        return Tensor(swap, self, lambda _, view: swap(view))

    def narrow(self, axis: int, start: int, length: int) -> Tensor:
        """A view of some places of an axis."""
        skipped = (slice(None),) * (axis % self.ndim)
        return self[(*skipped, slice(start, start + length))]

    def unbind(self, axis: int) -> Iterator[Tensor]:
        """A view of each place of an axis."""
        skipped = (slice(None),) * (axis % self.ndim)
        return (self[(*skipped, i)] for i in range(self.shape[axis]))

    def flatten(self, first: int = 0, last: int = -1) -> Tensor:
        """Neighbouring axes as one."""
        shape, first, last = self.shape, first % self.ndim, last % self.ndim + 1
        one = math.prod(shape[first:last])
        return Tensor(self.array.reshape(*shape[:first], one, *shape[last:]))

    def max(self, axis: int) -> tuple[Tensor, Tensor]:
        """The largest elements along an axis, and where the first of them are."""
        return Tensor(self.array.max(axis)), Tensor(self.array.argmax(axis))


def plain(value: Any) -> Any:
    """A value with arrays in place of tensors, also inside a tuple."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return value.array if isinstance(value, Tensor) else value


def reduction(function: Any, x: Any, axis: Any = None, keepdim: bool = False) -> Any:
    """A reduction with PyTorch's arguments."""
    return function(x, axis=axis, keepdims=keepdim)


def places(axis: int, index: Any) -> Any:
    """An index along one axis as an index of all axes."""
    every = list(jnp.ix_(*map(jnp.arange, index.shape)))
    every[axis] = index
    return tuple(every)


NAMES = "exp expm1 log log1p sqrt abs square sign sin cos tanh matmul maximum minimum"
NAMES += " cumsum prod squeeze tril triu add"
METHODS: dict[str, Callable[..., Any]] = {n: getattr(jnp, n) for n in NAMES.split()}
METHODS |= {n: partial(reduction, getattr(jnp, n)) for n in ("amax", "sum", "mean")}
METHODS |= {
    "mul": jnp.multiply,
    "sigmoid": jax.nn.sigmoid,
    "erf": jax.lax.erf,
    "unsqueeze": jnp.expand_dims,
    "clamp": lambda x, min=None, max=None: jnp.clip(x, min, max),
    "reshape": lambda x, *shape: x.reshape(*shape),
    "expand": lambda x, *shape: jnp.broadcast_to(
        x, shape[0] if isinstance(shape[0], tuple) else shape
    ),
    "masked_fill": lambda x, mask, value: jnp.where(mask, value, x),
    "new_zeros": lambda x, shape: jnp.zeros(shape, x.dtype),
    "new_ones": lambda x, shape: jnp.ones(shape, x.dtype),
    "gather": lambda x, axis, index: x[places(axis, index)],
    "scatter": lambda x, axis, index, v: x.at[places(axis, index)].set(v),
    "scatter_add": lambda x, axis, index, v: x.at[places(axis, index)].add(v),
    "index_add": lambda x, axis, index, v: x.at[(slice(None),) * axis + (index,)].add(
        v
    ),
}
