"""OneFlow 0.9.0: matmul kills the process

Exits 1 while the defect is there, 0 when it has gone, 2 where it cannot be run.
"""

from __future__ import annotations

import subprocess
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
    "a": np.array([0.0], "float32"),
    "b": np.array([[[0.0]]], "float32"),
}
COTANGENTS = [
    np.array([[0.0]], "float32"),
]


def compute():
    """Outputs, gradients and state by name."""
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


if sys.argv[1:] == ["compute"]:
    compute()
    sys.exit(0)
child = subprocess.run([sys.executable, __file__, "compute"], timeout=120)
if child.returncode < 0:
    print(f"killed by signal {-child.returncode}")
sys.exit(1 if child.returncode < 0 else 0)
