"""Known defects of frameworks: the wrong verdicts that a run expects, and where.

- known: reads the entries of outcomes.json, and says which verdict they expect
- where: the expressions by which an entry says in which trials its defect shows
"""
