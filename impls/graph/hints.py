"""Suggests another way to write a function that the engine does not have."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NoReturn

_SOFTMAX = (
    "e = xp.exp(x - xp.stop_gradient(xp.max(x, axis=axis, keepdims=True))); "
    "e / xp.sum(e, axis=axis, keepdims=True)"
)
#: How to write functions that frameworks and NumPy have, but the engine has not.
WRITTEN_AS = {
    "relu": "xp.maximum(x, 0.0)",
    "silu": "x * xp.sigmoid(x)",
    "gelu": "0.5 * x * (1.0 + xp.erf(x / 2.0 ** 0.5))",
    "softplus": "xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x)))",
    "softmax": _SOFTMAX,
    "log_softmax": "x - xp.logsumexp(x, axis=axis, keepdims=True)",
    "logaddexp": "xp.logsumexp(xp.stack([a, b]), axis=0)",
    "detach": "xp.stop_gradient(x)",
    "masked_fill": "xp.where(mask, value, x)",
    "embedding": "weight[index]",
    "one_hot": "index[..., None] == xp.arange(n)",
    "conv2d": "xp.einsum over xp.sliding_windows(x, (3, 3), padding=1)",
    "max_pool2d": "xp.max(xp.sliding_windows(x, (2, 2), stride=2), axis=(-2, -1))",
    "avg_pool2d": "xp.mean(xp.sliding_windows(x, (2, 2), stride=2), axis=(-2, -1))",
    "float": "xp.astype(x, y.dtype)",
    "to": "xp.astype(x, y.dtype)",
    "transpose": "xp.permute_dims(x, axes), or x.mT",
    "swapaxes": "xp.permute_dims(x, axes), or x.mT",
    "permute": "xp.permute_dims(x, axes)",
    "dot": "xp.matmul(a, b)",
    "mm": "xp.matmul(a, b)",
    "bmm": "xp.matmul(a, b)",
    "norm": "xp.sqrt(xp.sum(x * x, axis=axis))",
    "view": "xp.reshape(x, shape)",
    "ravel": "xp.reshape(x, (-1,))",
    "flatten": "xp.reshape(x, (-1,))",
    "unsqueeze": "xp.expand_dims(x, axis=axis)",
    "expand": "xp.broadcast_to(x, shape)",
    "cat": "xp.concat(arrays, axis=axis)",
    "concatenate": "xp.concat(arrays, axis=axis)",
    "cumsum": "xp.cumulative_sum(x, axis=axis)",
    "cumprod": "xp.cumulative_prod(x, axis=axis)",
    "index_select": "xp.take(x, index, axis=axis)",
    "amax": "xp.max(x, axis=axis)",
    "amin": "xp.min(x, axis=axis)",
    "clamp": "xp.clip(x, low, high)",
    "power": "xp.pow(a, b)",
    "absolute": "xp.abs(x)",
    "neg": "-x",
    **{f"arc{name}": f"xp.a{name}(x)" for name in ("sin", "cos", "tan", "sinh")},
    **{f"arc{name}": f"xp.a{name}(x)" for name in ("cosh", "tanh")},
    "arctan2": "xp.atan2(a, b)",
}


def miss(name: str, names: Iterable[str]) -> NoReturn:
    """Raise an error that says how to write a name that the engine does not have.

    `names` are the names that it has.

    Raises:
        AttributeError: always.
    """
    near = difflib.get_close_matches(name, [*names], n=1)
    if name in WRITTEN_AS:
        hint = f"; write it as {WRITTEN_AS[name]}"
    elif near:
        hint = f"; did you mean {near[0]!r}?"
    else:
        hint = f"; it has {', '.join(sorted(names))}"
    raise AttributeError(f"the graph engine has no {name!r}{hint}")
