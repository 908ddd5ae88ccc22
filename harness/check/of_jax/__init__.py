"""A check whose reference or candidate is a function of JAX's.

- session: one check, judged by jax.vjp; bridge: PyTorch's functions beside JAX's
"""
