"""PyTorch 2.13.0+cpu: attention gives y that is not finite, in float64

Exits 1 while the defect is there, 0 when it has gone, 2 where it cannot be run.
"""

from __future__ import annotations

import sys
import numpy as np


def autograd(F, q, k, v, *, causal):
    return F.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)


try:
    import torch as F
except (ImportError, OSError) as error:
    print(error)
    sys.exit(2)

nan, inf = np.nan, np.inf
ATTRIBUTES = {'causal': True}
INPUTS = {
    "q": np.array([[[[-4.0, -4.0],
                     [-2.0, -4.0]],
                    [[3.0, -1.0],
                     [-4.0, -1.0]],
                    [[-1.0, -3.0],
                     [-3.0, 4.0]],
                    [[4.0, 0.0],
                     [-2.0, -2.0]]],
                   [[[-2.0, 2.0],
                     [3.0, 4.0]],
                    [[2.0, -4.0],
                     [0.0, -1.0]],
                    [[0.0, -3.0],
                     [-3.0, 3.0]],
                    [[4.0, 4.0],
                     [0.0, 2.0]]],
                   [[[-4.0, 4.0],
                     [4.0, 2.0]],
                    [[-3.0, -3.0],
                     [0.0, -4.0]],
                    [[-3.0, -1.0],
                     [0.0, 2.0]],
                    [[3.0, 3.0],
                     [-1.0, -3.0]]],
                   [[[2.0, -4.0],
                     [1.0, 0.0]],
                    [[0.0, 2.0],
                     [-3.0, -3.0]],
                    [[-2.0, 1.0],
                     [2.0, 0.0]],
                    [[0.0, -3.0],
                     [0.0, -1.0]]]], "float64"),
    "k": np.array([[[[-0.0, -3.0],
                     [-3.0, 0.0],
                     [-4.0, -4.0]],
                    [[2.0, -2.0],
                     [-4.0, -4.0],
                     [-3.0, -3.0]],
                    [[3.0, -3.0],
                     [2.0, -4.0],
                     [-2.0, -1.0]],
                    [[3.0, 3.0],
                     [0.0, -2.0],
                     [0.0, 2.0]]],
                   [[[-3.0, 0.0],
                     [-4.0, 4.0],
                     [4.0, -2.0]],
                    [[-1.0, -3.0],
                     [-3.0, -3.0],
                     [4.0, -4.0]],
                    [[3.0, 2.0],
                     [1.0, -2.0],
                     [1.0, 1.0]],
                    [[1.0, 0.0],
                     [2.0, 1.0],
                     [-4.0, -3.0]]],
                   [[[-3.0, 1.0],
                     [2.0, -1.0],
                     [-3.0, -3.0]],
                    [[2.0, -3.0],
                     [3.0, 1.0],
                     [-2.0, -1.0]],
                    [[-3.0, 0.0],
                     [-4.0, 3.0],
                     [-3.0, -4.0]],
                    [[-4.0, 1.0],
                     [-2.0, -2.0],
                     [0.0, -3.0]]],
                   [[[3.0, 0.0],
                     [2.0, 0.0],
                     [2.0, -2.0]],
                    [[4.0, -4.0],
                     [-4.0, -2.0],
                     [4.0, -4.0]],
                    [[1.0, 0.0],
                     [-2.0, 0.0],
                     [3.0, 4.0]],
                    [[-2.0, 0.0],
                     [inf, 4.0],
                     [-1.0, -2.0]]]], "float64"),
    "v": np.array([[[[1.0],
                     [0.0],
                     [-2.0]],
                    [[-2.0],
                     [-4.0],
                     [-2.0]],
                    [[-4.0],
                     [-3.0],
                     [1.0]],
                    [[2.0],
                     [-1.0],
                     [-4.0]]],
                   [[[-2.0],
                     [-2.0],
                     [3.0]],
                    [[1.0],
                     [0.0],
                     [1.0]],
                    [[0.0],
                     [0.0],
                     [-2.0]],
                    [[-2.0],
                     [-1.0],
                     [4.0]]],
                   [[[-3.0],
                     [-4.0],
                     [0.0]],
                    [[-1.0],
                     [4.0],
                     [-1.0]],
                    [[4.0],
                     [2.0],
                     [2.0]],
                    [[2.0],
                     [2.0],
                     [-2.0]]],
                   [[[0.0],
                     [4.0],
                     [0.0]],
                    [[1.0],
                     [1.0],
                     [1.0]],
                    [[3.0],
                     [-3.0],
                     [1.0]],
                    [[-1.0],
                     [-2.0],
                     [-3.0]]]], "float64"),
}
COTANGENTS = [
    np.array([[[[-2.0],
                [0.0]],
               [[2.0],
                [1.0]],
               [[0.0],
                [2.0]],
               [[3.0],
                [0.0]]],
              [[[-3.0],
                [0.0]],
               [[-3.0],
                [-1.0]],
               [[0.0],
                [-2.0]],
               [[0.0],
                [0.0]]],
              [[[0.0],
                [0.0]],
               [[0.0],
                [0.0]],
               [[0.0],
                [0.0]],
               [[0.0],
                [0.0]]],
              [[[0.0],
                [0.0]],
               [[0.0],
                [0.0]],
               [[0.0],
                [0.0]],
               [[0.0],
                [0.0]]]], "float64"),
]
RIGHT = [
    {
        "y": (  # the exact value, and what rounding may do
            np.array([[[[1.0],
                    [0.9858339641233116]],
                   [[-2.0],
                    [-3.9999999792688645]],
                   [[-4.0],
                    [-3.669761549326657]],
                   [[2.0],
                    [-0.9999633870448635]]],
                  [[[-2.0],
                    [-2.0]],
                   [[1.0],
                    [0.5]],
                   [[0.0],
                    [0.0]],
                   [[-2.0],
                    [-1.1955703174930432]]],
                  [[[-3.0],
                    [-3.999987795681621]],
                   [[-1.0],
                    [-0.9999389784081059]],
                   [[4.0],
                    [2.028332071753377]],
                   [[2.0],
                    [2.0]]],
                  [[[0.0],
                    [1.3209538026933723]],
                   [[1.0],
                    [1.0]],
                   [[3.0],
                    [2.9150037847398695]],
                   [[-1.0],
                    [nan]]]], "float64"),
            np.array([[[[4.325444415796986e-15],
                    [4.257588731473246e-15]],
                   [[6.137514262966368e-15],
                    [2.7355275805692056e-14]],
                   [[1.3531715810246524e-14],
                    [2.676876952222027e-14]],
                   [[8.650888831593971e-15],
                    [1.81218398469144e-15]]],
                  [[[4.880826978652596e-15],
                    [1.1164231417194696e-14]],
                   [[4.325444415796986e-15],
                    [7.489490130454941e-16]],
                   [[0.0],
                    [0.0]],
                   [[3.6241396943388444e-15],
                    [1.317055708067196e-15]]],
                  [[[1.6746395100332477e-14],
                    [1.2275152112185971e-14]],
                   [[3.3829289525616307e-15],
                    [4.325602783099326e-15]],
                   [[1.3531715810246524e-14],
                    [4.909724684367871e-15]],
                   [[8.650888831593971e-15],
                    [6.135303953904012e-15]]],
                  [[[0.0],
                    [1.840639705436468e-15]],
                   [[3.068757131483184e-15],
                    [6.210478138806751e-15]],
                   [[3.5511786150376698e-15],
                    [3.617937154370294e-15]],
                   [[3.3322953771342e-16],
                    [inf]]]], "float64"),
        ),
    },
]
LIMIT = 16.866025403784437  # radii: more is a wrong result


def compute():
    """Outputs, gradients and state by name."""
    arrays = {name: np.array(array) for name, array in INPUTS.items()}
    cotangents = [np.array(dy) for dy in COTANGENTS if dy is not None]
    tensors = {name: F.from_numpy(array) for name, array in arrays.items()}
    wanted = [tensors[name].requires_grad_() for name in ['q', 'k', 'v']]
    arguments = [tensors[name] for name in ['q', 'k', 'v']]
    y = autograd(F, *arguments, **ATTRIBUTES)
    y = list(y) if isinstance(y, (tuple, list)) else [y]
    results = dict(zip(['y'], y))
    floating = [results[name] for name in ['y']]
    dys = [F.from_numpy(dy) for dy in cotangents]
    gradients = F.autograd.grad(floating, wanted, dys, allow_unused=True)
    results.update(zip(['dq', 'dk', 'dv'], gradients))
    return {n: None if t is None else t.detach().numpy() for n, t in results.items()}


def compare(tensor, got, exact, radius):
    """Largest error in rounding radii, and what to say of it."""
    dtype = "float64" if exact.dtype.kind == "f" else None
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
