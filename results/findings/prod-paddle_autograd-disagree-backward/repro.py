"""Paddle 3.3.1: prod gives wrong dx

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


def autograd_paddle(paddle, x, *, axis):
    return paddle.prod(x, axis)


first = paddle
tensor = lambda array, dtype: paddle.to_tensor(np.array(array), dtype)
array = lambda tensor: np.array(tensor.detach().numpy())
vjp = vjp
nan, inf = np.nan, np.inf
ATTRIBUTES = {'axis': -1}
INPUTS = {
    "x": np.array([[-1.3394943570167328]], "float64"),
}
COTANGENTS = [
    np.array([0.26488196321441915], "float64"),
]
RIGHT = [
    {
        "dx": (  # the exact value, and what rounding may do
            np.array([[0.26488196321441915]], "float64"),
            np.array([[0.0]], "float64"),
        ),
    },
]
LIMIT = 16.5  # radii: more is a wrong result


def compute():
    """Outputs, gradients and state by name."""
    arrays = {name: np.array(array) for name, array in INPUTS.items()}
    cotangents = [np.array(dy) for dy in COTANGENTS if dy is not None]
    tensors = {
        name: tensor(a, a.dtype.name if a.dtype.kind in "biu" else "float64")
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
