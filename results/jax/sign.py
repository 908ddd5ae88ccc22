"""The gradient of `jnp.sign` of complex numbers is 0, where it turns with them.

sign(z) = z / |z| has the derivative (z_dot - s Re(conj(s) z_dot)) / |z| along z_dot;
JAX's forward and reverse mode say 0 (`sign_p` is declared to have none).
"""

import sys

import jax
import jax.numpy as jnp

jax.config.update("jax_enable_x64", True)

z, along, step = jnp.array([3 + 4j, -1 + 0.5j]), jnp.array([1j, 2.0 + 1j]), 1e-6
values, slope = jax.jvp(jnp.sign, (z,), (along,))
differences = (jnp.sign(z + step * along) - jnp.sign(z - step * along)) / (2 * step)
print("jax.jvp:", slope)
print("central differences:", differences)
sys.exit(int(abs(slope - differences).max() > 1e-6))
