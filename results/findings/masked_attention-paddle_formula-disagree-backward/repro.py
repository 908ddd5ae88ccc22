"""Paddle 3.3.1: masked_attention gives wrong dv

Exits 1 while the defect is there, 0 when it has gone, 2 where it cannot be run.
"""

from __future__ import annotations

import sys

try:
    import math
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


def formula(xp, q, k, v, mask):
    s = xp.matmul(q, xp.matrix_transpose(k)) / math.sqrt(q.shape[-1])
    s = xp.where(mask, s, -math.inf)
    e = xp.exp(s - xp.stop_gradient(xp.max(s, axis=-1, keepdims=True)))
    return xp.matmul(e / xp.sum(e, axis=-1, keepdims=True), v)


first = Names(paddle, 'take', **NAMES)
tensor = lambda array, dtype: paddle.to_tensor(np.array(array), dtype)
array = lambda tensor: np.array(tensor.detach().numpy())
vjp = vjp
nan, inf = np.nan, np.inf
ATTRIBUTES = {}
INPUTS = {
    "q": np.array([[[[0.2],
                     [-0.0],
                     [-0.4],
                     [-0.0]],
                    [[0.0],
                     [0.4],
                     [-0.0],
                     [-0.0]],
                    [[-1.0],
                     [-0.1],
                     [-0.0],
                     [-0.9]],
                    [[0.6],
                     [-0.6],
                     [-0.0],
                     [0.3]]],
                   [[[0.0],
                     [-0.0],
                     [0.0],
                     [-1.0]],
                    [[-0.05],
                     [0.0],
                     [-0.08],
                     [-0.0]],
                    [[0.04],
                     [0.0],
                     [0.9],
                     [-0.0]],
                    [[0.7],
                     [0.0],
                     [0.9],
                     [-0.1]]],
                   [[[0.2],
                     [0.5],
                     [0.0],
                     [1.0]],
                    [[-0.0],
                     [-0.02],
                     [-0.8],
                     [-0.0]],
                    [[0.8],
                     [0.0],
                     [-0.2],
                     [0.0]],
                    [[-0.0],
                     [0.6],
                     [-0.003],
                     [-0.0]]],
                   [[[-0.0],
                     [0.07],
                     [-0.6],
                     [-0.0]],
                    [[0.0],
                     [-0.0],
                     [-0.0],
                     [0.0]],
                    [[-1.0],
                     [0.04],
                     [-0.0],
                     [1.0]],
                    [[0.4],
                     [-1.0],
                     [-0.8],
                     [0.5]]]], "float32"),
    "k": np.array([[[[3.883846],
                     [3.8457692],
                     [3.6934617]],
                    [[3.7315385],
                     [3.6934617],
                     [3.6934617]],
                    [[3.7696154],
                     [3.6553845],
                     [3.7696154]],
                    [[3.7315385],
                     [3.7315385],
                     [3.7696154]]],
                   [[[3.96],
                     [3.9219232],
                     [3.6553845]],
                    [[3.96],
                     [3.883846],
                     [3.7315385]],
                    [[3.7315385],
                     [3.883846],
                     [3.96]],
                    [[3.7315385],
                     [3.8457692],
                     [3.96]]],
                   [[[3.6934617],
                     [3.6934617],
                     [3.883846]],
                    [[3.8076923],
                     [3.7696154],
                     [3.9219232]],
                    [[3.7315385],
                     [3.9219232],
                     [3.8076923]],
                    [[3.6934617],
                     [3.8457692],
                     [3.6553845]]],
                   [[[3.7315385],
                     [3.883846],
                     [3.6553845]],
                    [[3.8076923],
                     [3.7696154],
                     [3.9219232]],
                    [[3.8076923],
                     [3.6934617],
                     [3.8076923]],
                    [[3.6553845],
                     [3.9219232],
                     [3.6934617]]]], "float32"),
    "v": np.array([[[[586.0, 248.0],
                     [-0.00729, -0.000246],
                     [-302.0, 61.9]],
                    [[1.97e-05, 1.63],
                     [0.00256, -225.0],
                     [-80.6, 93100.0]],
                    [[0.00669, 0.0772],
                     [0.578, 18300.0],
                     [-0.000178, 123.0]],
                    [[0.0645, 3740.0],
                     [0.0358, 10.1],
                     [-4.8, 172.0]]],
                   [[[2.95e-05, 44.7],
                     [261.0, -1.41e-05],
                     [-0.000595, 0.0574]],
                    [[73200.0, 0.118],
                     [-60.0, 11.1],
                     [-0.0529, 0.00181]],
                    [[0.0108, -0.175],
                     [2.92e-05, -203.0],
                     [-1.47, -6.81]],
                    [[-0.708, 8.18e-05],
                     [-0.00382, 2.24],
                     [-0.0533, -44.3]]],
                   [[[6.92e-05, -474.0],
                     [0.000421, -0.00227],
                     [-1.63, 0.0945]],
                    [[-47.1, -0.000239],
                     [-181.0, 0.0591],
                     [0.000118, 1.3e-05]],
                    [[-0.0603, 2310.0],
                     [3.4, 82.8],
                     [-0.00647, -3.16e-05]],
                    [[-75.2, 44800.0],
                     [883.0, 0.00495],
                     [0.000309, 20900.0]]],
                   [[[-9.22e-05, 0.0383],
                     [4220.0, -0.0038],
                     [0.000217, 47.6]],
                    [[4.34e-05, 0.00146],
                     [0.106, 6010.0],
                     [0.0337, -0.00141]],
                    [[9970.0, -0.00492],
                     [7970.0, 7.0],
                     [-58.5, -4.33e-06]],
                    [[89.7, 0.01],
                     [14.9, -0.00127],
                     [-0.0105, 19.3]]]], "float32"),
    "mask": np.array([[ True,  True, False],
                      [ True,  True,  True],
                      [False,  True, False],
                      [ True,  True, False]], "bool"),
}
COTANGENTS = [
    np.array([[[[-3.0, -1.0],
                [-1.0, -1.0],
                [1.0, -1.0],
                [2.0, -2.0]],
               [[3.0, 1.0],
                [3.0, -1.0],
                [-1.0, -1.0],
                [-3.0, 3.0]],
               [[-2.0, -2.0],
                [2.0, 2.0],
                [-2.0, -1.0],
                [1.0, -2.0]],
               [[-2.0, 0.0],
                [1.0, 0.0],
                [-1.0, 2.0],
                [-3.0, 0.0]]],
              [[[0.0, -3.0],
                [3.0, -2.0],
                [-2.0, 1.0],
                [2.0, -2.0]],
               [[1.0, -1.0],
                [-1.0, -1.0],
                [3.0, 3.0],
                [-2.0, 3.0]],
               [[2.0, 2.0],
                [-3.0, 2.0],
                [3.0, 3.0],
                [-3.0, 3.0]],
               [[-2.0, 3.0],
                [0.0, -3.0],
                [-3.0, 3.0],
                [3.0, 0.0]]],
              [[[2.0, 3.0],
                [3.0, 3.0],
                [2.0, 0.0],
                [3.0, -2.0]],
               [[-2.0, 0.0],
                [-2.0, -3.0],
                [-2.0, 2.0],
                [-3.0, -1.0]],
               [[2.0, 2.0],
                [0.0, 1.0],
                [3.0, 0.0],
                [-3.0, -3.0]],
               [[2.0, -2.0],
                [-3.0, -3.0],
                [-2.0, 0.0],
                [-3.0, -3.0]]],
              [[[-1.0, 2.0],
                [2.0, -1.0],
                [-1.0, -2.0],
                [-2.0, -3.0]],
               [[3.0, -3.0],
                [3.0, 2.0],
                [1.0, 2.0],
                [-3.0, -1.0]],
               [[2.0, 3.0],
                [-1.0, 1.0],
                [3.0, 3.0],
                [2.0, -3.0]],
               [[0.0, 2.0],
                [-1.0, 0.0],
                [1.0, -3.0],
                [-2.0, 3.0]]]], "float32"),
]
RIGHT = [
    {
        "dv": (  # the exact value, and what rounding may do
            np.array([[[[-0.8390448374548456, -1.8352371680405042],
                    [0.17237817078817907, -2.8314294986261626],
                    [-0.3333333333333333, -0.3333333333333333]],
                   [[1.0101794775762665, 1.6632735074745777],
                    [-0.00508973878813368, 0.6683632462627112],
                    [0.9949102612118665, -0.33163675373728885]],
                   [[0.19549746687908465, -1.2274645391904517],
                    [-1.85962085534397, -2.4366588492744334],
                    [0.6641233884648854, 0.6641233884648854]],
                   [[-2.164137946623159, 0.0],
                    [-3.164137946623159, 2.0],
                    [0.32827589324631856, 0.0]]],
                  [[[1.9809638611073834, -3.1476305277740497],
                    [0.019036138892616572, -2.1857028055592833],
                    [1.0, -0.6666666666666666]],
                   [[-0.8342852571174721, 0.6676185904508054],
                    [2.1676185904508056, 3.665714742882528],
                    [-0.3333333333333333, -0.3333333333333333]],
                   [[-1.5030461407176943, 3.1636205259489723],
                    [1.5030461407176943, 6.169712807384361],
                    [-1.0, 0.6666666666666666]],
                   [[0.5485266363309051, 0.44006085214547835],
                    [-2.5485266363309047, 3.5599391478545215],
                    [0.0, -1.0]]],
                  [[[3.4677824502117627, 1.4677824502117627],
                    [5.467782450211763, 1.4677824502117627],
                    [1.0644350995764742, 1.0644350995764742]],
                   [[-3.1670046561669163, -1.5005069842503747],
                    [-5.167512798708764, 0.49873080193685326],
                    [-0.6654825451243193, -0.9982238176864788]],
                   [[-0.5760069766153977, -0.24267364328206442],
                    [2.576006976615398, -0.09065969005126884],
                    [0.0, 0.3333333333333333]],
                   [[-1.4762120051432917, -3.4762120051432914],
                    [-3.5696259544565234, -3.5696259544565234],
                    [-0.9541620404001847, -0.9541620404001847]]],
                  [[[-0.8345316125726138, -0.8327341937136932],
                    [-1.8273987481657685, -2.836300625917116],
                    [0.6619303607383821, -0.33096518036919104]],
                   [[1.0, -1.3333333333333335],
                    [2.0, 0.6666666666666665],
                    [1.0, 0.6666666666666666]],
                   [[1.6661593621907786, 0.1626807650999197],
                    [4.667681275618444, 3.503478597090859],
                    [-0.3338406378092215, 0.3338406378092215]],
                   [[-1.299943355783904, 2.3469384030395837],
                    [-0.34726923352507466, -0.34693840303958334],
                    [-0.3527874106910213, 0.0]]]], "float64"),
            np.array([[[[9.6566948808634e-07, 4.8083560274472e-07],
                    [1.6242616927409986e-06, 1.1435581622108892e-06],
                    [5.960466501847755e-08, 5.960466501847755e-08]],
                   [[1.196383722056952e-06, 5.776085690744168e-07],
                    [1.364319256566709e-06, 7.527964106146241e-07],
                    [6.490632763449786e-07, 2.1635442544832616e-07]],
                   [[1.9154827757417167e-06, 2.441740756503602e-06],
                    [2.4373130802103453e-06, 2.832075456950746e-06],
                    [2.580612951310656e-07, 2.580612951310656e-07]],
                   [[1.959049395113245e-06, 0.0],
                    [2.1378633901686776e-06, 3.5762799011086525e-07],
                    [2.748510800069825e-07, 0.0]]],
                  [[[1.398393249540704e-06, 1.6070095771053755e-06],
                    [1.7964160288495662e-06, 1.8262183613588053e-06],
                    [1.7881399505543263e-07, 1.192093300369551e-07]],
                   [[4.1076166568510985e-07, 5.001686632128262e-07],
                    [1.527385270294371e-06, 1.6167922678220871e-06],
                    [5.960466501847755e-08, 5.960466501847755e-08]],
                   [[7.805348301882114e-07, 7.209301651697338e-07],
                    [4.177192030784868e-06, 4.11758736576639e-06],
                    [1.7881399505543263e-07, 1.192093300369551e-07]],
                   [[1.4808681200299401e-06, 1.5221158223733836e-06],
                    [4.9265150471735835e-06, 5.0111174060253695e-06],
                    [0.0, 1.7881399505543263e-07]]],
                  [[[2.9695486260661568e-06, 2.617306679711792e-06],
                    [3.3271766161770214e-06, 2.617306679711792e-06],
                    [8.061581005067337e-07, 8.061581005067337e-07]],
                   [[6.580495232205935e-07, 4.0592880090073407e-07],
                    [2.6921790226329633e-06, 2.440093229768462e-06],
                    [2.108048628937119e-07, 3.1620729434056784e-07]],
                   [[1.2225286010031686e-06, 1.282133266021646e-06],
                    [2.8444079693926187e-06, 1.4489029287574508e-06],
                    [0.0, 5.960466501847755e-08]],
                   [[1.2658679798773294e-06, 1.2658679798773294e-06],
                    [1.9515971612508148e-06, 1.3500485509478963e-06],
                    [7.990384510054653e-07, 7.990384510054653e-07]]],
                  [[[5.089076896681442e-07, 5.673783361810792e-07],
                    [1.3655330778738019e-06, 2.276118254147929e-06],
                    [2.39196741217669e-07, 1.195983706088345e-07]],
                   [[7.152559802217305e-07, 4.768373201478204e-07],
                    [8.940699752771631e-07, 8.344653102586856e-07],
                    [1.7881399505543263e-07, 1.192093300369551e-07]],
                   [[2.5225760375859516e-06, 3.7280715726667506e-06],
                    [3.0310949912343217e-06, 4.222928610583499e-06],
                    [1.1158496742435207e-07, 1.1158496742435207e-07]],
                   [[1.1381439292437566e-06, 1.683011245203138e-06],
                    [2.2047632638682912e-06, 5.0617273548504356e-06],
                    [4.205717514023222e-07, 0.0]]]], "float64"),
        ),
    },
]
LIMIT = 17.0  # radii: more is a wrong result


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
