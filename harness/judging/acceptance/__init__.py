"""Tensors too large to be judged in full: what is right is accepted, the rest in part.

- early: accepts large tensors that are right
- parts: the part of a graph behind some elements, and a sample of it
- least_spread: what the spread is at least, so that it need not be measured
"""
