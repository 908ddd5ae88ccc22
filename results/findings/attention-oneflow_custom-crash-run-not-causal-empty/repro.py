"""OneFlow 0.9.0: attention kills the process

Exits 1 while the defect is there, 0 when it has gone, 2 where it cannot be run.
"""

from __future__ import annotations

import subprocess
import sys
import ctypes
import importlib.util
import math
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


class Attention:
    """Keeps no p, only each row's maximum and sum: p is computed again from q and k."""

    @staticmethod
    def forward(ctx, q, k, v, *, causal):
        s, _ = scores(q, k, causal)
        largest = s.amax(-1, keepdim=True)
        e = (s - largest).exp()
        total = e.sum(-1, keepdim=True)
        ctx.save_for_backward(q, k, v, largest, total)
        return (e / total).matmul(v)

    @staticmethod
    def backward(ctx, dy, *, causal):
        q, k, v, largest, total = ctx.saved_tensors
        s, hidden = scores(q, k, causal)
        p = (s - largest).exp() / total
        dp = dy.matmul(v.transpose(-1, -2))
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        ds = ds.masked_fill(hidden, 0)
        dk = ds.transpose(-1, -2).matmul(q)
        return ds.matmul(k), dk, p.transpose(-1, -2).matmul(dy)


def scores(q, k, causal):
    s = q.matmul(k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    hidden = s.new_ones(s.shape).tril() < causal
    return s.masked_fill(hidden, -math.inf), hidden


try:
    preload_cuda_libraries()
    import oneflow as F
except (ImportError, OSError) as error:
    print(error)
    sys.exit(2)

nan, inf = np.nan, np.inf
ATTRIBUTES = {'causal': False}
INPUTS = {
    "q": np.zeros((0, 0, 0, 0), 'float32'),
    "k": np.zeros((0, 0, 0, 0), 'float32'),
    "v": np.zeros((0, 0, 0, 0), 'float32'),
}
COTANGENTS = [
    np.zeros((0, 0, 0, 0), 'float32'),
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
    wanted = [tensors[name].requires_grad_() for name in ['q', 'k', 'v']]
    arguments = [tensors[name] for name in ['q', 'k', 'v']]
    y = as_function(F, Attention, ATTRIBUTES).apply(*arguments)
    y = list(y) if isinstance(y, (tuple, list)) else [y]
    results = dict(zip(['y'], y))
    floating = [results[name] for name in ['y']]
    dys = [F.from_numpy(dy) for dy in cotangents]
    gradients = F.autograd.grad(floating, wanted, dys)
    results.update(zip(['dq', 'dk', 'dv'], gradients))
    return {n: None if t is None else t.detach().numpy() for n, t in results.items()}


if sys.argv[1:] == ["compute"]:
    compute()
    sys.exit(0)
child = subprocess.run([sys.executable, __file__, "compute"], timeout=120)
if child.returncode < 0:
    print(f"killed by signal {-child.returncode}")
sys.exit(1 if child.returncode < 0 else 0)
