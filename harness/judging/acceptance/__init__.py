"""Acceptance of large right tensors; those left are judged in part.

- large: accepts large tensors that are right
- parts: the part of a graph behind some elements, and a sample of it
"""
