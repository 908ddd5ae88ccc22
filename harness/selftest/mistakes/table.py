"""Mistakes that people make in backwards, as edits of the textbook's.

`EDITS[op]` lists (what is wrong, a fragment of harness/selftest/textbook.py, what
stands there instead); of an op that is not in the textbook, the fragment is of the
`manual` dialect on its page. A fragment occurs exactly once in its function. A
replacement may also use `first_to` (the first of the copies where `sum_to` sums them),
`single` and `half` (through float32 and float16).

Where they come from: the errors of the notes that the project grew out of, reports of
wrong custom Functions, and what a hand slips on: a term, a sign, a factor, an axis, a
count, a transposition, an index, a precision.
"""

from __future__ import annotations

from gradwatch.harness.selftest.mistakes.activations import OF_ACTIVATIONS
from gradwatch.harness.selftest.mistakes.elementwise import OF_ELEMENTS
from gradwatch.harness.selftest.mistakes.layers import OF_LAYERS
from gradwatch.harness.selftest.mistakes.losses import OF_LOSSES
from gradwatch.harness.selftest.mistakes.moves import OF_MOVES
from gradwatch.harness.selftest.mistakes.sums import OF_SUMS

EDITS = OF_ELEMENTS | OF_SUMS | OF_ACTIVATIONS | OF_LAYERS | OF_LOSSES | OF_MOVES
