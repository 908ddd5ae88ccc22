"""Timing: takes samples in turn, and compares two sides with an interval.

- timers: the host's clock and a GPU's events, page-aligned arrays, and peak memory
- samples: the clock: one sample of each run per round, in random order; `Samples` and
  `Comparison`: measurements, and their 95 % intervals
- rotation: numbers that change while they are timed, and results kept for the judge
- proof: decides whether a time may be shown; the least bytes and operations of an op
- handlers: the worker's side: prepares steps and takes samples
- compare: the main process's side: `gradwatch time` and `gradwatch compare`
"""
