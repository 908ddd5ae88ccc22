"""MLX's door: the CPU. It is lazy, so it is evaluated where it is waited for."""

from functools import partial
from importlib.metadata import version
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np

from gradwatch.impls.backends._functional import Functional, Names

TRAITS = {
    "title": "MLX",
    "names": {
        "": "mx",
        "take": "mx.take",
        "take_along_axis": "mx.take_along_axis",
    },
}


def tensor(array: Any, dtype: str) -> Any:
    """A copy, on the default device, which the build for the CPU sets to that."""
    return mx.array(np.array(array), getattr(mx, dtype, mx.bool_))


def array(tensor: Any) -> Any:
    """A copy; NumPy reads no bfloat16 of MLX's, but float32 holds it exactly."""
    narrow = tensor.dtype == mx.bfloat16
    wide = np.array(tensor.astype(mx.float32) if narrow else tensor)
    return wide.astype(ml_dtypes.bfloat16) if narrow else wide


def vjp(call: Any, wanted: Any, others: Any) -> tuple[Any, Any]:
    """The results of a call by name, and its backward, with a forward of its own."""
    _, named = call(wanted, others)

    def floating(*tensors: Any) -> list[Any]:
        return list(call(tensors, others)[0])

    return named, lambda dys: mx.vjp(floating, wanted, list(dys))[1]


def wait(computed: Any) -> None:
    """Evaluate the tensors; a backward is a function, and no tensor."""
    mx.eval([part for part in computed if not callable(part)])


def take(x: Any, indices: Any, *, axis: int = 0) -> Any:
    """Elements of an axis; MLX takes no positions of NumPy's."""
    return mx.take(x, mx.array(indices), axis)


door = partial(
    Functional,
    "mlx",
    version("mlx"),
    first=Names(mx, take=take),
    tensor=tensor,
    array=array,
    vjp=vjp,
    wait=wait,
)
