"""Rules that PyTorch's operators and JAX's primitives share: they name neither."""
