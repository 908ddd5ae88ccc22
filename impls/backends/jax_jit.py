"""JAX: the op's formula, compiled by XLA."""

from gradwatch.impls.backends._jax import compiled, door

TRAITS = {"sampled": ("float32", "float64")}

backend = door(dialect="formula", vjp=compiled)
