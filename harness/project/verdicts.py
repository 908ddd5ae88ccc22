"""The verdicts on a tensor: the names that records hold and judges give."""

from __future__ import annotations

# Best first. `malformed` is None, shape, dtype or mutation.
VERDICTS = (
    *("agree", "convention", "imprecise", "vacuous", "unsupported"),
    *("disagree", "nonfinite", "malformed", "error", "crash", "timeout"),
)
PASSING = ("agree", "convention", "imprecise", "vacuous", "unsupported")

#: Nothing was compared: there is no ratio, rather than an infinite one.
NUMBERLESS = ("unsupported", "malformed", "error", "crash", "timeout")
