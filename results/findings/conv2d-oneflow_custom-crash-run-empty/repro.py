"""OneFlow 0.9.0: conv2d kills the process

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


class Conv2d:
    """As a sum over the places in the kernel: at each, a matrix product over c."""

    @staticmethod
    def forward(ctx, x, weight, bias, *, stride, padding):
        (b, c, h, w), (o, _, i, j), p = x.shape, weight.shape, padding
        padded = x.new_zeros((b, c, h + 2 * p, w + 2 * p))
        padded[:, :, p : p + h, p : p + w] = x
        h, w = (h + 2 * p - i) // stride + 1, (w + 2 * p - j) // stride + 1
        y = x.new_zeros((b, o, h * w)) + bias.reshape(-1, 1)
        for at, part in places(padded, (i, j), (h, w), stride):
            y = y + weight[at].matmul(part.flatten(2))
        ctx.save_for_backward(padded, weight)
        return y.reshape(b, o, h, w)

    @staticmethod
    def backward(ctx, dy, *, stride, padding):
        (padded, weight), p = ctx.saved_tensors, padding
        out, dy = dy.shape[2:], dy.flatten(2)
        dx, dweight = (t.new_zeros(t.shape) for t in (padded, weight))
        for at, part in places(padded, weight.shape[2:], out, stride):
            dweight[at] = dy.matmul(part.flatten(2).transpose(1, 2)).sum(0)
        for at, part in places(dx, weight.shape[2:], out, stride):
            part += weight[at].T.matmul(dy).reshape(part.shape)
        dx = dx[:, :, p : dx.shape[2] - p, p : dx.shape[3] - p]
        return dx, dweight, dy.sum((0, 2))


def places(x, size, out, stride):
    """Each place of the kernel, and the part of x that it sees."""
    for i, j in np.ndindex(*size):
        h, w = i + out[0] * stride, j + out[1] * stride
        yield (..., i, j), x[:, :, i:h:stride, j:w:stride]


try:
    preload_cuda_libraries()
    import oneflow as F
except (ImportError, OSError) as error:
    print(error)
    sys.exit(2)

nan, inf = np.nan, np.inf
ATTRIBUTES = {'stride': 1, 'padding': -1}
INPUTS = {
    "x": np.zeros((1, 0, 4, 2), 'float64'),
    "weight": np.zeros((0, 0, 4, 4), 'float64'),
    "bias": np.zeros((0,), 'float64'),
}
COTANGENTS = [
    np.zeros((1, 0, 4, 2), 'float64'),
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
    y = as_function(F, Conv2d, ATTRIBUTES).apply(*arguments)
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
