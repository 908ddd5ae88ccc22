"""Names the mistake in a wrong gradient: the one edit of the right one that gives it.

- sweep: the right gradient's graph, evaluated with edits, and its nodes in words
- edits: the list of what may stand in place of a right value
- search: tries the edits against what came back
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradwatch.harness.judging.acceptance.parts import Box
from gradwatch.harness.judging.diagnosis.search import EACH, WRONG, Got, explanations
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.question import FULL, Question

__all__ = ("Diagnoses", "explanations")
REPORT = 10.0  # seconds of the processor in all
FEW = 8  # elements that are looked at of a large vector
CHANGES = "it changes from run to run: a second one gave other bits"
Judged = tuple[Judgement, ...]


@dataclass
class Diagnoses:
    """Sentences on wrong gradients: each tensor of a key once, some seconds in all."""

    left: float = REPORT
    told: set[tuple[Any, str]] = field(default_factory=set)

    def sentences(
        self,
        question: Question,
        got: Got,
        verdicts: Iterable[Any],
        key: Any = None,
        repeatable: bool = True,
    ) -> dict[str, str]:
        """By tensor the likeliest mistake; judgements or records say what is wrong."""
        asked = [v for v in verdicts if v.tensor in got and v.verdict in WRONG]
        if self.left <= 0 or all((key, v.tensor) in self.told for v in asked):
            return {}
        started, seen, right = time.thread_time(), "elements agree", question.known
        if not right or sum(node.size for node in right.order("first")) > FULL:
            seen = "elements looked at agree"
            some = {v.tensor: np.asarray(got[v.tensor]) for v in asked}
            worst = {v.tensor: v.worst_index for v in asked}
            boxes = {n: _box(a.shape, worst[n]) for n, a in some.items()}
            got = {n: a[np.ix_(*boxes[n])] for n, a in some.items()}
            right = question.part(boxes)
        _, found = explanations(right, got, asked, min(EACH, self.left))
        self.left -= time.thread_time() - started
        self.told |= {(key, v.tensor) for v in asked}
        said = {name: ones[0].sentence for name, ones in found.items() if ones}
        if not repeatable:
            said = {n: s if "elements agree" in s else CHANGES for n, s in said.items()}
        return {name: s.replace("elements agree", seen) for name, s in said.items()}

    def told_of(self, asked: Question, got: Got, judged: Judged, *how: Any) -> Judged:
        """The judgements, with the sentences."""
        said = self.sentences(asked, got, judged, *how)
        return tuple(j.changed(diagnosis=said.get(j.tensor, "")) for j in judged)


def _box(shape: tuple[int, ...], worst: tuple[int, ...]) -> Box:
    """Places of each axis: of the worst element, and all of the last or some of one."""
    box = [np.array([i]) for i in worst or [0] * len(shape)]
    few = shape[-1] if len(shape) > 1 else FEW
    if few < FEW:
        box[-2] = np.unique([0, *box[-2]])
    last = (np.unique(np.linspace(0, n - 1, few, dtype=int)) for n in shape[-1:])
    return (*box[:-1], *last)
