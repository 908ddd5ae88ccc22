"""PyTorch 2.13.0+cpu: logsumexp gives wrong dx in float64

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
    "x": np.array([[10000.002053155697, 9999.999588720115,
                    9999.998482119383, 10000.000081583094,
                    9999.999748032318],
                   [10000.001885908718, 9999.999372741697,
                    9999.998648525334, 10000.000223597217,
                    9999.99750585165],
                   [9999.998822140007, 9999.999367165548,
                    10000.00111346968, 10000.000710523009,
                    10000.000653192992],
                   [10000.000140104976, 9999.999350814329,
                    9999.999304955494, 10000.000042727692,
                    9999.998429512592]], "float64"),
}
COTANGENTS = [
    np.array([1.0309613427718318, -0.42657379947510493, -0.8756209167316754,
              -0.5356213614858981], "float64"),
]
RIGHT = [
    {
        "dx": (  # the exact value, and what rounding may do
            np.array([[0.2066178255724229, 0.20610925617692,
                   0.20588130167376087, 0.206210864836377,
                   0.20614209451235108],
                  [-0.08551612590712361, -0.08530147943393498,
                   -0.08523972507121111, -0.08537408955457168,
                   -0.08514237950826355],
                  [-0.174894650614346, -0.17498999864714887,
                   -0.17529585138294418, -0.1752252307323449,
                   -0.1752151853548915],
                  [-0.10719781606162454, -0.10711323921028489,
                   -0.10710832723458227, -0.10718737793767588,
                   -0.10701460104173055]], "float64"),
            np.array([[1.1019968922522937e-16, 1.3287876148110812e-16,
                   1.3275710545979038e-16, 1.3293297952792542e-16,
                   1.3289628451738355e-16],
                  [4.561229762404053e-17, 5.4996613312355956e-17,
                   5.496365525986133e-17, 5.50353586869135e-17,
                   5.4911692235948994e-17],
                  [1.127345203112694e-16, 1.1278538643792348e-16,
                   9.347726153094792e-17, 1.1291085302685398e-16,
                   1.1290549580482345e-16],
                  [5.716090051223869e-17, 6.902295760481094e-17,
                   6.902033795760517e-17, 6.906249411691616e-17,
                   6.897034725582816e-17]], "float64"),
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
