"""Judging: decides whether a gradient is right, with a tolerance that it derives.

- cases: the inputs: every case of an op in several regimes of values
- layouts: other shapes that an op accepts, derived from its cases
- reference: the right answer in a wider type, and `limit_for`, the tolerance
- rounding: how far rounding may move each value: one rule for each primitive; the
  rules are also in rounding_functions and rounding_choices
- overflow: values that may be infinite or NaN, separate from the rounding error
- spread: how far rounding moves a result, measured with perturbations
- imprecision: what a correct but careless algorithm may lose: `imprecise`
- centring: values whose digits cancel when they are centred
- ties: rows that break their ties each in its own way
- verdict: `judge` and `assert_agrees`: compares a gradient with the reference
- known: known outcomes: defects of frameworks that the suite expects
- signs: sign and colour of each verdict
"""
