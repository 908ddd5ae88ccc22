"""Whether a diagnosis names a planted mistake: label against label, by kind.

A kind of mistakes is known by words in the planted one's name, and named by words in
the sentence. Both lists are written by hand, about kinds and no single mistake; the
first kind whose words occur counts. Whether a sentence is true is another question:
scripts/studies/diagnosis.py asks it at other numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_FACTOR = "multiplied|divided|halved|twice|for \\d|wrong sign"
_PART = f"left out|zero|stands? for|uses|not applied|missing|alone|{_FACTOR}"
#: By kind: words of the mistake, and words of a sentence that names it.
LABELS = {
    "float32": ("float32", "float32"),
    "float16": ("float16", "float16"),
    "not finite": ("not a number|infinite", "not finite"),
    "clipped": ("clipped", "clipped"),
    "not written": ("not written|flushed", "zero"),
    "saved": ("earlier call", "revers|saved"),
    "ones": ("taken to be ones|cotangent is forgotten", "1 stands for|zero everywhere"),
    "swapped": ("swapped|exchanged", "values of|each other|stands? for|wrong sign"),
    "copies": (
        "first of|last row|overwritten|copies",
        "first|last|overwrit|out|halved",
    ),
    "part": ("lost|lacks|loses|forgets?|forgotten|missing|omitted|nothing|zero", _PART),
    "sign": ("sign|added$|adds|subtracted", "sign|subtract|add|\\||by -|1 [-/] "),
    "eps": ("eps|added to", "stands for [\\d.e-]+ in|root|is left out"),
    "order": ("revers|turned|transposed|order", "revers|turn|transpose|order|rows"),
    "shift": ("off by one|after the|one too", "shift|off|halved|last|first"),
    "mean": ("mean|average|divided by|counts? the", f"{_FACTOR}|mean|root"),
    "axis": ("along|runs over|sums the", "summed|sum of|alone|first|last"),
    "factor": ("cut to|too large|scale|twice|halve|factor|ln 2", f"{_FACTOR}|square"),
    "value": ("for|taken|takes|slope|that of|alone", f"{_PART}|values of|inverted"),
}


def kind_of(mistake: str) -> str:
    """The kind of a planted mistake."""
    kinds = (k for k, (of_it, _) in LABELS.items() if re.search(of_it, mistake))
    return next(kinds, "other")


def named(mistake: str, sentences: Iterable[str]) -> bool:
    """Whether each of the sentences names it; none does if it is of another kind."""
    _, words = LABELS.get(kind_of(mistake), ("", "$^"))
    return all(re.search(words, sentence) for sentence in sentences)
