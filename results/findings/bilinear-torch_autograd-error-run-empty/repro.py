"""PyTorch 2.13.0+cpu: bilinear raises on a legal input

Exits 1 while the defect is there, 0 when it has gone, 2 where it cannot be run.
"""

from __future__ import annotations

import sys
import numpy as np


def autograd(F, a, b, weight, bias):
    return F.nn.functional.bilinear(a, b, weight, bias)


try:
    import torch as F
except (ImportError, OSError) as error:
    print(error)
    sys.exit(2)

nan, inf = np.nan, np.inf
ATTRIBUTES = {}
INPUTS = {
    "a": np.zeros((0, 0), 'float32'),
    "b": np.zeros((0, 0), 'float32'),
    "weight": np.zeros((0, 0, 0), 'float32'),
    "bias": np.zeros((0,), 'float32'),
}
COTANGENTS = [
    np.zeros((0, 0), 'float32'),
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
    wanted = [tensors[name].requires_grad_() for name in ['a', 'b', 'weight', 'bias']]
    arguments = [tensors[name] for name in ['a', 'b', 'weight', 'bias']]
    y = autograd(F, *arguments, **ATTRIBUTES)
    y = list(y) if isinstance(y, (tuple, list)) else [y]
    results = dict(zip(['y'], y))
    floating = [results[name] for name in ['y']]
    dys = [F.from_numpy(dy) for dy in cotangents]
    gradients = F.autograd.grad(floating, wanted, dys, allow_unused=True)
    results.update(zip(['da', 'db', 'dweight', 'dbias'], gradients))
    return {n: None if t is None else t.detach().numpy() for n, t in results.items()}


try:
    results = compute()
except Exception as error:
    print(f"raises {type(error).__name__}: {error}")
    sys.exit(1)
