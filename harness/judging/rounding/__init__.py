"""How far rounding alone may move each value of a graph, by rules, and thresholds."""
