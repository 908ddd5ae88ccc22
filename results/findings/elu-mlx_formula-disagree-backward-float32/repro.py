"""MLX 0.32.4: elu gives wrong dx in float32

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


def formula(xp, x, *, alpha):
    below = xp.where(x > 0.0, -x, x)  # never above zero
    return xp.where(x > 0.0, x, alpha * xp.expm1(below))


first = Names(mx, take=take)
tensor = tensor
array = array
vjp = vjp
nan, inf = np.nan, np.inf
ATTRIBUTES = {'alpha': 1.0}
INPUTS = {
    "x": np.array([[[-2056.3975, 533.1081, 640.03613, -805.5636],
                    [500.35013, 811.5864, 947.6652, 350.15994],
                    [140.45395, -433.98245, -740.45984, 963.30804]],
                   [[233.96802, -468.42563, -19.608055, -1194.7855],
                    [-1659.4591, -826.68646, -1762.9835, 214.00838],
                    [-1071.2805, 216.40395, 273.20993, 255.05107]]], "float32"),
}
COTANGENTS = [
    np.array([[[-0.26889244, 0.19080254, -0.022699712, 1.5111014],
               [-0.82226753, 0.18360914, -0.34808415, 2.4233098],
               [0.952701, -0.6648588, 1.3208253, -0.021480858]],
              [[-1.3493195, -0.683393, 0.46420148, 0.1916437],
               [-0.7578668, -0.3084176, 1.7079189, 1.4750737],
               [-0.13480775, -1.2114067, -1.5656768, 1.4072366]]], "float32"),
]
RIGHT = [
    {
        "dx": (  # the exact value, and what rounding may do
            np.array([[[0.0, 0.19080254435539246, -0.022699711844325066,
                    0.0],
                   [-0.8222675323486328, 0.18360914289951324,
                    -0.34808415174484253, 2.423309803009033],
                   [0.9527009725570679, -2.2209823960693477e-189,
                    3.5e-322, -0.021480858325958252]],
                  [[-1.3493194580078125, -2.5119142922505468e-204,
                    1.4159123953372537e-09, 0.0],
                   [0.0, 0.0, 0.0, 1.4750736951828003],
                   [0.0, -1.2114067077636719, -1.5656768083572388,
                    1.4072365760803223]]], "float64"),
            np.array([[[0.0, 2.2745435799454437e-08,
                    2.706016527009794e-09, 0.0],
                   [9.802192853453463e-08, 2.1887915520848265e-08,
                    4.149486451067922e-08, 2.888810405162334e-07],
                   [1.1357080630440852e-07, 1.1754943530118164e-38,
                    1.1754943530118164e-38, 2.560717864748176e-09]],
                  [[1.6085141426576565e-07, 1.1754943530118164e-38,
                    4.219748605722037e-16, 0.0],
                   [0.0, 0.0, 0.0, 1.7584248756531944e-07],
                   [0.0, 1.4441093325854453e-07,
                    1.866432203380512e-07, 1.6775567277687843e-07]]], "float64"),
        ),
    },
]
LIMIT = 16.5  # radii: more is a wrong result


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
