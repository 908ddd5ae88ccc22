"""JAX: its own calls, of jax.nn and others, run primitive by primitive."""

import jax

from gradwatch.impls.backends._jax import door

backend = door(dialect="autograd", first=jax, shared=False)
