"""Agreement: runs every backend of an op on the same inputs and judges the results.

- suite: runs trials on all backends and judges every tensor, in a process of its own
- output: a run as JUnit XML and as Markdown
- store: findings as plain scripts that need only NumPy and the framework, and as text
"""
