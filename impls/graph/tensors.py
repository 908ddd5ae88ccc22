"""Arrays on a device of PyTorch's, to which NumPy's functions apply as to its own.

A `Tensor` implements NumPy's protocols `__array_ufunc__` (NEP 13) and
`__array_function__` (NEP 18): np.exp of one is one, on its device. So a primitive and
its rule of rounding are written once, for NumPy, and run wherever the leaves of a graph
are put. Dtypes are NumPy's, and so are the rules that promote them.

Values of types that PyTorch lacks (extended precision, objects) are computed by NumPy,
and so are the functions of `_BY_NUMPY`; np.asarray copies a tensor to NumPy. A function
that neither table has raises `Lacking`. Positions are returned as NumPy's integers.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

from gradwatch.impls.graph.engine import Foreign, as_array

DTypeLike = Any
_INTEGERS = ("bool", "uint8", "int8", "int16", "int32", "int64")
_NAMES = (*_INTEGERS, "float16", "float32", "float64")
_TORCH = {np.dtype(name): getattr(torch, name) for name in _NAMES}
_NUMPY = {there: here for here, there in _TORCH.items()}


class Lacking(NotImplementedError):
    """A function of NumPy's that tensors do not have."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} is not defined for arrays on a device: it needs a line in the"
            " tables of impls/graph/tensors.py"
        )


