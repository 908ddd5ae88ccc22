"""Nightly: runs all checks in one go, for CI, with one summary and one exit code.

- night: `Night`: its settings, how a part calls a command; `run`: all parts
- parts: the parts: agree, selftest, fuzz, second, time, watch, report
- report: `Report`, and how it is written: JSON, Markdown, JUnit XML
"""
