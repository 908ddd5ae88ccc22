"""JAX: the op's formula, traced at each call and run primitive by primitive."""

from gradwatch.impls.backends._jax import door

backend = door(dialect="formula")
