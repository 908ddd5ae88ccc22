"""Agreement: runs every backend of an op on the same inputs and judges the results.

- suite: `agree`: runs the trials on all backends and judges every tensor
- remote: the same in a process of its own, which a page can end
- pairs: how far the backends are from each other, without the reference
- output: a run as JUnit XML and as Markdown
- fuzz: `Hunt`: searches for inputs on which a backend fails, and shrinks them
- repro: a finding as a plain script that needs only NumPy and the framework
- calls: what a page calls, as straight-line code in a framework's names
- store: findings on disk, their description for a bug report, and docs/findings.md
"""
