"""The verdicts on a tensor: their names in records, their meanings and their signs."""

from __future__ import annotations

from typing import Literal, get_args

# Best first. `malformed` is None, shape, dtype or mutation.
Verdict = Literal[
    "agree",
    "convention",
    "imprecise",
    "vacuous",
    "unsupported",
    "disagree",
    "nonfinite",
    "malformed",
    "error",
    "crash",
    "timeout",
]
VERDICTS = get_args(Verdict)
PASSING = ("agree", "convention", "imprecise", "vacuous", "unsupported")

#: Verdicts without a comparison: they have no ratio, rather than an infinite one.
NUMBERLESS = ("unsupported", "malformed", "error", "crash", "timeout")
#: Verdicts on a process that has ended, or was killed.
DEATHS = ("crash", "timeout")

#: The meanings of verdicts that a newcomer cannot guess.
MEANINGS = {
    "convention": "right, with its own choice at a tie",
    "imprecise": "right, but more is lost than in other algorithms",
    "vacuous": "rounding hides it, so nothing can be said",
    "unsupported": "the page or the framework does not have it",
    "nonfinite": "inf or nan where the right answer is finite, or the wrong inf",
    "malformed": "None, another shape or dtype, or an input was overwritten",
    "error": "it raised an exception",
    "crash": "its process ended",
    "timeout": "it did not answer in time",
}

# A verdict is shown by its sign as well as by its colour.
SIGNS = {
    "agree": ("✓", "green"),
    "convention": ("≈", "cyan"),
    "imprecise": ("~", "yellow"),
    "vacuous": ("○", "bright_black"),
    "unsupported": ("–", "bright_black"),
    "disagree": ("✗", "bold red"),
    "nonfinite": ("∞", "bold red"),
    "malformed": ("!", "bold red"),
    "error": ("E", "bold red"),
    "crash": ("†", "bold red"),
    "timeout": ("⏱", "bold red"),
}
