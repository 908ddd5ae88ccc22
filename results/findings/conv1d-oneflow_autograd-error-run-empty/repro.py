"""OneFlow 0.9.0: conv1d raises on a legal input

Exits 1 while the defect is there, 0 when it has gone, 2 where it cannot be run.
"""

from __future__ import annotations

import sys
import ctypes
import importlib.util
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
    """Load the libraries of the wheels, so that OneFlow needs no LD_LIBRARY_PATH.

    Raises:
        OSError: A wheel is installed, but one of its libraries cannot be loaded.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for library in CUDA_LIBRARIES:
            ctypes.CDLL(str(Path(folder, library)), mode=ctypes.RTLD_GLOBAL)


def autograd(F, x, weight, bias, *, stride, padding, dilation):
    return F.nn.functional.conv1d(x, weight, bias, stride, padding, dilation)


try:
    preload_cuda_libraries()
    import oneflow as F
except (ImportError, OSError) as error:
    print(error)
    sys.exit(2)

nan, inf = np.nan, np.inf
ATTRIBUTES = {'stride': 1, 'padding': 1, 'dilation': 1}
INPUTS = {
    "x": np.zeros((0, 0, 0), 'float32'),
    "weight": np.zeros((0, 0, 1), 'float32'),
    "bias": np.zeros((0,), 'float32'),
}
COTANGENTS = [
    np.zeros((0, 0, 2), 'float32'),
]


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
    wanted = [tensors[name].requires_grad_() for name in ['x', 'weight', 'bias']]
    arguments = [tensors[name] for name in ['x', 'weight', 'bias']]
    y = autograd(F, *arguments, **ATTRIBUTES)
    y = list(y) if isinstance(y, (tuple, list)) else [y]
    results = dict(zip(['y'], y))
    floating = [results[name] for name in ['y']]
    dys = [F.from_numpy(dy) for dy in cotangents]
    gradients = F.autograd.grad(floating, wanted, dys)
    results.update(zip(['dx', 'dweight', 'dbias'], gradients))
    return {n: None if t is None else t.detach().numpy() for n, t in results.items()}


try:
    results = compute()
except Exception as error:
    print(f"raises {type(error).__name__}: {error}")
    sys.exit(1)
