"""Paddle's door: its build for the CPU; OMP_NUM_THREADS says how many threads."""

from functools import partial
from typing import Any

import numpy as np
import paddle
from paddle.nn.functional import pad

from gradwatch.impls.backends._functional import Functional, Names, own_names

TRAITS = {
    "title": "Paddle",
    "names": {"": "paddle", "expand_dims": "paddle.unsqueeze"},
}


def reduction(function: Any, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """A reduction with the arguments of the array API."""
    axes = list(axis) if isinstance(axis, tuple) else axis
    return function(x, axis=axes, keepdim=keepdims)


def beside(like: Any, b: Any) -> Any:
    """A number as a tensor of the other operand's dtype."""
    return paddle.to_tensor(b, like.dtype) if isinstance(b, (int, float)) else b


def vjp(call: Any, wanted: Any, others: Any) -> tuple[Any, Any]:
    """The results of a call by name, and its backward."""
    for tensor in wanted:
        tensor.stop_gradient = False
    y, named = call(wanted, others)
    grad = partial(paddle.grad, list(y), wanted, retain_graph=True, allow_unused=True)
    return named, lambda dys: grad(list(dys))


REDUCTIONS = ("max", "sum", "mean", "prod", "logsumexp", "argmax")
NAMES = {
    **{n: partial(reduction, getattr(paddle, n)) for n in REDUCTIONS},
    "maximum": lambda a, b: paddle.maximum(a, beside(a, b)),
    "where": lambda c, a, b: paddle.where(c, beside(b, a), beside(a, b)),
    "pad": lambda x, w, how, constant_values: pad(x, sum(w, ()), how, constant_values),
    **own_names(TRAITS, paddle=paddle),
    "stop_gradient": lambda x: x.detach(),
}
door = partial(
    Functional,
    "paddle",
    paddle.__version__,
    first=Names(paddle, "take", **NAMES),
    tensor=lambda array, dtype: paddle.to_tensor(np.array(array), dtype),
    array=lambda tensor: np.array(tensor.detach().numpy()),
    vjp=vjp,
    dtypes=("float64", "float32"),  # hardly a kernel has 16 bits
)
