"""Nightly: runs all checks in one go, for CI, with one summary and one exit code.

- runner: `run`: one part after another
- parts: the parts: agree, selftest, fuzz, second, time, watch, report
- night: `Night`: its settings, and how a part calls a command; `Result`, `Report`
- report: the summary as Markdown and as JUnit XML
"""
