"""Tensors too large to be judged in full: what is right is accepted, the rest in part.

- large: accepts large tensors that are right
- parts: the part of a graph behind some elements, and a sample of it
"""
