"""Paddle 3.3.1: norm gives y that is not finite, in float32

Exits 1 while the defect is there, 0 when it has gone, 2 where it cannot be run.
"""

from __future__ import annotations

import sys

try:
    import paddle
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


paddle.set_device("cpu")


def reduction(name: str) -> Any:
    """A reduction with the arguments of the array API."""

    def reduce(x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        axes = list(axis) if isinstance(axis, tuple) else axis
        return getattr(paddle, name)(x, axis=axes, keepdim=keepdims)

    return reduce


def beside(like: Any, b: Any) -> Any:
    """A number as a tensor of the other operand's dtype."""
    return paddle.to_tensor(b, like.dtype) if isinstance(b, (int, float)) else b


def pad(x: Any, widths: Any, mode: str, *, constant_values: float) -> Any:
    """A border around a tensor."""
    flat = [n for pair in widths for n in pair]
    return paddle.nn.functional.pad(x, flat, mode, constant_values)


def vjp(call: Any, wanted: Any, others: Any) -> tuple[Any, Any]:
    """What a call returns, and its backward."""
    for tensor in wanted:
        tensor.stop_gradient = False
    floating, named = call(wanted, others)
    grad = partial(paddle.grad, list(floating), wanted, retain_graph=True)
    return named, lambda dys: grad(list(dys), allow_unused=True)


NAMES = {n: reduction(n) for n in ("max", "sum", "mean", "prod", "logsumexp", "argmax")}


NAMES |= {"pad": pad, "expand_dims": paddle.unsqueeze}


NAMES["maximum"] = lambda a, b: paddle.maximum(a, beside(a, b))


NAMES["where"] = lambda c, a, b: paddle.where(c, beside(b, a), beside(a, b))


NAMES["stop_gradient"] = lambda x: x.detach()


def formula(xp, x, *, axis):
    squares = xp.sum(x * x, axis=axis)
    some = xp.where(squares == 0.0, 1.0, squares)
    return xp.where(squares == 0.0, 0.0, xp.sqrt(some))


first = Names(paddle, 'take', **NAMES)
tensor = lambda array, dtype: paddle.to_tensor(np.array(array), dtype)
array = lambda tensor: np.array(tensor.detach().numpy())
vjp = vjp
nan, inf = np.nan, np.inf
ATTRIBUTES = {'axis': 1}
INPUTS = {
    "x": np.array([[[inf, 0.2909114, 0.98829496, 0.22751896],
                    [0.8870489, -0.4257746, -0.44715878, -1.2866441],
                    [-0.071576, -1.1384323, -0.92856383, -0.4623473]],
                   [[0.08238866, 0.40745875, 0.27959874, 0.9809128],
                    [1.0320098, -1.4225607, -1.3960205, 1.6977808],
                    [-1.0196602, -1.0489078, 0.39152154, nan]]], "float32"),
}
COTANGENTS = [
    np.array([[-0.88988596, -0.707192, 1.7341776, -2.3953967],
              [0.65729237, 0.39475828, 0.38095143, 0.50241154]], "float32"),
]
RIGHT = [
    {
        "y": (  # the exact value, and what rounding may do
            np.array([[inf, 1.2497765721308982, 1.427903601904575,
                   1.3859952905072235],
                  [1.453113620882938, 1.8138106403752907,
                   1.4765967291624302, nan]], "float64"),
            np.array([[0.0, 1.489850149818845e-07, 1.702194170272529e-07,
                   1.652235557344186e-07],
                  [1.7322468624011792e-07, 2.1622313256349872e-07,
                   1.7602409160333106e-07, inf]], "float64"),
        ),
    },
]
LIMIT = 16.866025403784437  # radii: more is a wrong result


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
        named = dict(zip(['y'], y))
        return tuple(named[name] for name in ['y']), named

    named, pull = vjp(call, wanted, tensors)
    gradients = pull(tuple(tensor(dy, "float32") for dy in cotangents))
    results = {**named, **dict(zip(['dx'], gradients))}
    return {n: None if t is None else array(t) for n, t in results.items()}


def compare(tensor, got, exact, radius):
    """Largest error in rounding radii, and what to say of it."""
    dtype = "float32" if exact.dtype.kind == "f" else None
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
