"""PyTorch 2.13.0+cpu: batch_norm gives wrong y in float64

Exits 1 while the defect is there, 0 when it has gone, 2 where it cannot be run.
"""

from __future__ import annotations

import sys
import numpy as np


def autograd(F, x, weight, bias, *state, eps, momentum, training):
    return F.nn.functional.batch_norm(x, *state, weight, bias, training, momentum, eps)


try:
    import torch as F
except (ImportError, OSError) as error:
    print(error)
    sys.exit(2)

nan, inf = np.nan, np.inf
ATTRIBUTES = {"eps": 1e-05, "momentum": 0.1, "training": False}
INPUTS = {
    "x": np.array([[10000.0]], "float64"),
    "weight": np.array([10000.0], "float64"),
    "bias": np.array([10000.0], "float64"),
    "running_mean": np.array([10000.0], "float64"),
    "running_var": np.array([10001.0], "float64"),
}
COTANGENTS = [
    np.array([[0.0]], "float64"),
]
EXACT = np.array([[10000.0]], "float64")
RADIUS = np.array([[1.1107651257113993e-12]], "float64")  # what rounding may do
LIMIT = 16.5  # radii: more is a wrong result


def compute():
    """Outputs, gradients and state by name."""
    arrays = {name: np.array(array) for name, array in INPUTS.items()}
    cotangents = [np.array(dy) for dy in COTANGENTS if dy is not None]
    tensors = {name: F.from_numpy(array) for name, array in arrays.items()}
    wanted = [tensors[name].requires_grad_() for name in ["x", "weight", "bias"]]
    arguments = [
        tensors[name] for name in ["x", "weight", "bias", "running_mean", "running_var"]
    ]
    y = autograd(F, *arguments, **ATTRIBUTES)
    y = list(y) if isinstance(y, (tuple, list)) else [y]
    results = dict(zip(["y"], y))
    floating = [results[name] for name in ["y"]]
    dys = [F.from_numpy(dy) for dy in cotangents]
    gradients = F.autograd.grad(floating, wanted, dys, allow_unused=True)
    results.update(zip(["dx", "dweight", "dbias"], gradients))
    results.update((name, tensors[name]) for name in ["running_mean", "running_var"])
    return {n: None if t is None else t.detach().numpy() for n, t in results.items()}


try:
    got = compute()["y"]
except Exception as error:
    print(f"raises {type(error).__name__}: {error}")
    sys.exit(1)
if got is None or got.shape != EXACT.shape or got.dtype != "float64":
    told = None if got is None else f"{got.shape} {got.dtype}"
    print(f"y is {told}, due is {EXACT.shape} float64")
    sys.exit(1)
if not got.size:
    sys.exit(0)
with np.errstate(all="ignore"):
    judged = np.isfinite(EXACT) & np.isfinite(RADIUS)
    ratio = np.where(judged & (got != EXACT), np.abs(got - EXACT) / RADIUS, 0.0)
    ratio = np.where(judged & ~np.isfinite(got), np.inf, ratio)
i = np.unravel_index(np.argmax(ratio), ratio.shape)
print(
    f"y{[int(k) for k in i]}: exact {EXACT[i]}, got {got[i]}, {ratio[i]:.3g} rounding radii"
)
sys.exit(1 if ratio[i] > LIMIT else 0)
