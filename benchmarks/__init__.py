"""Benchmarks: what `asv run` measures of a commit (how: harness/history/measure.py).

asv imports this package from the working tree, whatever commit it measures. That holds
for the harness too: the instrument must not change along the history.
"""

import sys
from pathlib import Path

if __name__ == "benchmarks":  # of a checkout, which need not be installed
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
