"""MLX 0.32.4: masked_attention gives dk that is not finite, in float32

Exits 1 while the defect is there, 0 when it has gone, 2 where it cannot be run.
"""

from __future__ import annotations

import sys

try:
    import math
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


def formula(xp, q, k, v, mask):
    s = xp.matmul(q, xp.matrix_transpose(k)) / math.sqrt(q.shape[-1])
    s = xp.where(mask, s, -math.inf)
    e = xp.exp(s - xp.stop_gradient(xp.max(s, axis=-1, keepdims=True)))
    return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), v)


first = Names(mx, take=take)
tensor = tensor
array = array
vjp = vjp
nan, inf = np.nan, np.inf
ATTRIBUTES = {}
INPUTS = {
    "q": np.array([[[[inf, -0.12583713, 0.96713746, 1.9473848],
                     [-1.2599508, -0.77463007, -1.5217304,
                      -0.25662187],
                     [1.0512562, 1.169555, 1.8134264, -0.12902352],
                     [-1.0128673, -0.6801327, -0.67384565,
                      0.14286295],
                     [-1.1382565, 0.15112996, 0.4431344, 1.9509352]],
                    [[-0.24838153, -1.0446405, -2.0106087,
                      -0.93226194],
                     [1.7760129, 0.05895977, 0.83979905, 0.8990667],
                     [1.8423864, 0.64442426, 0.4567119, 1.1140101],
                     [0.91694576, -2.315952, -0.41982907, 1.9377642],
                     [0.23234347, -0.099693365, -0.73252887,
                      0.5020728]],
                    [[0.5795317, -0.8446559, 0.29874203, 0.5743283],
                     [-1.5801284, -2.1948266, 0.06987641,
                      -0.83436954],
                     [0.053902254, 0.94957674, 1.5905961,
                      -0.38605893],
                     [-0.13549472, -0.36952654, 0.23005699,
                      0.15440641],
                     [0.14775029, 1.7343804, -0.8365285, nan]]]], "float32"),
    "k": np.array([[[[0.7916287, -1.2286029, -0.0765417, -0.9494519],
                     [2.5158992, 0.10229698, 0.6415845, -0.6401852],
                     [-0.041612145, -0.13628706, 0.8204447,
                      0.31579486],
                     [0.4686669, -1.4822403, -1.0598122,
                      -0.02357333],
                     [1.16852, 1.139535, 1.1016351, 0.5666051]],
                    [[-1.303502, -1.0874444, 1.1360284, 0.2315841],
                     [0.9966389, -0.91712624, -0.19557916,
                      1.3140945],
                     [-0.812369, 1.2103535, 0.9595544, -0.30353746],
                     [-0.7548835, 0.56386876, 1.098814, -0.39729223],
                     [-0.6354098, -1.7077491, 0.5117368, 0.32932258]],
                    [[0.13245432, 1.6696732, 1.6165212, -0.96542716],
                     [1.091545, 0.04564419, 0.53613436, -0.338945],
                     [-0.9453589, -1.3162699, -0.46018162,
                      0.34019294],
                     [-1.2962573, -0.12383943, -0.25862804,
                      -0.5466051],
                     [-0.06852793, -1.040077, 0.18153068, 0.3600569]]]], "float32"),
    "v": np.array([[[[-1.3967246, 0.37241068, -0.965659],
                     [1.9189061, 0.19254322, 0.46046874],
                     [-0.62499887, -0.101976335, -0.2174814],
                     [-0.54604524, 0.08830813, 0.6140066],
                     [-2.0725193, -0.044280898, -1.1856114]],
                    [[-0.16642427, 0.76699156, 0.87413496],
                     [-1.4333788, -1.3953089, -0.63775235],
                     [-0.43531698, -0.45506987, 0.99880826],
                     [-2.631765, 0.7242816, 1.3788831],
                     [-2.142995, 0.32836798, -0.42765057]],
                    [[0.21394792, 0.9353724, 1.1525583],
                     [1.1030732, -1.5658817, -0.775889],
                     [0.0496308, -0.42325175, -0.17934872],
                     [0.2634616, -0.8856921, 0.41684824],
                     [0.21880667, 0.4320954, 0.5743455]]]], "float32"),
    "mask": np.array([[ True, False,  True,  True, False],
                      [ True,  True,  True,  True, False],
                      [False, False,  True, False,  True],
                      [False,  True,  True, False, False],
                      [ True, False, False, False,  True]], "bool"),
}
COTANGENTS = [
    np.array([[[[-0.07694794, -1.2141265, -1.7352583],
                [-0.47151306, -0.487955, 0.07387602],
                [0.57682055, 3.0040352, -0.3119363],
                [-0.5951772, -0.32240662, 0.6816249],
                [-1.8982024, 2.4978654, -0.2624187]],
               [[-0.11876277, -0.7136437, 0.534543],
                [1.3350197, -1.2443463, -1.1309165],
                [0.12441525, -0.34716165, -1.2595764],
                [0.6068873, 0.31819934, 0.5601],
                [-0.19026542, 0.03437505, -0.65625286]],
               [[-0.43119326, 0.48354968, 1.2126445],
                [1.2845588, 1.1186228, 0.6985803],
                [-0.84230673, 0.9426176, -0.21950948],
                [0.87735164, 0.6994352, 2.1224399],
                [0.8553142, -1.5731317, -0.5065188]]]], "float32"),
]
RIGHT = [
    {
        "dk": (  # the exact value, and what rounding may do
            np.array([[[[nan, nan, nan, nan],
                    [nan, 0.07547714392255916, 0.08743794760475831,
                     -0.008816552226100843],
                    [nan, nan, nan, nan],
                    [nan, nan, nan, nan],
                    [nan, -0.026037956302161644,
                     -0.036298641271255754, 0.041261969484760075]],
                   [[-0.1344946145327135, 0.10976311874490882,
                     0.24008389662842392, -0.04801701626911424],
                    [0.7247535537336947, 0.036897044766984036,
                     0.34737325577636136, 0.3588284630780679],
                    [-0.34052488590956304, -0.18086927736900055,
                     -0.22532536828111066, -0.2445446119649829],
                    [-0.5660702471026247, -0.04982772216100543,
                     -0.3243616593509929, -0.3107121844836055],
                    [0.3163361938112067, 0.08403683601811301,
                     -0.03777012477268177, 0.24444534963963474]],
                   [[nan, nan, nan, nan],
                    [0.03194431466453624, 0.06955292506912489,
                     -0.032530449308806685, nan],
                    [-0.06398564155487746, 0.08585579667812455,
                     -0.10410876472500083, nan],
                    [-0.030309261941578552, -0.014979996305517647,
                     -0.003992327420456718, nan],
                    [nan, nan, nan, nan]]]], "float64"),
            np.array([[[[inf, inf, inf, inf],
                    [inf, 9.993645162437026e-08,
                     1.1614458588869469e-07, 2.312482843839489e-08],
                    [inf, inf, inf, inf],
                    [inf, inf, inf, inf],
                    [inf, 1.2512253797783242e-06,
                     2.4367630054178406e-06, 4.739286079168174e-06]],
                   [[3.8831600711918547e-07, 2.2450643870520756e-07,
                     6.551726400509857e-07, 4.197517525764647e-07],
                    [3.381573716935022e-06, 4.260397254368082e-06,
                     1.5740345630147134e-06, 4.3863520970522325e-06],
                    [1.1388059842486693e-06, 4.6677758766054767e-07,
                     5.993681567550589e-07, 7.834146976986482e-07],
                    [7.743560630067508e-07, 1.5289752807579945e-07,
                     5.984954960136373e-07, 4.909803373722658e-07],
                    [4.947654599888151e-07, 1.7764470330576426e-07,
                     2.9068211803929207e-07, 3.891845563511465e-07]],
                   [[inf, inf, inf, inf],
                    [9.49041552965834e-08, 1.9473032371914212e-07,
                     8.193267785209856e-08, inf],
                    [7.238226419224882e-07, 1.1534761823399463e-06,
                     3.1819469951132787e-07, inf],
                    [3.1386681335565243e-07, 4.394488490600021e-07,
                     3.785022239642891e-08, inf],
                    [inf, inf, inf, inf]]]], "float64"),
        ),
    },
]
LIMIT = 17.118033988749893  # radii: more is a wrong result


def compute():
    """Outputs, gradients and state by name."""
    arrays = {name: np.array(array) for name, array in INPUTS.items()}
    cotangents = [np.array(dy) for dy in COTANGENTS if dy is not None]
    tensors = {
        name: tensor(a, a.dtype.name if a.dtype.kind in "biu" else "float32")
        for name, a in arrays.items()
    }
    wanted = [tensors.pop(name) for name in ['q', 'k', 'v']]

    def call(wanted, others):
        given = {**others, **dict(zip(['q', 'k', 'v'], wanted))}
        y = formula(first, *(given[name] for name in ['q', 'k', 'v', 'mask']), **ATTRIBUTES)
        y = y if isinstance(y, (tuple, list)) else [y]
        named = dict(zip(['y'], y))
        return tuple(named[name] for name in ['y']), named

    named, pull = vjp(call, wanted, tensors)
    gradients = pull(tuple(tensor(dy, "float32") for dy in cotangents))
    results = {**named, **dict(zip(['dq', 'dk', 'dv'], gradients))}
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
