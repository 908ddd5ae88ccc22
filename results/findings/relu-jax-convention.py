"""JAX 0.10.2: relu takes subnormal numbers for zero.

y: right for subnormal numbers taken for zero
0.0: jax_autograd
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)

x = jnp.array([2e-40], "float32")
y = jax.nn.relu(x)
got, exact, allowed = np.array(y), np.array([2.000003233207595e-40]), 0.0
print(f"y = {got}, exact {exact}")
sys.exit(not np.all((got == exact) | (abs(got - exact) <= allowed)))
