"""Timing: takes samples in turn, and compares two sides with an interval.

- interleave: the clock: one sample of each run per round, in random order
- timers: the host's clock and a GPU's events
- samples: `Samples` and `Comparison`: what was measured, and 95 % intervals of it
- steps: forward and backward of a backend, made ready for the clock; peak memory
- evidence: that the calls that were timed did their work, or why a time is refused
- handlers: the worker's side: prepares steps and takes samples
- remote: the main process's side: asks workers for samples; `gradwatch time`
- compare: `gradwatch compare`
"""
