"""How far rounding alone may move each value of a graph.

- thresholds: the numbers that decide a verdict
- analysis: carries E, the error of every node in unit roundoffs, through a graph, by
  one rule for each primitive
"""
