"""JAX 0.10.2: layer_norm gives wrong y in float64.

y[1, 1]: exact 311752.79017489863, 3.47e+06 rounding radii off (16.7 are allowed)
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

x = jnp.array([[1000000.002, 1000000.002], [1000000.003, 999999.997]], "float64")
weight = jnp.array([1000000.0, 1000000.003], "float64")
bias = jnp.array([999999.999, 999999.997], "float64")
y = jax.nn.standardize(x, axis=(-1,), epsilon=1e-05) * weight + bias
got = np.array(y)
exact = np.array([[999999.999, 999999.997], [1688247.2037603597, 311752.79017489863]])
allowed = np.array([[1.17, 1.17], [1.25, 1.25]])
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
