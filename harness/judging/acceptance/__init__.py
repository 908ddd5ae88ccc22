"""What is told of right tensors before they are judged in full.

- early: accepts large tensors that are right
- extents, grid: upper bounds of running errors, of a whole node and of some elements
- pairwise: the sums of a reference in float64
- least_spread: what the spread is at least, so that it need not be measured
"""
