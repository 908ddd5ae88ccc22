"""`jax.lax.lgamma` loses its digits near its roots, 1 and 2.

At 0.95 it is hundreds of units of roundoff from log Gamma, in both precisions: Lanczos'
terms of size 1 cancel. SciPy's has them all. `jax.scipy.special.gammaln`, and losses and
densities that are made of it, are as far off.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

jax.config.update("jax_enable_x64", True)

worst = 0.0
for dtype in (np.float32, np.float64):
    x = np.array([0.95, 0.999, 1.001, 1.05, 1.95, 2.05], dtype)
    exact = scipy.special.gammaln(x.astype(np.float64))
    got = np.asarray(jax.lax.lgamma(jnp.asarray(x))).astype(np.float64)
    off = np.abs((got - exact) / exact) / np.finfo(dtype).eps
    print(np.dtype(dtype).name, "units of roundoff:", *(f"{n:.0f}" for n in off))
    worst = max(worst, float(off.max()))
sys.exit(int(worst > 16))
