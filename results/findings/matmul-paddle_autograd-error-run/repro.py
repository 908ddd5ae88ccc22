"""Paddle 3.3.1: matmul raises on a legal input

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


def autograd_paddle(paddle, a, b):
    return paddle.matmul(a, b)


first = paddle
tensor = lambda array, dtype: paddle.to_tensor(np.array(array), dtype)
array = lambda tensor: np.array(tensor.detach().numpy())
vjp = vjp
nan, inf = np.nan, np.inf
ATTRIBUTES = {}
INPUTS = {
    "a": np.array([[[[-4355.9146, -4355.9146, -4355.9146,
                      -4355.9146],
                     [20363.217, 20363.217, 20363.217, 20363.217],
                     [7326.409, 7326.409, 7326.409, 7326.409]]],
                   [[[-13690.642, -13690.642, -13690.642,
                      -13690.642],
                     [-17821.98, -17821.98, -17821.98, -17821.98],
                     [-13380.141, -13380.141, -13380.141,
                      -13380.141]]]], "float32"),
    "b": np.array([[[-3327.3147, -3327.3147],
                    [4370.714, 4370.714],
                    [-11467.155, -11467.155],
                    [6931.407, 6931.407]],
                   [[2940.308, 2940.308],
                    [10902.73, 10902.73],
                    [5059.1035, 5059.1035],
                    [-6689.717, -6689.717]],
                   [[6673.5044, 6673.5044],
                    [1496.7386, 1496.7386],
                    [-4201.9536, -4201.9536],
                    [13296.234, 13296.234]],
                   [[14379.8545, 14379.8545],
                    [996.5658, 996.5658],
                    [10454.26, 10454.26],
                    [-9605.009, -9605.009]],
                   [[-8278.751, -8278.751],
                    [7542.8916, 7542.8916],
                    [2745.7332, 2745.7332],
                    [-1711.0168, -1711.0168]]], "float32"),
}
COTANGENTS = [
    np.array([[[[-0.13996693, -1.3933651],
                [-0.87483615, -0.2017094],
                [-0.7031987, -1.2294054]],
               [[-1.2205266, 1.3413332],
                [-0.41473046, -0.39627233],
                [-0.28219256, 0.26800677]],
               [[1.8707172, -1.032937],
                [-1.5392312, -0.9569491],
                [0.17666963, 0.18961266]],
               [[0.6977015, -0.91442996],
                [-1.2720333, 1.1638467],
                [-0.6586915, 1.4152585]],
               [[0.45264798, -0.19319656],
                [-1.461397, -0.15840478],
                [-0.30077636, -0.61424154]]],
              [[[-0.14880075, 0.22634175],
                [-1.0829685, 2.4251814],
                [-1.9973912, 0.9041094]],
               [[1.5587225, 2.3066864],
                [1.9805785, -0.48906228],
                [-0.706433, -0.38514638]],
               [[-0.5849212, 0.535545],
                [-1.8194039, 0.3974846],
                [-0.99549514, -0.71373665]],
               [[-0.22671027, 0.31758457],
                [-0.3039676, 1.5192486],
                [0.11185065, -0.17077291]],
               [[0.17635642, -0.3260902],
                [1.4471378, 0.43938193],
                [0.57363987, 0.41939676]]]], "float32"),
]


def compute():
    """Outputs, gradients and state by name."""
    arrays = {name: np.array(array) for name, array in INPUTS.items()}
    cotangents = [np.array(dy) for dy in COTANGENTS if dy is not None]
    tensors = {
        name: tensor(a, a.dtype.name if a.dtype.kind in "biu" else "float32")
        for name, a in arrays.items()
    }
    wanted = [tensors.pop(name) for name in ['a', 'b']]

    def call(wanted, others):
        given = {**others, **dict(zip(['a', 'b'], wanted))}
        y = autograd_paddle(first, *(given[name] for name in ['a', 'b']), **ATTRIBUTES)
        y = y if isinstance(y, (tuple, list)) else [y]
        named = dict(zip(['y'], y))
        return tuple(named[name] for name in ['y']), named

    named, pull = vjp(call, wanted, tensors)
    gradients = pull(tuple(tensor(dy, "float32") for dy in cotangents))
    results = {**named, **dict(zip(['da', 'db'], gradients))}
    return {n: None if t is None else array(t) for n, t in results.items()}


try:
    results = compute()
except Exception as error:
    print(f"raises {type(error).__name__}: {error}")
    sys.exit(1)
