"""MLX 0.32.4: conv2d kills the process

Exits 1 while the defect is there, 0 when it has gone, 2 where it cannot be run.
"""

from __future__ import annotations

import subprocess
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


def formula(xp, x, weight, bias, **steps):
    seen = xp.sliding_windows(x, tuple(weight.shape[2:]), **steps)
    y = xp.einsum("bchwij,ocij->bohw", seen, weight)
    return y + xp.reshape(bias, (-1, 1, 1))


first = Names(mx, take=take)
tensor = tensor
array = array
vjp = vjp
nan, inf = np.nan, np.inf
ATTRIBUTES = {'stride': 1, 'padding': 0}
INPUTS = {
    "x": np.zeros((0, 4, 6, 7), 'float32'),
    "weight": np.array([[[[0.400147, -0.58655936, -0.8486287],
                          [0.6752836, 0.018579466, -0.749738],
                          [-0.12083677, 0.5571912, 0.24668807]],
                         [[-0.9595824, -1.8659204, 0.32433334],
                          [0.14271063, -0.3179212, 1.0843805],
                          [0.85557425, 0.044736072, 0.11969695]],
                         [[-0.36879054, 0.64938337, -1.8043385],
                          [0.040010676, -0.68488604,
                           0.62223357],
                          [-1.2639109, 1.0153537, 0.32483518]],
                         [[1.3373432, -0.62148935, 0.51238704],
                          [1.6367168, 1.3591927, -0.2994634],
                          [-0.44396594, -0.1472042, 0.09108776]]],
                        [[[1.0975356, -0.3684147, -0.7755282],
                          [-0.43114576, 0.034102596, 1.4089817],
                          [0.4829156, -1.6900811, -1.014925]],
                         [[-0.09611781, 0.3039738, 0.57990456],
                          [0.44784477, 0.08315895, -0.8239193],
                          [-0.42127284, -0.3566339,
                           -0.33025444]],
                         [[0.279659, -0.62317926, 0.7971151],
                          [-0.043538988, 1.7959988, 0.28753752],
                          [0.8114905, 0.15510273, 0.2792845]],
                         [[0.001203593, -1.1561931, -1.1349171],
                          [0.4262927, -1.3975005, 1.0901403],
                          [-0.11157253, 0.07543534, 0.9159713]]],
                        [[[-1.707308, 1.7366872, 0.5963903],
                          [2.4346144, -1.8889227, -0.3131328],
                          [-0.12594189, -0.2559562,
                           -0.28925774]],
                         [[1.0960953, 0.38113454, 0.25722834],
                          [-0.1268498, -1.4528828, 0.94537896],
                          [1.638202, -0.57934195, 1.8292361]],
                         [[1.4032013, 0.13175516, 2.4469411],
                          [-0.36001438, 1.0508162, -1.0865725],
                          [-0.93826264, -1.3069705, -0.505323]],
                         [[0.7973601, 0.59283614, -1.584747],
                          [-0.38129917, -1.2135942, -1.3107547],
                          [-1.7105052, -1.2064722, -0.85818213]]],
                        [[[-0.60349125, -1.2209404, 0.54588157],
                          [0.06270251, 0.47083873, -0.27841067],
                          [0.3752759, 0.3999191, -0.10473023]],
                         [[2.2151887, -0.041691095, 0.91718704],
                          [0.65231663, 0.04422576, -2.381425],
                          [-0.68631446, -0.302354, -1.6734103]],
                         [[-0.39829212, 0.5570077, -0.43276456],
                          [0.07292693, -0.009672022,
                           0.34076905],
                          [0.5365334, 0.14190744, 1.145757]],
                         [[1.0951271, -1.7058562, 0.9724598],
                          [-0.78088784, 2.0174246,
                           -0.021457734],
                          [0.8426727, 0.323458, 0.28530332]]],
                        [[[0.83248246, 2.1191382, -0.79931253],
                          [-0.5017945, 0.52735853, 0.18313389],
                          [-0.753397, 0.65756196, -1.251322]],
                         [[-0.76100975, 0.5056888, 1.057486],
                          [-0.5585968, 1.9719276, 2.1490948],
                          [1.6785804, -0.00022790495,
                           -0.28178808]],
                         [[-0.9472466, -0.05372255, 1.1203867],
                          [-1.3787531, 1.0810246, 0.10120933],
                          [0.50422245, 0.06311356, -1.1661184]],
                         [[0.6422783, -0.4736497, -0.6436459],
                          [-0.1318137, 0.9054501, 0.74803513],
                          [-0.52992344, 0.043329716,
                           0.0053843604]]]], "float32"),
    "bias": np.array([-2.034512, 1.3422204, 0.14923052, -0.9973414,
                      -1.6255326], "float32"),
}
COTANGENTS = [
    np.zeros((0, 5, 4, 5), 'float32'),
]


def compute():
    """Outputs, gradients and state by name."""
    arrays = {name: np.array(array) for name, array in INPUTS.items()}
    cotangents = [np.array(dy) for dy in COTANGENTS if dy is not None]
    tensors = {
        name: tensor(a, a.dtype.name if a.dtype.kind in "biu" else "float32")
        for name, a in arrays.items()
    }
    wanted = [tensors.pop(name) for name in ['x', 'weight', 'bias']]

    def call(wanted, others):
        given = {**others, **dict(zip(['x', 'weight', 'bias'], wanted))}
        y = formula(first, *(given[name] for name in ['x', 'weight', 'bias']), **ATTRIBUTES)
        y = y if isinstance(y, (tuple, list)) else [y]
        named = dict(zip(['y'], y))
        return tuple(named[name] for name in ['y']), named

    named, pull = vjp(call, wanted, tensors)
    gradients = pull(tuple(tensor(dy, "float32") for dy in cotangents))
    results = {**named, **dict(zip(['dx', 'dweight', 'dbias'], gradients))}
    return {n: None if t is None else array(t) for n, t in results.items()}


if sys.argv[1:] == ["compute"]:
    compute()
    sys.exit(0)
child = subprocess.run([sys.executable, __file__, "compute"], timeout=120)
if child.returncode < 0:
    print(f"killed by signal {-child.returncode}")
sys.exit(1 if child.returncode < 0 else 0)
