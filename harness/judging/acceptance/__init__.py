"""Acceptance of large right tensors; those left are judged in part.

- large: accepts large tensors that are right
- sample: running errors of some elements, and of some terms of sums
"""
