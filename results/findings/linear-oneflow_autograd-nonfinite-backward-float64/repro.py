"""OneFlow 0.9.0: linear gives dweight that is not finite, in float64

Exits 1 while the defect is there, 0 when it has gone, 2 where it cannot be run.
"""

from __future__ import annotations

import sys
import ctypes
import importlib.util
from pathlib import Path
import numpy as np
from numpy.lib.stride_tricks import as_strided


CUDA_LIBRARIES = (
    "cublas/lib/libcublasLt.so.11",
    "cublas/lib/libcublas.so.11",
    *(
        f"cudnn/lib/libcudnn{part}.so.8"
        for part in ("", "_ops_infer", "_ops_train", "_cnn_infer", "_cnn_train")
    ),
)


def preload_cuda_libraries() -> None:
    """Load what OneFlow links to from the wheels, so that no LD_LIBRARY_PATH is needed.

    Raises:
        OSError: a wheel is installed, but one of its libraries is not to be loaded.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for library in CUDA_LIBRARIES:
            ctypes.CDLL(str(Path(folder, library)), mode=ctypes.RTLD_GLOBAL)


def _expanded(array: Array) -> Array:
    constant = [_is_constant(array, axis) for axis in range(array.ndim)]
    if array.size > 1 and not any(constant):
        raise ValueError(
            f"an array of shape {array.shape} that changes along every axis"
            " cannot be laid out with a stride of 0"
        )
    kept = np.array(array[tuple(slice(0, 1 if c else None) for c in constant)])
    strides = [0 if c else s for c, s in zip(constant, kept.strides, strict=True)]
    return as_strided(kept, array.shape, strides)


def _is_constant(array: Array, axis: int) -> bool:
    """Bitwise, so that NaN equals itself and -0.0 is not 0.0."""
    if array.shape[axis] < 2 or array.size == 0:
        return False
    raw = np.ascontiguousarray(array).view(np.uint8)
    raw = raw.reshape(*array.shape, array.itemsize)
    return bool((raw == raw.take([0], axis)).all())


def autograd(F, x, weight, bias):
    return F.nn.functional.linear(x, weight, bias)


try:
    preload_cuda_libraries()
    import oneflow as F
except (ImportError, OSError) as error:
    print(error)
    sys.exit(2)

nan, inf = np.nan, np.inf
ATTRIBUTES = {}
INPUTS = {
    "x": np.array([104.0, inf], "float64"),
    "weight": np.array([[0.0, 0.0], [0.0, -0.5]], "float64"),
    "bias": np.array([-0.003, -0.002], "float64"),
}
COTANGENTS = [
    np.array([1.0, 1.0], "float64"),
]
EXACT = np.array([[104.0, inf], [104.0, inf]], "float64")
RADIUS = np.array(
    [[1.1551957307398553e-14, inf], [1.1551957307398553e-14, inf]], "float64"
)  # what rounding may do
LIMIT = 16.707106781186546  # radii: more is a wrong result


def compute():
    """Outputs, gradients and state by name."""
    arrays = {name: np.array(array) for name, array in INPUTS.items()}
    cotangents = [_expanded(dy) for dy in COTANGENTS if dy is not None]
    tensors = {name: F.from_numpy(array) for name, array in arrays.items()}
    wanted = [tensors[name].requires_grad_() for name in ["x", "weight", "bias"]]
    arguments = [tensors[name] for name in ["x", "weight", "bias"]]
    y = autograd(F, *arguments, **ATTRIBUTES)
    y = list(y) if isinstance(y, (tuple, list)) else [y]
    results = dict(zip(["y"], y))
    floating = [results[name] for name in ["y"]]
    dys = [F.from_numpy(dy) for dy in cotangents]
    gradients = F.autograd.grad(floating, wanted, dys)
    results.update(zip(["dx", "dweight", "dbias"], gradients))
    return {n: None if t is None else t.detach().numpy() for n, t in results.items()}


try:
    got = compute()["dweight"]
except Exception as error:
    print(f"raises {type(error).__name__}: {error}")
    sys.exit(1)
if got is None or got.shape != EXACT.shape or got.dtype != "float64":
    told = None if got is None else f"{got.shape} {got.dtype}"
    print(f"dweight is {told}, due is {EXACT.shape} float64")
    sys.exit(1)
if not got.size:
    sys.exit(0)
with np.errstate(all="ignore"):
    judged = np.isfinite(EXACT) & np.isfinite(RADIUS)
    ratio = np.where(judged & (got != EXACT), np.abs(got - EXACT) / RADIUS, 0.0)
    ratio = np.where(judged & ~np.isfinite(got), np.inf, ratio)
i = np.unravel_index(np.argmax(ratio), ratio.shape)
print(
    f"dweight{[int(k) for k in i]}: exact {EXACT[i]}, got {got[i]}, {ratio[i]:.3g} rounding radii"
)
sys.exit(1 if ratio[i] > LIMIT else 0)
