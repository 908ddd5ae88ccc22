"""Outcomes that are remembered (docs/remembered.md).

- ingredients: all that a verdict depends on, as one hash
- imports: what our files import, so that they are not parsed again
- cache: batches of outcomes under such a hash, in one file
- brief: the records of an op that decide what a screen shows
- programs: what JAX compiled, in a folder beside that file
- outcomes: what is taken from there in a run, and what is added
"""
