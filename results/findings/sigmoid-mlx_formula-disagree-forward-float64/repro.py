"""MLX 0.32.4: sigmoid gives wrong y in float64

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


def _permuted(array: Array) -> Array:
    return np.array(array, order="F")


def formula(xp, x):
    return xp.sigmoid(x)


first = Names(mx, take=take)
tensor = tensor
array = array
vjp = vjp
nan, inf = np.nan, np.inf
ATTRIBUTES = {}
INPUTS = {
    "x": np.array([-0.002], "float64"),
}
COTANGENTS = [
    np.array([0.0], "float64"),
]
RIGHT = [
    {
        "y": (  # the exact value, and what rounding may do
            np.array([0.4995000001666666], "float64"),
            np.array([5.548271804779714e-17], "float64"),
        ),
    },
]
LIMIT = 16.5  # radii: more is a wrong result


def compute():
    """Outputs, gradients and state by name."""
    arrays = {name: _permuted(array) for name, array in INPUTS.items()}
    cotangents = [np.array(dy) for dy in COTANGENTS if dy is not None]
    tensors = {
        name: tensor(a, a.dtype.name if a.dtype.kind in "biu" else "float64")
        for name, a in arrays.items()
    }
    wanted = [tensors.pop(name) for name in ['x']]

    def call(wanted, others):
        given = {**others, **dict(zip(['x'], wanted))}
        y = formula(first, *(given[name] for name in ['x']), **ATTRIBUTES)
        y = y if isinstance(y, (tuple, list)) else [y]
        named = dict(zip(['y'], y))
        return tuple(named[name] for name in ['y']), named

    named, pull = vjp(call, wanted, tensors)
    gradients = pull(tuple(tensor(dy, "float64") for dy in cotangents))
    results = {**named, **dict(zip(['dx'], gradients))}
    return {n: None if t is None else array(t) for n, t in results.items()}


def compare(tensor, got, exact, radius):
    """Largest error in rounding radii, and what to say of it."""
    dtype = "float64" if exact.dtype.kind == "f" else None
    if got is None or got.shape != exact.shape or dtype not in (None, got.dtype):
        told = None if got is None else f"{got.shape} {got.dtype}"
        return np.inf, f"{tensor} is {told}, due is {exact.shape} {dtype or 'int'}"
    if not got.size:
        return 0.0, f"{tensor} is empty"
    with np.errstate(all="ignore"):
        judged = ~np.isnan(exact) & np.isfinite(radius)  # an infinity may be due
        ratio = np.where(judged & (got != exact), np.abs(got - exact) / radius, 0.0)
        finite = np.isfinite(got) & np.isfinite(exact)
        ratio = np.where(judged & (got != exact) & ~finite, np.inf, ratio)
    i = np.unravel_index(np.argmax(ratio), ratio.shape)
    told = f"{tensor}{[int(k) for k in i]}: exact {exact[i]}, got {got[i]}"
    return ratio[i], f"{told}, {ratio[i]:.3g} rounding radii"


try:
    results = compute()
except Exception as error:
    print(f"raises {type(error).__name__}: {error}")
    sys.exit(1)
ways = [[compare(n, results[n], *right[n]) for n in right] for right in RIGHT]
ratio, told = min(max(way) for way in ways)
print(told)
sys.exit(1 if ratio > LIMIT else 0)
