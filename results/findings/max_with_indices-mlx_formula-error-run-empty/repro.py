"""MLX 0.32.4: max_with_indices raises on a legal input

Exits 1 while the defect is there, 0 when it has gone, 2 where it cannot be run.
"""

from __future__ import annotations

import sys

try:
    import ml_dtypes
    import mlx.core as mx
    from functools import partial
    import numpy as np
except ImportError as error:
    print(error)
    sys.exit(2)


class Names:
    """What a formula may call: names of a door's own, a module's, or compositions.

    Those in `composed` are compositions though the module has them.
    """

    def __init__(self, module: Any, *composed: str, **own: Any) -> None:
        self._module, self._composed = module, composed
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        here = hasattr(self._module, name) and name not in self._composed
        if here or name not in COMPOSED:
            return getattr(self._module, name)
        return partial(COMPOSED[name], self)


def sliding_windows(
    xp: Any,
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
    count, lead = len(sizes), len(x.shape) - len(sizes)
    steps, pads, gaps = (
        (n,) * count if isinstance(n, int) else n for n in (stride, padding, dilation)
    )
    widths = [(0, 0)] * lead + [(p, p) for p in pads]
    x = xp.pad(x, widths, "constant", constant_values=value) if any(pads) else x
    for i in reversed(range(count)):  # an axis becomes two: positions, places in each
        last = x.shape[lead + i] - gaps[i] * (sizes[i] - 1)
        places = np.arange(0, last, steps[i])[:, None] + gaps[i] * np.arange(sizes[i])
        x = xp.take(x, places, axis=lead + i)
    split = [lead + 2 * i + part for part in (0, 1) for i in range(count)]
    return xp.permute_dims(x, (*range(lead), *split))


def take(xp: Any, x: Any, indices: Any, *, axis: int = 0) -> Any:
    """Elements of an axis by their positions."""
    return x[(slice(None),) * (axis % len(x.shape)) + (indices,)]


def take_along_axis(xp: Any, x: Any, indices: Any, *, axis: int = -1) -> Any:
    """Elements of an axis, picked separately at each place of the other axes."""
    places = list(np.ix_(*map(np.arange, indices.shape)))
    places[axis] = indices
    return x[tuple(places)]


COMPOSED: dict[str, Callable[..., Any]] = {
    "sliding_windows": sliding_windows,
    "take": take,
    "take_along_axis": take_along_axis,
    "exp2": lambda xp, x: 2.0**x,
    "concat": lambda xp, arrays, axis=0: xp.concatenate(arrays, axis=axis),
    "permute_dims": lambda xp, x, axes: xp.transpose(x, axes),
    "matrix_transpose": lambda xp, x: xp.swapaxes(x, -1, -2),
    "cumulative_sum": lambda xp, x, axis=0: xp.cumsum(x, axis=axis),
    "astype": lambda xp, x, dtype: x.astype(dtype),
}


mx.set_default_device(mx.cpu)


def array(tensor: Any) -> Any:
    """A copy; NumPy reads no bfloat16 of MLX's, but float32 holds it exactly."""
    narrow = tensor.dtype == mx.bfloat16
    wide = np.array(tensor.astype(mx.float32) if narrow else tensor)
    return wide.astype(ml_dtypes.bfloat16) if narrow else wide


def vjp(call: Any, wanted: Any, others: Any) -> tuple[Any, Any]:
    """What a call returns, and its backward, which MLX runs with another forward."""
    _, named = call(wanted, others)

    def floating(*tensors: Any) -> list[Any]:
        return list(call(tensors, others)[0])

    return named, lambda dys: mx.vjp(floating, wanted, list(dys))[1]


def tensor(array: Any, dtype: str) -> Any:
    """A copy."""
    names = {"bool": mx.bool_}
    return mx.array(np.array(array), names.get(dtype) or getattr(mx, dtype))


def take(x: Any, indices: Any, *, axis: int = 0) -> Any:
    """Elements of an axis; MLX takes no positions of NumPy's."""
    return mx.take(x, mx.array(indices), axis)


def formula(xp, x, *, axis):
    return xp.max(x, axis=axis), xp.argmax(x, axis=axis)


first = Names(mx, take=take)
tensor = tensor
array = array
vjp = vjp
nan, inf = np.nan, np.inf
ATTRIBUTES = {'axis': -1}
INPUTS = {
    "x": np.zeros((0, 3, 4), 'float32'),
}
COTANGENTS = [
    np.zeros((0, 3), 'float32'),
    None,
]


def compute():
    """Outputs, gradients and state by name."""
    arrays = {name: np.array(array) for name, array in INPUTS.items()}
    cotangents = [np.array(dy) for dy in COTANGENTS if dy is not None]
    tensors = {
        name: tensor(a, a.dtype.name if a.dtype.kind in "biu" else "float32")
        for name, a in arrays.items()
    }
    wanted = [tensors.pop(name) for name in ['x']]

    def call(wanted, others):
        given = {**others, **dict(zip(['x'], wanted))}
        y = formula(first, *(given[name] for name in ['x']), **ATTRIBUTES)
        y = y if isinstance(y, (tuple, list)) else [y]
        named = dict(zip(['values', 'indices'], y))
        return tuple(named[name] for name in ['values']), named

    named, pull = vjp(call, wanted, tensors)
    gradients = pull(tuple(tensor(dy, "float32") for dy in cotangents))
    results = {**named, **dict(zip(['dx'], gradients))}
    return {n: None if t is None else array(t) for n, t in results.items()}


try:
    results = compute()
except Exception as error:
    print(f"raises {type(error).__name__}: {error}")
    sys.exit(1)
