"""Benchmarks: the figures of a commit for `asv run` (see harness/history/measure.py).

asv imports this package, and the harness, from the working tree, whichever commit it
measures: the instrument must not change along the history.
"""

import sys
from pathlib import Path

if __name__ == "benchmarks":  # of a checkout, which need not be installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
