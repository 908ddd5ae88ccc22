"""Encodes messages to other processes, and makes memory layouts of arrays there.

NumPy versions differ between interpreters, so neither arrays nor seeds are pickled: an
array is sent as its dtype, shape and bytes in C order, all else as builtin types.
Neither side can make the other import or call anything.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from gradwatch.impls.catalogue import known
from gradwatch.impls.contract import Array

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_KINDS = "biufc"  # booleans, integers, reals, complex: dtypes of every NumPy


class _Pickler(pickle.Pickler):
    """Refuses values that are neither NumPy's nor of a builtin type."""

    def persistent_id(self, value: Any) -> Any:
        """An array as dtype, shape and bytes; a scalar has no shape."""
        if isinstance(value, (np.ndarray, np.generic)):
            if value.dtype.kind not in _KINDS:
                raise TypeError(
                    f"an array of {value.dtype} cannot be sent: not every NumPy has"
                    " this dtype; use one that holds its values exactly, such as"
                    " float32"
                )
            shape = value.shape if isinstance(value, np.ndarray) else None
            return value.dtype.str, shape, value.tobytes()
        if isinstance(value, (np.dtype, type)) and value is not complex:
            dtype = np.dtype(value)
            return (dtype.str,) if dtype.kind in _KINDS else None
        return None

    def reducer_override(self, value: Any) -> Any:
        if value is complex or type(value) is complex:
            return NotImplemented
        raise TypeError(f"{value!r} of {type(value)} is of no builtin type")


class _Unpickler(pickle.Unpickler):
    """Refuses all but data."""

    def persistent_load(self, pid: Any) -> Any:
        """The array, the builtin scalar, or the dtype."""
        dtype, *rest = pid
        if not rest:
            return np.dtype(dtype)
        shape, raw = rest
        array = np.frombuffer(raw, dtype)
        return array[0].item() if shape is None else array.reshape(shape).copy()

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "complex"):
            return complex
        raise pickle.UnpicklingError(f"{module}.{name} in a message")


def encoded(message: Any) -> bytes:
    """A message of arrays and builtin types as bytes; types become dtypes.

    Raises:
        TypeError: It holds a value of another type, or an array whose dtype is not
            NumPy's own. bfloat16 is sent as float32.
    """
    stream = io.BytesIO()
    _Pickler(stream, protocol=4).dump(message)  # 4: Python 3.8 and later
    return stream.getvalue()


def decoded(content: bytes) -> Any:
    """The message of some bytes.

    Raises:
        pickle.UnpicklingError: It holds more than data.
    """
    return _Unpickler(io.BytesIO(content)).load()


def legible(text: str) -> str:
    """Text without colour codes and control characters, which XML cannot contain."""
    return "".join(c for c in _COLOURS.sub("", text) if c.isprintable() or c in "\n\t")


def lay_out(array: Array, layout: str) -> Array:
    """A writeable copy with the same values and the strides of a layout.

    contiguous  C order
    permuted    the axes in memory in the reverse of C order
    sliced      every second element of a buffer twice as wide, with NaN in between
    expanded    stride 0 along each axis with equal values
    negative    every axis has a negative stride

    Raises:
        ValueError: "expanded", and the array changes along every axis.
        UnknownName: There is no such layout.
    """
    made = LAYOUTS[known("layout", layout, LAYOUTS)]
    return made(array) if array.ndim else array.copy()


def _sliced(array: Array) -> Array:
    """Every second element of a buffer, with NaN or the largest integer between."""
    kind = array.dtype.kind
    between = np.iinfo(array.dtype).max if kind in "iu" else kind == "b" or np.nan
    wide = np.full((*array.shape[:-1], 2 * array.shape[-1]), between, array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def _expanded(array: Array) -> Array:
    # Bitwise, so that NaN equals itself and -0.0 is not 0.0.
    raw = np.ascontiguousarray(array).view(np.uint8)
    raw = raw.reshape(*array.shape, array.itemsize)
    constant = [
        bool(array.size) and length > 1 and bool((raw == raw.take([0], axis)).all())
        for axis, length in enumerate(array.shape)
    ]
    if array.size > 1 and not any(constant):
        raise ValueError(
            f"an array of shape {array.shape} that changes along every axis"
            " cannot have a stride of 0"
        )
    kept = np.array(array[tuple(slice(0, 1 if c else None) for c in constant)])
    strides = [0 if c else s for c, s in zip(constant, kept.strides, strict=True)]
    return as_strided(kept, array.shape, strides)


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "contiguous": partial(np.array, order="C"),
    "permuted": partial(np.array, order="F"),
    "sliced": _sliced,
    "expanded": _expanded,
    "negative": lambda array: np.flip(np.flip(array).copy()),
}


def numbers_in(array: Array) -> str:
    """The elements as text, in nested lists; each evaluates to the same number."""
    if array.ndim:
        return f"[{', '.join(map(numbers_in, array))}]"
    return re.sub("nan|inf", r"np.\g<0>", str(array[()]))


def values_of(array: Array, layout: str = "contiguous") -> str:
    """An expression for the elements: lists, or one number many times."""
    same = array.size > 4 and len(set(map(str, array.flat))) == 1
    if not array.size:
        return f"np.zeros({array.shape})"
    if layout == "contiguous" or array.ndim == 0:
        one = f"np.full({array.shape}, {numbers_in(array.reshape(-1)[0])})"
        return one if same else numbers_in(array)
    shape = array.shape
    if layout == "expanded":
        for axis in range(array.ndim):
            first = array.take([0], axis)
            array = first if (array == first).all() else array
    form = {
        "expanded": f"np.broadcast_to({{}}, {shape})",
        "permuted": "np.asfortranarray({})",
        "sliced": "np.repeat({}, 2, -1)[..., ::2]",
        "negative": "np.flip(np.flip({}).copy())",
    }[layout]
    return form.format(f"np.array({values_of(array)}, {array.dtype.name!r})")
