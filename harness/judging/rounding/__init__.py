"""How far rounding alone may move each value of a graph.

- thresholds: the numbers that decide a verdict
- errors: E, the error of every node in unit roundoffs, and what a rule of it sees
- analysis: carries E through a graph, by one rule for each primitive
"""
