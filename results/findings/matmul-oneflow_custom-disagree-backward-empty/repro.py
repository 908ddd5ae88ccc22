"""OneFlow 0.9.0: matmul gives wrong da

Exits 1 while the defect is there, 0 when it has gone, 2 where it cannot be run.
"""

from __future__ import annotations

import sys
import ctypes
import importlib.util
from functools import partial
from pathlib import Path
import numpy as np


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


def as_function(F: Any, said: type, attributes: dict[str, Any]) -> Any:
    """Make a plain class with static forward and backward a Function of `F`.

    Attributes are bound beforehand: OneFlow's `apply` takes tensors alone.
    """
    methods = {
        name: staticmethod(partial(getattr(said, name), **attributes))
        for name in ("forward", "backward")
    }
    return type(said.__name__, (F.autograd.Function,), methods)


def sum_to(array: Any, shape: Shape) -> Any:
    """Sum over the axes along which an input of this shape was copied.

    The transpose of broadcasting, and so its gradient; for NumPy's arrays and for
    tensors alike.
    """
    new = array.ndim - len(shape)
    copied = (i for i, n in enumerate(array.shape) if i < new or n != shape[i - new])
    axes = tuple(copied)
    return array.sum(axes).reshape(tuple(shape)) if axes else array


class Matmul:
    """From y^T = b^T a^T: da^T = b dy^T and db^T = dy^T a."""

    @staticmethod
    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        return a.matmul(b)

    @staticmethod
    def backward(ctx, dy):
        a, b = ctx.saved_tensors
        rows, columns = a, b
        if b.ndim == 1:
            columns, dy = b.unsqueeze(1), dy.unsqueeze(-1)
        if a.ndim == 1:
            rows, dy = a.unsqueeze(0), dy.unsqueeze(-2)
        dy = dy.transpose(-1, -2)
        da, db = columns.matmul(dy).transpose(-1, -2), dy.matmul(rows).transpose(-1, -2)
        da, db = sum_to(da, rows.shape), sum_to(db, columns.shape)
        return da.reshape(a.shape), db.reshape(b.shape)


try:
    preload_cuda_libraries()
    import oneflow as F
except (ImportError, OSError) as error:
    print(error)
    sys.exit(2)

nan, inf = np.nan, np.inf
ATTRIBUTES = {}
INPUTS = {
    "a": np.array([[0.1, -0.1, 0.6]], "float32"),
    "b": np.zeros((3, 0), "float32"),
}
COTANGENTS = [
    np.zeros((1, 0), "float32"),
]
RIGHT = [
    {
        "da": (  # the exact value, and what rounding may do
            np.array([[0.0, 0.0, 0.0]], "float64"),
            np.array([[0.0, 0.0, 0.0]], "float64"),
        ),
    },
]
LIMIT = 16.5  # radii: more is a wrong result


def use_memory():
    """What an operation forgets to write then shows: fresh memory may be zero."""
    for size in range(1, 65):
        F.ones(size).mul(3.0).numpy()


def compute():
    """Outputs, gradients and state by name."""
    use_memory()
    arrays = {name: np.array(array) for name, array in INPUTS.items()}
    cotangents = [np.array(dy) for dy in COTANGENTS if dy is not None]
    tensors = {name: F.from_numpy(array) for name, array in arrays.items()}
    wanted = [tensors[name].requires_grad_() for name in ["a", "b"]]
    arguments = [tensors[name] for name in ["a", "b"]]
    y = as_function(F, Matmul, ATTRIBUTES).apply(*arguments)
    y = list(y) if isinstance(y, (tuple, list)) else [y]
    results = dict(zip(["y"], y))
    floating = [results[name] for name in ["y"]]
    dys = [F.from_numpy(dy) for dy in cotangents]
    gradients = F.autograd.grad(floating, wanted, dys)
    results.update(zip(["da", "db"], gradients))
    return {n: None if t is None else t.detach().numpy() for n, t in results.items()}


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
