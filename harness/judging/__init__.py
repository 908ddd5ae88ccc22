"""Judging: decides whether a gradient is right, with a tolerance that it derives.

- cases: the inputs: every case of an op in several regimes of values
- layouts: other shapes that an op accepts, derived from its cases
- precisions: floating-point formats, and in which of them an implementation computes
- reference: the right answer in a wider type, and `limit_for`, the tolerance
- errors, rounding: how far rounding may move each value; one rule for each primitive in
  rounding_arithmetic, rounding_sums, rounding_functions and rounding_choices
- overflow, regrouping: values that may be infinite or NaN, in the formula's order of
  operations and in any other
- spread, draws: how far rounding moves a result, measured with perturbations
- contested: choices that rounding may turn around
- imprecision: what a correct but careless algorithm may lose: `imprecise`
- centring: values whose digits cancel when they are centred
- comparison: a tensor beside the right answer, element by element: makes the verdict
- verdict: which radius judges a tensor, and what excuses it; all tensors of a call
- judgement: what is said of one tensor
- ties: rows that break their ties each in its own way
- entry: `judge` and `assert_agrees`: what users call
- known: known outcomes: defects of frameworks that the suite expects
- signs: sign and colour of each verdict
"""
