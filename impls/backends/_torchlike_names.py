"""The names that formulas use, for frameworks with PyTorch's interface."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class ArrayNames:
    """The names of the array API and of the graph engine, on top of torch's.

    Names and arguments are those of the graph engine. A function that torch has with
    the same name and arguments is passed on unchanged.
    """

    def __init__(self, F: Any) -> None:
        self.F = F

    def __getattr__(self, name: str) -> Any:
        return getattr(self.F, name)

    def exp2(self, x: Any) -> Any:
        """OneFlow 0.9.0 has no exp2."""
        return self.F.exp2(x) if hasattr(self.F, "exp2") else self.F.pow(2.0, x)

    def pow(self, a: Any, b: Any) -> Any:
        """a to the power of b."""
        return a**b

    def maximum(self, a: Any, b: Any) -> Any:
        """The larger of two elements; torch's function takes no number."""
        return self.F.maximum(a, self._beside(a, b))

    def minimum(self, a: Any, b: Any) -> Any:
        """The smaller of two elements."""
        return self.F.minimum(a, self._beside(a, b))

    def where(self, c: Any, a: Any, b: Any) -> Any:
        """Elements of a where the condition holds, of b elsewhere."""
        return self.F.where(c, self._beside(b, a), self._beside(a, b))

    def _beside(self, a: Any, b: Any) -> Any:
        """A number as a tensor like `a`: OneFlow 0.9.0 takes it to be float32."""
        if not isinstance(b, (int, float)) or isinstance(a, (int, float)):
            return b
        return self.F.tensor(b, dtype=a.dtype, device=a.device)

    def equal(self, a: Any, b: Any) -> Any:
        """Element by element; torch's own function returns one bool."""
        return a == b

    def asarray(self, value: Any, *, dtype: Any = None) -> Any:
        """A tensor as it is; anything else as a tensor."""
        return self.F.as_tensor(value, dtype=dtype)

    def astype(self, x: Any, dtype: Any) -> Any:
        """The values in another dtype."""
        names = {"int64": self.F.int64, "int32": self.F.int32, "bool": self.F.bool}
        return x.to(names.get(str(dtype), dtype))

    def sum(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Sum over an axis, several, or all."""
        axes = tuple(range(x.ndim)) if axis is None else axis
        return self.F.sum(x, dim=axes, keepdim=keepdims) if axes != () else x

    def mean(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Mean over an axis, several, or all."""
        axes = tuple(range(x.ndim)) if axis is None else axis
        return self.F.mean(x, dim=axes, keepdim=keepdims) if axes != () else x

    def max(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Largest element along an axis, several, or all."""
        if isinstance(axis, int):
            return self.F.max(x, dim=axis, keepdim=keepdims)[0]
        axes = tuple(range(x.ndim)) if axis is None else axis
        return self.F.amax(x, dim=axes, keepdim=keepdims)

    def min(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Smallest element along an axis, several, or all."""
        return -self.max(-x, axis, keepdims=keepdims)

    def prod(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Product over one axis, or all."""
        if axis is None:
            return self.F.prod(x)
        return self.F.prod(x, dim=axis, keepdim=keepdims)

    def var(
        self,
        x: Any,
        axis: Any = None,
        *,
        correction: float = 0.0,
        keepdims: bool = False,
    ) -> Any:
        """Mean square distance from the mean; torch's correction is 1."""
        return self.F.var(x, dim=axis, correction=correction, keepdim=keepdims)

    def std(self, x: Any, axis: Any = None, **options: Any) -> Any:
        """Square root of the variance."""
        return self.F.sqrt(self.var(x, axis, **options))

    def logsumexp(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """log(sum(exp(x)))."""
        axes = tuple(range(x.ndim)) if axis is None else axis
        return self.F.logsumexp(x, dim=axes, keepdim=keepdims)

    def argmax(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Index of the largest element along an axis, or of all."""
        return self.F.argmax(x, dim=axis, keepdim=keepdims)

    def cumulative_sum(
        self, x: Any, axis: int = 0, *, include_initial: bool = False
    ) -> Any:
        """Sums of the elements up to each one."""
        y = self.F.cumsum(x, dim=axis)
        if not include_initial:
            return y
        return self.F.cat([self.F.zeros_like(x.narrow(axis, 0, 1)), y], dim=axis)

    def cumulative_prod(self, x: Any, axis: int = 0) -> Any:
        """Products of the elements up to each one."""
        return self.F.cumprod(x, dim=axis)

    def permute_dims(self, x: Any, axes: tuple[int, ...]) -> Any:
        """The axes in another order."""
        return self.F.permute(x, axes)

    def broadcast_to(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Copies along new axes and along those of length 1."""
        return x.expand(*shape)

    def expand_dims(self, x: Any, axis: int = 0) -> Any:
        """A new axis of length 1."""
        return self.F.unsqueeze(x, axis)

    def matrix_transpose(self, x: Any) -> Any:
        """The last two axes exchanged."""
        return self.F.transpose(x, -2, -1)

    def concat(self, arrays: Any, axis: int = 0) -> Any:
        """Arrays one after another along an axis."""
        return self.F.cat(tuple(arrays), dim=axis)

    def stack(self, arrays: Any, axis: int = 0) -> Any:
        """Arrays of one shape along a new axis."""
        return self.F.stack(tuple(arrays), dim=axis)

    def unstack(self, x: Any, *, axis: int = 0) -> Any:
        """The parts of an array along an axis."""
        return self.F.unbind(x, dim=axis)

    def flip(self, x: Any, axis: Any = None) -> Any:
        """Elements in reverse order along axes, or along all."""
        axes = tuple(range(x.ndim)) if axis is None else axis
        return self.F.flip(x, (axes,) if isinstance(axes, int) else axes)

    def roll(self, x: Any, shift: Any, axis: Any = None) -> Any:
        """Elements moved along axes; those at the end move to the start."""
        return self.F.roll(x, shift, axis)

    def repeat(self, x: Any, repeats: Any, *, axis: Any = None) -> Any:
        """Each element several times."""
        return self.F.repeat_interleave(x, repeats, dim=axis)

    def tril(self, x: Any, *, k: int = 0) -> Any:
        """The elements up to the k-th diagonal, zeros above."""
        return self.F.tril(x, diagonal=k)

    def triu(self, x: Any, *, k: int = 0) -> Any:
        """The elements from the k-th diagonal on, zeros below."""
        return self.F.triu(x, diagonal=k)

    def diagonal(self, x: Any, *, offset: int = 0) -> Any:
        """The diagonal of the last two axes."""
        return self.F.diagonal(x, offset, -2, -1)

    def take(self, x: Any, indices: Any, *, axis: int = 0) -> Any:
        """Elements of an axis by their positions."""
        return x[(slice(None),) * (axis % x.ndim) + (indices,)]

    def take_along_axis(self, x: Any, indices: Any, *, axis: int = -1) -> Any:
        """Elements of an axis, picked separately at each place of the other axes."""
        return self.F.gather(x, axis, self.F.as_tensor(indices))

    def gather(self, *sources: Any, index: Any) -> Any:
        """Elements picked by their flat position; -1 gives 0."""
        flat = [source.reshape(-1) for source in sources]
        return self.F.cat([*flat, flat[0].new_zeros(1)])[self.F.as_tensor(index)]

    def scatter_add(self, values: Any, *, index: Any, shape: tuple[int, ...]) -> Any:
        """Zeros of a shape, to which each value is added at its flat position."""
        count = math.prod(shape)
        places = self.F.as_tensor(index).reshape(-1) % (count + 1)  # -1 is past the end
        whole = values.new_zeros(count + 1)
        return whole.index_add(0, places, values.reshape(-1))[:-1].reshape(shape)

    def put(self, values: Any, *, index: Any, shape: tuple[int, ...]) -> Any:
        """Zeros of a shape, to which the values are added at [index]."""
        places = self.F.arange(math.prod(shape)).reshape(shape)[index]
        return self.scatter_add(values, index=places, shape=shape)

    def pad(
        self, x: Any, width: Any, mode: str = "constant", *, value: float = 0.0
    ) -> Any:
        """A border around an array."""
        sides = [(width, width)] * x.ndim if isinstance(width, int) else list(width)
        flat = [n for pair in reversed(sides) for n in pair]
        if mode == "constant":
            return self.F.nn.functional.pad(x, flat, value=value)
        for axis, (before, after) in enumerate(sides):
            n = x.shape[axis]
            places = np.pad(np.arange(n), (before, after), mode=mode)  # type: ignore[call-overload]  # the mode is np.pad's
            x = self.take(x, self.F.as_tensor(places), axis=axis)
        return x

    def sliding_windows(
        self,
        x: Any,
        size: Any,
        *,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        value: float = 0.0,
    ) -> Any:
        """The windows of a convolution or a pooling: (..., *positions, *size)."""
        sizes = (size,) if isinstance(size, int) else tuple(size)
        every = [
            (n,) * len(sizes) if isinstance(n, int) else n
            for n in (stride, padding, dilation)
        ]
        lead = x.ndim - len(sizes)
        x = self.pad(x, [(0, 0)] * lead + [(p, p) for p in every[1]], value=value)
        for axis, (n, step, gap) in enumerate(
            zip(sizes, every[0], every[2], strict=True)
        ):
            x = x.unfold(lead + axis, (n - 1) * gap + 1, step)[..., ::gap]
        return x

    def tensordot(self, a: Any, b: Any, *, axes: Any = 2) -> Any:
        """Products summed over the last axes of a and the first of b, or over pairs."""
        return self.F.tensordot(a, b, dims=axes)

    def vecdot(self, a: Any, b: Any, *, axis: int = -1) -> Any:
        """Sum of products along an axis."""
        return self.F.sum(a * b, dim=axis)

    def sum_to(self, x: Any, *, shape: tuple[int, ...]) -> Any:
        """Sum over the axes along which an input of this shape was copied."""
        return x.sum_to_size(shape)

    def stop_gradient(self, x: Any) -> Any:
        """The same values, as a constant."""
        return x.detach()
