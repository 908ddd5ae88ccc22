"""Names the mistake in a wrong gradient: the one edit of the right one that gives it.

- sweep: the right gradient's graph, evaluated with edits
- edits: the list of what may stand in place of a right value
- tensors: what is seen from a tensor alone
- words: nodes in the user's terms
- search: tries the edits against what came back
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradwatch.harness.judging.diagnosis.search import Case, Finding, search
from gradwatch.harness.judging.diagnosis.sweep import Sweep
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.precisions import PRECISIONS, Array
from gradwatch.harness.judging.reference import Reference
from gradwatch.harness.judging.verdict import allowed

EACH = 2.0  # seconds for the tensors of a call


@dataclass(frozen=True)
class Explanations:
    """What explains the wrong gradients of a call.

    Attributes:
        sweep: The right gradient's graph; None where nothing was asked.
        by_tensor: Explanations of each wrong gradient, best first.
    """

    sweep: Sweep | None
    by_tensor: dict[str, list[Finding]]


def explanations(
    right: Reference,
    got: Mapping[str, Array | None],
    judgements: Sequence[Judgement],
    seconds: float = EACH,
) -> Explanations:
    """Explanations of the gradients that are wrong.

    Args:
        right: The reference, which is built once more.
        got: What came back.
        judgements: What was said of it.
        seconds: After which nothing more is tried.
    """
    until = time.monotonic() + seconds
    wrong = [j.tensor for j in judgements if j.verdict in ("disagree", "nonfinite")]
    if not wrong or right.build is None:
        return Explanations(None, {})
    ties = next((j.convention for j in judgements if j.convention), "first")
    sweep = Sweep(right.build, ties if ties in right.graphs else "first")
    held = {
        n: a.astype(right.wide)
        for n, a in got.items()
        if a is not None and n in sweep.tensors and a.shape == sweep.tensors[n].shape
    }
    wrong = [n for n in wrong if n in held]
    if not wrong:
        return Explanations(None, {})
    tolerance = {n: allowed(right, "first", n) for n in held}
    last = right.limit * right.arithmetics[-1].roundoff
    digits = PRECISIONS[right.dtype].digits
    with np.errstate(all="ignore"):
        case = Case(sweep, held, tolerance, last, wrong, digits, until)
        return Explanations(sweep, search(case))


def diagnosed(
    right: Reference,
    got: Mapping[str, Array | None],
    judgements: Sequence[Judgement],
    seconds: float = EACH,
) -> tuple[Judgement, ...]:
    """The judgements; of each wrong gradient with a sentence that names the mistake."""
    if all(j.passes for j in judgements):
        return tuple(judgements)
    found = explanations(right, got, judgements, seconds).by_tensor
    return tuple(
        j.changed(diagnosis=found[j.tensor][0].sentence) if found.get(j.tensor) else j
        for j in judgements
    )
