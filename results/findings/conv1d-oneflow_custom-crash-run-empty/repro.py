"""OneFlow 0.9.0: conv1d kills the process

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
    """Load the libraries of the wheels, so that OneFlow needs no LD_LIBRARY_PATH.

    Raises:
        OSError: A wheel is installed, but one of its libraries cannot be loaded.
    """
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for library in CUDA_LIBRARIES:
            ctypes.CDLL(str(Path(folder, library)), mode=ctypes.RTLD_GLOBAL)


def as_function(F: Any, said: type, attributes: dict[str, Any]) -> Any:
    """Make a plain class with static forward and backward a Function of `F`.

    Attributes are bound beforehand, because OneFlow's `apply` accepts only tensors.
    """
    methods = {
        name: staticmethod(partial(getattr(said, name), **attributes))
        for name in ("forward", "backward")
    }
    return type(said.__name__, (F.autograd.Function,), methods)


def _permuted(array: Array) -> Array:
    return np.array(array, order="F")


class Conv1d:
    """As a sum over the places in the kernel: at each, a matrix product over c."""

    @staticmethod
    def forward(ctx, x, weight, bias, *, stride, padding, dilation):
        (b, c, n), size = x.shape, weight.shape[2]
        padded = x.new_zeros((b, c, n + 2 * padding))
        padded[:, :, padding : padding + n] = x
        out = (padded.shape[2] - dilation * (size - 1) - 1) // stride + 1
        y = x.new_zeros((b, weight.shape[0], out)) + bias.reshape(-1, 1)
        for i in range(size):
            y = y + weight[:, :, i].matmul(part(padded, i * dilation, stride, out))
        ctx.save_for_backward(padded, weight)
        return y

    @staticmethod
    def backward(ctx, dy, *, stride, padding, dilation):
        padded, weight = ctx.saved_tensors
        dx, dweight = (t.new_zeros(t.shape) for t in (padded, weight))
        for i in range(weight.shape[2]):
            seen, at = (
                part(t, i * dilation, stride, dy.shape[2]) for t in (padded, dx)
            )
            dweight[:, :, i] = dy.matmul(seen.transpose(1, 2)).sum(0)
            at += weight[:, :, i].T.matmul(dy)
        return dx[:, :, padding : dx.shape[2] - padding], dweight, dy.sum((0, 2))


def part(x, first, stride, out):
    """What one place of the kernel sees: `out` elements, `stride` apart."""
    return x[:, :, first : first + (out - 1) * stride + 1 : stride]


try:
    preload_cuda_libraries()
    import oneflow as F
except (ImportError, OSError) as error:
    print(error)
    sys.exit(2)

nan, inf = np.nan, np.inf
ATTRIBUTES = {'stride': 2, 'padding': 0, 'dilation': 1}
INPUTS = {
    "x": np.zeros((1, 0, 4), 'float32'),
    "weight": np.zeros((2, 0, 2), 'float32'),
    "bias": np.array([2.0, -1.0], "float32"),
}
COTANGENTS = [
    np.array([[[0.0, -1.0],
               [0.0, 3.0]]], "float32"),
]


def use_memory():
    """What an operation forgets to write then shows: fresh memory may be zero."""
    for size in range(1, 65):
        F.ones(size).mul(3.0).numpy()


def compute():
    """Outputs, gradients and state by name."""
    use_memory()
    arrays = {name: _permuted(array) for name, array in INPUTS.items()}
    cotangents = [np.array(dy) for dy in COTANGENTS if dy is not None]
    tensors = {name: F.from_numpy(array) for name, array in arrays.items()}
    wanted = [tensors[name].requires_grad_() for name in ['x', 'weight', 'bias']]
    arguments = [tensors[name] for name in ['x', 'weight', 'bias']]
    y = as_function(F, Conv1d, ATTRIBUTES).apply(*arguments)
    y = list(y) if isinstance(y, (tuple, list)) else [y]
    results = dict(zip(['y'], y))
    floating = [results[name] for name in ['y']]
    dys = [F.from_numpy(dy) for dy in cotangents]
    gradients = F.autograd.grad(floating, wanted, dys)
    results.update(zip(['dx', 'dweight', 'dbias'], gradients))
    return {n: None if t is None else t.detach().numpy() for n, t in results.items()}


if sys.argv[1:] == ["compute"]:
    compute()
    sys.exit(0)
child = subprocess.run([sys.executable, __file__, "compute"], timeout=120)
if child.returncode < 0:
    print(f"killed by signal {-child.returncode}")
sys.exit(1 if child.returncode < 0 else 0)
