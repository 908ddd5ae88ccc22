"""Paddle 3.3.1: softplus gives wrong y in float32

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


paddle.set_device("cpu")


def vjp(call: Any, wanted: Any, others: Any) -> tuple[Any, Any]:
    """What a call returns, and its backward."""
    for tensor in wanted:
        tensor.stop_gradient = False
    floating, named = call(wanted, others)
    grad = partial(paddle.grad, list(floating), wanted, retain_graph=True)
    return named, lambda dys: grad(list(dys), allow_unused=True)


def autograd_paddle(paddle, x):
    return paddle.nn.functional.softplus(x)


first = paddle
tensor = lambda array, dtype: paddle.to_tensor(np.array(array), dtype)
array = lambda tensor: np.array(tensor.detach().numpy())
vjp = vjp
nan, inf = np.nan, np.inf
ATTRIBUTES = {}
INPUTS = {
    "x": np.array([[[-1272.2444, 1087.5392, -602.52905, 801.3876],
                    [227.54771, -44.476185, 757.31665, -665.2012],
                    [1881.2009, -1624.5134, 478.87625, 1354.2756]],
                   [[1653.735, 159.50267, 1999.3, 849.4001],
                    [1411.8152, -982.19104, -676.74005, -570.0442],
                    [1002.62537, 624.9871, -1260.9272, -822.66644]]], "float32"),
}
COTANGENTS = [
    np.array([[[0.08074127, 0.714959, 1.3301995, 0.16688162],
               [0.77752733, -1.0419363, 2.3091393, -0.32483333],
               [-0.61753243, -0.74276227, -0.24216065, 0.20492978]],
              [[-0.9513168, -0.5974508, 0.3321161, 0.59499043],
               [-1.127939, 0.07601237, -1.4766579, -0.50560284],
               [-0.5047795, -0.43129116, -1.4230335, 0.21801925]]], "float32"),
]
RIGHT = [
    {
        "y": (  # the exact value, and what rounding may do
            np.array([[[0.0, 1087.5391845703125, 2.113280818252564e-262,
                    801.3875732421875],
                   [227.54771423339844, 4.833239829304786e-20,
                    757.316650390625, 1.278797266025268e-289],
                   [1881.200927734375, 0.0, 478.8762512207031,
                    1354.275634765625]],
                  [[1653.7349853515625, 159.50267028808594,
                    1999.300048828125, 849.4000854492188],
                   [1411.815185546875, 0.0, 1.246034452816052e-294,
                    2.709905082575486e-248],
                   [1002.6253662109375, 624.9871215820312, 0.0, 0.0]]], "float64"),
            np.array([[[0.0, 6.482238689637256e-05,
                    1.1754943530118164e-38, 4.7766421719484817e-05],
                   [1.3562900701596682e-05, 8.64250631049219e-27,
                    4.513959001310093e-05, 1.1754943530118164e-38],
                   [0.00011212831325759797, 0.0,
                    2.8543248898546675e-05, 8.072111828852653e-05]],
                  [[9.857028653811717e-05, 9.507100020955969e-06,
                    0.00011916756943178842, 5.062819045968948e-05],
                   [8.415074277976666e-05, 0.0,
                    1.1754943530118164e-38, 1.1754943530118164e-38],
                   [5.9761128907112645e-05, 3.7252135440478354e-05,
                    0.0, 0.0]]], "float64"),
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
        y = autograd_paddle(first, *(given[name] for name in ['x']), **ATTRIBUTES)
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
