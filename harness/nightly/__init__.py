"""Nightly: runs all checks in one go, for CI, with one summary and one exit code.

- night: `Night`: its settings; the parts: agree, selftest, fuzz, second, time, watch,
  report; `run`: all of them; `Report`, written as JSON, Markdown and JUnit XML
"""
