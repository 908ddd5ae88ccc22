"""Judging: decides whether a gradient is right, with a tolerance that it derives.

- cases: the inputs: every case of an op in several regimes of values
- layouts: other shapes that an op accepts, derived from its cases
- reference: the right answer in a wider type, and `limit_for`, the tolerance
- rounding: how far rounding may move each value: one rule for each primitive
- verdict: `judge` and `assert_agrees`: compares a gradient with the reference
- known: known outcomes: defects of frameworks that the suite expects
- signs: sign and colour of each verdict
"""
