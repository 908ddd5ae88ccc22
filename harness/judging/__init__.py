"""Judging: decides whether a gradient is right, with a tolerance that it derives.

- cases: the inputs: every case of an op in several regimes of values
- precisions: floating-point formats, and in which of them an implementation computes
- orders: the graph of a formula's derivatives, in each order
- reference: the right answer in a wider type
- radii: how far rounding may move it, computed in one arithmetic
- rounding: how far rounding may move each value, by rules; `limit_for`, the tolerance
- excuses: overflow and lost digits, by which a deviation may be right
- spread, draws: how far rounding moves a result, measured with perturbations
- acceptance: large right tensors, accepted without a full judgement
- verdict: the readings by which a call may be right; each element and its radius
- judgement: the verdict on one tensor, with its numbers
- defects: known outcomes: defects of frameworks that the suite expects, and where
"""
