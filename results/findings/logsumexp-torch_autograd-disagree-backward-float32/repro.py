"""PyTorch 2.13.0+cpu: logsumexp gives wrong dx in float32

Exits 1 while the defect is there, 0 when it has gone, 2 where it cannot be run.
"""

from __future__ import annotations

import sys
import numpy as np


def autograd(F, x, *, axis):
    return F.logsumexp(x, dim=axis)


try:
    import torch as F
except (ImportError, OSError) as error:
    print(error)
    sys.exit(2)

nan, inf = np.nan, np.inf
ATTRIBUTES = {'axis': -1}
INPUTS = {
    "x": np.array([[10000.001, 9999.999, 10000.001, 10000.0,
                    10000.001],
                   [10000.002, 9999.998, 10000.0, 10000.003, 9999.998],
                   [10000.001, 10000.0, 10000.0, 9999.999, 10000.0],
                   [10000.0, 10000.0, 10000.0, 9999.999, 10000.0]], "float32"),
}
COTANGENTS = [
    np.array([-0.17662878, 0.5324603, -1.9331952, -0.78430516], "float32"),
]
RIGHT = [
    {
        "dx": (  # the exact value, and what rounding may do
            np.array([[-0.03534645063533369, -0.035277481973070346,
                   -0.03534645063533369, -0.035311949466151044,
                   -0.03534645063533369],
                  [0.10667920051355519, 0.10626329772552957,
                   0.10647104604207373, 0.10678343030547635,
                   0.10626329772552957],
                  [-0.3870167344693225, -0.3866389729234689,
                   -0.3866389729234689, -0.3862615801053028,
                   -0.3866389729234689],
                  [-0.1568916590001137, -0.1568916590001137,
                   -0.1568916590001137, -0.15673851927679738,
                   -0.1568916590001137]], "float64"),
            np.array([[9.27047248996725e-09, 1.1359199702993684e-08,
                   9.27047248996725e-09, 1.1368242656587226e-08,
                   9.27047248996725e-09],
                  [3.689987724331012e-08, 3.6780759703448914e-08,
                   3.6840272414924104e-08, 3.0564901107979265e-08,
                   3.6780759703448914e-08],
                  [1.1074446418757278e-07, 1.337044415748061e-07,
                   1.337044415748061e-07, 1.3359641803592262e-07,
                   1.337044415748061e-07],
                  [3.927655883944442e-08, 3.927655883944442e-08,
                   3.927655883944442e-08, 4.8589719244480734e-08,
                   3.927655883944442e-08]], "float64"),
        ),
    },
]
LIMIT = 17.118033988749893  # radii: more is a wrong result


def compute():
    """Outputs, gradients and state by name."""
    arrays = {name: np.array(array) for name, array in INPUTS.items()}
    cotangents = [np.array(dy) for dy in COTANGENTS if dy is not None]
    tensors = {name: F.from_numpy(array) for name, array in arrays.items()}
    wanted = [tensors[name].requires_grad_() for name in ['x']]
    arguments = [tensors[name] for name in ['x']]
    y = autograd(F, *arguments, **ATTRIBUTES)
    y = list(y) if isinstance(y, (tuple, list)) else [y]
    results = dict(zip(['y'], y))
    floating = [results[name] for name in ['y']]
    dys = [F.from_numpy(dy) for dy in cotangents]
    gradients = F.autograd.grad(floating, wanted, dys, allow_unused=True)
    results.update(zip(['dx'], gradients))
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
