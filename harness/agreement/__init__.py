"""Agreement: runs every backend of an op on the same inputs and judges the results.

- suite: runs trials on all backends and judges every tensor, in a process of its own
- output: a run as JUnit XML and as Markdown
- fuzz: `Hunt`: searches for inputs on which a backend fails, and shrinks them
- repro: a finding as a plain script that needs only NumPy and the framework
- calls: what a page calls, as straight-line code in a framework's names
- store: findings on disk, their description for a bug report, and docs/findings.md
"""