class Tensor(Foreign, NDArrayOperatorsMixin):
    """A torch tensor `t` that looks like NumPy's array."""

    __slots__ = ("t",)

    def __init__(self, t: torch.Tensor) -> None:
        self.t = t

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype, as NumPy's."""
        return _NUMPY[self.t.dtype]

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(self.t.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.t.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.t.numel()

    @property
    def base(self) -> Any:
        """The tensor of which this is a view, or None."""
        return self.t._base

    @property
    def flags(self) -> Any:
        """Whether elements are contiguous."""
        return types.SimpleNamespace(c_contiguous=self.t.is_contiguous())

    @property
    def flat(self) -> Tensor:
        """All elements in order."""
        return Tensor(self.t.reshape(-1))

    @property
    def T(self) -> Tensor:  # noqa: N802  # NumPy calls it so
        """The axes in reverse order."""
        return self.transpose()

    def __array__(self, dtype: DTypeLike = None, copy: bool | None = None) -> Any:
        return np.asarray(self.t.cpu().numpy(), dtype)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, **how: Any
    ) -> Any:
        return _ufunc(ufunc, method, inputs, **how)

    def __array_function__(
        self, function: Callable[..., Any], types: Any, args: Any, how: Any
    ) -> Any:
        ours = _FUNCTIONS.get(function)
        if ours is None and function not in _BY_NUMPY:
            raise Lacking(f"{function.__module__}.{function.__name__}")
        if ours is None or _is_wide([*args, *how.values()]):
            return _by_numpy(function, self.t.device, *args, **how)
        return ours(*args, **how)

    def astype(self, dtype: DTypeLike, copy: bool = True) -> Any:
        """The values in another dtype; NumPy's array, where PyTorch has none of it."""
        if (there := _TORCH.get(np.dtype(dtype))) is None:
            return np.asarray(self).astype(dtype)
        return Tensor(self.t.to(there, copy=copy))

    def reshape(self, *shape: Any) -> Tensor:
        """The elements in another shape."""
        return Tensor(self.t.reshape(_flat(shape)))

    def transpose(self, *axes: Any) -> Tensor:
        """The axes in another order, or in reverse."""
        order = _flat(axes) if axes and axes != (None,) else range(self.ndim)[::-1]
        return Tensor(self.t.permute(*order))

    def item(self, place: int | None = None) -> Any:
        """A number of Python's."""
        return (self.t if place is None else self.t.reshape(-1)[place]).item()

    def tolist(self) -> Any:
        """Numbers of Python's."""
        return self.t.tolist()

    def __getattr__(self, name: str) -> Any:
        """Methods that are functions of NumPy's, too: x.sum(0) is np.sum(x, 0)."""
        if name not in _METHODS:
            raise AttributeError(name)
        return functools.partial(getattr(np, name), self)

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(p, slice) and (p.step or 1) < 0 for p in parts):
            return _by_numpy(operator.getitem, self.t.device, self, index)
        return Tensor(self.t[_index(index, self.t.device)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.t[_index(index, self.t.device)] = _torch(value, self.dtype, self.t.device)

    def __len__(self) -> int:
        return len(self.t)

    def __iter__(self) -> Iterator[Tensor]:
        return map(Tensor, self.t)

    def __bool__(self) -> bool:
        return bool(self.t)

    def __float__(self) -> float:
        return float(self.t)

    def __int__(self) -> int:
        return int(self.t)

    def __index__(self) -> int:
        if self.ndim or self.dtype.kind not in "iu":
            raise TypeError("only a whole number is a position")
        return int(self.t)

    def __format__(self, how: str) -> str:
        return format(self.item(), how)

    def __repr__(self) -> str:
        return f"Tensor({self.t})"


_METHODS = frozenset(
    ("sum", "any", "all", "max", "min", "argmax", "prod", "cumsum", "ravel", "copy")
) | {"squeeze", "nonzero", "clip", "mean", "swapaxes", "repeat", "argsort"}


def put(array: Any, device: str) -> Any:
    """The array on a device; as it is, if PyTorch has no such dtype."""
    if isinstance(array, Tensor) or array.dtype not in _TORCH:
        return array
    there = torch.device(device)
    return Tensor(_torch(array, array.dtype, there).to(there))


def _flat(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Lengths or axes, given one by one or as a tuple."""
    inner = given[0] if len(given) == 1 and np.iterable(given[0]) else given
    return tuple(int(n) for n in inner)


def _torch(value: Any, dtype: Any, device: torch.device) -> torch.Tensor:
    """A tensor of a dtype of NumPy's; a single number stays on the CPU for kernels."""
    there = _TORCH[np.dtype(dtype)]
    if isinstance(value, Tensor):
        return value.t.to(there)
    held = np.asarray(value)
    if not held.ndim:
        return torch.tensor(held.item(), dtype=there, device="cpu")
    if not held.flags.writeable or min(held.strides) < 0 or held.dtype not in _TORCH:
        held = np.array(held, dtype)
    return torch.from_numpy(held).to(device, there)


def _index(index: Any, device: torch.device) -> Any:
    if isinstance(index, tuple):
        return tuple(_index(part, device) for part in index)
    if isinstance(index, Tensor):
        return index.t
    if isinstance(index, (np.ndarray, list)):
        held = np.asarray(index)
        return _torch(held, bool if held.dtype == bool else np.int64, device)
    return int(index) if isinstance(index, np.integer) else index


def _is_wide(value: Any) -> bool:
    """Whether PyTorch has no such dtype."""
    if isinstance(value, (list, tuple)):
        return any(map(_is_wide, value))
    if isinstance(value, (np.ndarray, np.generic)):
        return value.dtype not in _TORCH
    is_dtype = isinstance(value, (type, np.dtype))
    return is_dtype and np.dtype(value) not in _TORCH


def _device(*values: Any) -> torch.device:
    """The device of the first tensor, also inside lists."""
    for value in values:
        if isinstance(value, Tensor):
            return value.t.device
        if isinstance(value, (list, tuple)):
            with contextlib.suppress(TypeError):
                return _device(*value)
    raise TypeError("no tensor")


def _here(value: Any) -> Any:
    """A value with NumPy's arrays in place of tensors."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_here, value))
    return np.asarray(value) if isinstance(value, Tensor) else value


def _by_numpy(function: Any, device: torch.device, *args: Any, **how: Any) -> Any:
    """The result of NumPy's function for copies; floats go back to the device."""
    made = function(*map(_here, args), **{n: _here(v) for n, v in how.items()})

    def back(value: Any) -> Any:
        floats = isinstance(value, np.ndarray) and value.dtype == np.float64
        return put(value, str(device)) if floats else value

    if hasattr(made, "_make"):  # of linalg.eigh
        return made._make(map(back, made))
    return (*map(back, made),) if isinstance(made, tuple) else back(made)


# Functions of elements --------------------------------------------------------------


def _frexp(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    part, exponent = torch.frexp(x)
    return part, torch.where(torch.isfinite(x), exponent, 0)


def _power_of_two(n: torch.Tensor) -> torch.Tensor:
    """2^n by its bits, for -1022 <= n <= 1023."""
    return ((n + 1023) << 52).view(torch.float64)


def _ldexp(x: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    """x 2^n; torch.ldexp takes the power in float32."""
    n = n.long().clamp(-2200, 2200)  # beyond, all is 0 or infinite
    third = n // 3
    scale = _power_of_two(third)
    return (x.double() * scale * scale * _power_of_two(n - 2 * third)).to(x.dtype)


def _matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A matrix product in float64, as products in float32 might be TF32."""
    return torch.matmul(a.double(), b.double()).to(a.dtype)


_ALIKE = (
    *("add", "subtract", "multiply", "divide", "negative", "positive", "square"),
    *("exp", "exp2", "expm1", "log", "log1p", "log2", "log10", "logaddexp"),
    *("sqrt", "reciprocal", "sin", "cos", "tan", "sinh", "cosh", "tanh"),
    *("arcsin", "arccos", "arctan", "arctan2", "arcsinh", "arccosh", "arctanh"),
    *("abs", "hypot", "copysign", "nextafter", "floor", "ceil", "trunc"),
    *("maximum", "minimum", "fmax", "fmin", "less", "less_equal"),
    *("greater", "greater_equal", "not_equal", "isnan", "isinf", "isfinite", "signbit"),
    *("logical_and", "logical_or", "logical_xor", "logical_not", "bitwise_and"),
    *("bitwise_or", "bitwise_xor"),
)
_UFUNCS: dict[Any, Callable[..., Any]] = {
    **{getattr(np, name): getattr(torch, name) for name in _ALIKE},
    np.equal: torch.eq,
    np.power: torch.pow,
    np.rint: torch.round,
    np.invert: torch.bitwise_not,
    np.logaddexp2: lambda a, b: torch.where(a == b, a + 1, torch.logaddexp2(a, b)),
    np.sign: lambda x: torch.where(x == x, torch.sign(x), x),  # nan, where it is
    np.frexp: _frexp,
    np.ldexp: _ldexp,
    np.matmul: _matmul,
}


_WHOLE = (np.abs, np.floor, np.ceil, np.trunc)
#: Functions of which PyTorch takes no single number from the CPU beside a GPU's tensor.
_STRICT = {
    *(np.logaddexp, np.logaddexp2, np.nextafter),
    *(np.logical_and, np.logical_or, np.logical_xor),
}


@functools.lru_cache(maxsize=1024)
def _dtypes(ufunc: np.ufunc, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    """The dtypes in which NumPy would compute, and those of its results."""
    return tuple(ufunc.resolve_dtypes((*kinds, *[None] * ufunc.nout)))


def _kind(value: Any) -> Any:
    """A value's dtype; for a Python number its type, which any dtype overrides."""
    if type(value) in (int, float):
        return type(value)
    return value.dtype if hasattr(value, "dtype") else np.dtype(type(value))


def _applied(
    ufunc: np.ufunc,
    *inputs: Any,
    out: Sequence[Any] = (),
    where: Any = True,
    dtype: Any = None,
) -> Any:
    if dtype is not None:
        inputs = tuple(as_array(x, dtype) for x in inputs)
    device = _device(*inputs, *out, where)
    dtypes = _dtypes(ufunc, tuple(map(_kind, inputs)))
    pairs = zip(inputs, dtypes, strict=False)
    given = [_torch(x, dtype, device) for x, dtype in pairs]
    function, target = _UFUNCS[ufunc], out[0].t if out else None
    if ufunc in _STRICT:
        given = [x.to(device) for x in given]
    if ufunc in _WHOLE and given[0].dtype is torch.bool:  # which PyTorch refuses
        function = torch.clone
    writes = isinstance(function, types.BuiltinFunctionType) and where is True
    if target is not None and writes and _NUMPY[target.dtype] == dtypes[-1]:
        function(*given, out=target)
        return out[0]
    made = function(*given)
    if ufunc.nout > 1:
        return tuple(map(Tensor, made))
    if where is not True:
        rest = torch.zeros_like(made) if target is None else target
        made = torch.where(_torch(where, bool, device), made, rest)
    if target is None:
        return Tensor(made.to(device, _TORCH[dtypes[-1]]))
    target.copy_(made)
    return out[0]


def _ufunc(ufunc: np.ufunc, method: str, inputs: tuple[Any, ...], **how: Any) -> Any:
    """The result of a ufunc or its method for tensors; SciPy's are run in NumPy."""
    out, ours = how.pop("out", ()), _REDUCED.get((ufunc, method))
    if method == "__call__" and ufunc in _UFUNCS:
        ours = functools.partial(_applied, ufunc)
    in_place = method == "at" and isinstance(inputs[0], np.ndarray)
    if ours is None and not in_place and getattr(np, ufunc.__name__, None) is ufunc:
        name = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
        raise Lacking(f"numpy.{name}")
    in_numpy = any(isinstance(x, np.ndarray) for x in out)
    if ours is not None and not in_numpy and not _is_wide([*inputs, *how.values()]):
        first = {} if method in ("__call__", "at") else {"axis": 0}
        return ours(*inputs, out=out, **{**first, **how})
    device = _device(*inputs, *out, how.get("where"))
    made = _by_numpy(getattr(ufunc, method), device, *inputs, **how)
    if out:
        out[0][...] = _here(made)
    return out[0] if out else made


# Functions of arrays ----------------------------------------------------------------


def _axes(axis: Any, ndim: int) -> list[int]:
    """A list of axes, none of them negative; all axes for None."""
    if axis is None:
        return list(range(ndim))
    return [n % ndim if ndim else n for n in (axis if np.iterable(axis) else (axis,))]


def _reduction(
    function: Callable[..., torch.Tensor], merge: np.ufunc
) -> Callable[..., Any]:
    """A reduction by PyTorch; `merge` takes its result together with `initial`."""

    def reduced(
        x: Any,
        axis: Any = None,
        dtype: Any = None,
        out: Any = (),
        keepdims: bool = False,
        initial: Any = None,
        where: Any = True,
    ) -> Any:
        if where is not True:
            x = np.where(where, x, 0 if initial is None else initial)
        t = x.t if dtype is None else x.astype(dtype, copy=False).t
        axes = _axes(axis, t.ndim)
        if initial is not None and not all(t.shape[i] for i in axes):
            lengths = [1 if i in axes else n for i, n in enumerate(t.shape)]
            made = t.new_full(lengths, initial)
            return Tensor(made if keepdims else made.squeeze(axes))
        if axes:
            made = function(t, axes, keepdim=bool(keepdims))
        else:
            made = function(t.unsqueeze(0), [0])
        if dtype is not None:
            made = made.to(t.dtype)
        found = Tensor(made) if initial is None else merge(Tensor(made), initial)
        if not out:
            return found
        out[0][...] = found
        return out[0]

    return reduced


def _prod(t: torch.Tensor, axes: Sequence[int], keepdim: bool = False) -> torch.Tensor:
    for axis in sorted(axes, reverse=True):
        t = torch.prod(t, axis, keepdim)
    return t


_sum = _reduction(torch.sum, np.add)
_max = _reduction(torch.amax, np.maximum)
_min = _reduction(torch.amin, np.minimum)
_any = _reduction(torch.any, np.logical_or)
_all = _reduction(torch.all, np.logical_and)


def _cumulative(function: Callable[..., Any]) -> Callable[..., Any]:
    def cumulative(x: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        t = x.t if dtype is None else x.astype(dtype, copy=False).t
        t, axis = (t.reshape(-1), 0) if axis is None else (t, axis)
        made = function(t, axis)
        return Tensor(made if isinstance(made, torch.Tensor) else made.values)

    return cumulative


def _add_at(total: Any, places: Any, values: Any, out: Any = ()) -> None:
    t, device = total.t, total.t.device
    at = _torch(places, np.int64, device)
    t.index_put_((at,), _torch(values, total.dtype, device), accumulate=True)


_REDUCED: dict[tuple[Any, str], Callable[..., Any]] = {
    (np.add, "reduce"): _sum,
    (np.multiply, "reduce"): _reduction(_prod, np.multiply),
    (np.maximum, "reduce"): _max,
    (np.minimum, "reduce"): _min,
    (np.logical_or, "reduce"): _any,
    (np.logical_and, "reduce"): _all,
    (np.add, "accumulate"): _cumulative(torch.cumsum),
    (np.add, "at"): _add_at,
    (np.maximum, "accumulate"): _cumulative(torch.cummax),
}


def _alike(device: torch.device, *values: Any) -> list[torch.Tensor]:
    """Tensors converted to the common dtype that NumPy would choose."""
    kinds = [v if type(v) in (int, float, bool) else _kind(v) for v in values]
    dtype = np.result_type(*kinds)
    return [_torch(v, dtype, device) for v in values]


def _where(condition: Any, *branches: Any) -> Any:
    if not branches:
        return _positions(condition)
    device = _device(condition, *branches)
    chosen = _torch(condition, bool, device)
    one, other = _alike(device, *branches)
    return Tensor(torch.where(chosen, one, other).to(device))


def _positions(x: Any) -> tuple[Any, ...]:
    """The indices of nonzero elements along each axis, as NumPy's arrays."""
    found: Any = x.t.nonzero(as_tuple=True)
    return tuple(np.asarray(Tensor(places)) for places in found)


def _joined(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def joined(arrays: Sequence[Any], axis: int | None = 0) -> Any:
        device = _device(*arrays)
        parts = [t.to(device) for t in _alike(device, *arrays)]
        if axis is None:
            parts = [t.reshape(-1) for t in parts]
        return Tensor(function(parts, axis or 0))

    return joined


def _filled(fill: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    def filled(
        like: Any, *given: Any, dtype: Any = None, shape: Any = None, **how: Any
    ) -> Any:
        there = like.t.dtype if dtype is None else _TORCH[np.dtype(dtype)]
        shape = like.shape if shape is None else _flat((shape,))
        value = map(float, (*given, *how.values()))
        return Tensor(fill(shape, *value, dtype=there, device=like.t.device))

    return filled


def _argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
    t = x.t.to(torch.uint8) if x.dtype == bool else x.t
    return Tensor(torch.argmax(t, axis, keepdim=keepdims))


def _array_equal(a: Any, b: Any, equal_nan: bool = False) -> bool:
    if np.shape(a) != np.shape(b):
        return False
    one, other = _alike(_device(a, b), a, b)
    same = one == other
    return bool((same | ((one != one) & (other != other)) if equal_nan else same).all())


def _count_nonzero(x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
    if axis is None and not keepdims:
        return int(torch.count_nonzero(x.t))
    return _sum(Tensor(x.t != 0), axis, keepdims=keepdims)


def _bincount(x: Any, weights: Any = None, minlength: int = 0) -> Any:
    """How often each number occurs, or the sums of its weights."""
    device = _device(x, weights)
    places = _torch(x, np.int64, device)
    size = max(minlength, int(places.max()) + 1 if places.numel() else 0)
    if weights is None:
        return Tensor(torch.bincount(places, minlength=size))
    total = torch.zeros(size, dtype=torch.float64, device=device)
    return Tensor(total.index_add_(0, places, _torch(weights, float, device)))


def _take_along_axis(x: Any, indices: Any, axis: int = -1) -> Any:
    device = _device(x, indices)
    t, at = (_torch(v, _kind(v), device) for v in (x, indices))
    return Tensor(torch.take_along_dim(t, at.long(), axis))


def _take(x: Any, indices: Any, axis: int) -> Any:
    return x[(*[slice(None)] * (axis % x.ndim), indices)]


def _clip(x: Any, a_min: Any = None, a_max: Any = None, out: Any = None) -> Any:
    x = x if a_min is None else np.maximum(x, a_min)
    return x if a_max is None else np.minimum(x, a_max)


def _copyto(target: Any, source: Any) -> None:
    target.t.copy_(_torch(source, _kind(source), target.t.device))


def _view(function: Callable[..., torch.Tensor]) -> Callable[..., Any]:
    """A function of PyTorch's that takes the same arguments in the same order."""
    return lambda x, *given: Tensor(function(x.t, *given))


def _broadcast_to(x: Any, shape: Any) -> Any:
    if np.broadcast_shapes(x.shape, shape) != (lengths := _flat((shape,))):
        raise ValueError(f"{x.shape} cannot be broadcast to {shape}")
    return Tensor(x.t.expand(lengths))


_FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: _where,
    np.sum: _sum,
    np.prod: _REDUCED[np.multiply, "reduce"],
    np.max: _max,
    np.min: _min,
    np.any: _any,
    np.all: _all,
    np.mean: lambda x, *axis, **how: (
        np.sum(x, *axis, **how) / (x.size / np.sum(x, *axis, **how).size)
    ),
    np.cumsum: _REDUCED[np.add, "accumulate"],
    np.argmax: _argmax,
    np.nonzero: _positions,
    np.flatnonzero: lambda x: _positions(x.flat)[0],
    np.count_nonzero: _count_nonzero,
    np.argsort: lambda x, axis=-1, kind=None: np.asarray(
        Tensor(torch.argsort(x.t, dim=axis, stable=kind == "stable"))
    ),
    np.array_equal: _array_equal,
    np.concatenate: _joined(torch.cat),
    np.stack: _joined(torch.stack),
    np.empty_like: _filled(torch.empty),
    np.zeros_like: _filled(torch.zeros),
    np.ones_like: _filled(torch.ones),
    np.full_like: _filled(torch.full),
    np.reshape: lambda x, shape: x.reshape(shape),
    np.transpose: lambda x, axes=None: x.transpose(axes),
    np.ravel: lambda x: x.flat,
    np.copy: lambda x, *_: Tensor(x.t.clone()),
    np.broadcast_to: _broadcast_to,
    np.moveaxis: _view(torch.movedim),
    np.swapaxes: _view(torch.swapaxes),
    np.flip: lambda x, axis=None: Tensor(torch.flip(x.t, _axes(axis, x.ndim))),
    np.expand_dims: _view(torch.unsqueeze),
    np.squeeze: lambda x, axis=None: Tensor(
        x.t.squeeze() if axis is None else x.t.squeeze(axis)
    ),
    np.tril: lambda x, k=0: Tensor(torch.tril(x.t, k)),
    np.triu: lambda x, k=0: Tensor(torch.triu(x.t, k)),
    np.diagonal: lambda x, offset=0, axis1=0, axis2=1: Tensor(
        torch.diagonal(x.t, offset, axis1, axis2)
    ),
    np.take: _take,
    np.take_along_axis: _take_along_axis,
    np.bincount: _bincount,
    np.clip: _clip,
    np.copyto: _copyto,
    np.linalg.norm: lambda x: np.sqrt(np.sum(x * x)),
    np.shape: lambda x: x.shape,
    np.ndim: lambda x: x.ndim,
    np.size: lambda x: x.size,
}
#: Functions that are seldom called, or for few elements.
_BY_NUMPY = {
    *(np.unique, np.argpartition, np.sort, np.searchsorted, np.median, np.allclose),
    *(np.split, np.repeat, np.roll, np.isin, np.lexsort, np.isclose),
    *(np.append, np.argwhere, np.array_split, np.broadcast_arrays),
    *(getattr(np.linalg, n) for n in ("eigh", "svd", "cond", "qr", "solve", "inv")),
    *(getattr(np.linalg, n) for n in ("cholesky", "det", "slogdet", "lstsq", "eig")),
}
