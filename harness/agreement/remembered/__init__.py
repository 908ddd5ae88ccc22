"""Outcomes that are remembered (docs/remembered.md).

- ingredients: all that a verdict depends on, as one hash
- cache: batches of outcomes under such a hash, in one file
- programs: what JAX compiled, in a folder beside that file
- outcomes: what is taken from there in a run, and what is added
"""
