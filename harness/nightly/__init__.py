"""The night: everything in one run, for CI, with one summary and one exit code."""
