"""`jnp.log1p` in float64 loses two digits near 1/sqrt(2) - 1.

At -0.41418 it is 120 units of roundoff from log(1 + x); 1 + x alone costs less than 3.
`jnp.arctanh` and `jax.nn.log1mexp` are computed by it, and as far off.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

x = np.array([-0.41418, -0.4142, -0.35, 0.3])
exact = np.array([np.log1p(np.longdouble(v)) for v in x])
got = np.asarray(jnp.log1p(jnp.asarray(x)))
off = np.abs((got - exact) / exact).astype(float) / np.finfo(np.float64).eps
print("units of roundoff:", *(f"{share:.1f}" for share in off))
sys.exit(int(off.max() > 16))
