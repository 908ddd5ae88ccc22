"""Known defects of frameworks: the wrong verdicts that a run expects, and where."""
