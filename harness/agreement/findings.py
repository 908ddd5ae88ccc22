"""Findings of the fuzzer: where a backend fails, and a small input that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.judging.verdict import PASSING
from harness.project.records import AgreeRecord
from impls.contract import Op, Problem

DEATHS = ("crash", "timeout")


@dataclass(frozen=True)
class Site:
    """Identifies a finding: two findings with equal sites are the same.

    `place` is the first part that fails (forward, backward, state), the dtype if
    rounding is involved, and the flags that are set: "forward-float32-training". For a
    convention it is the convention's name.
    """

    op: str
    backend: str
    verdict: str
    place: str

    @property
    def id(self) -> str:
        """The name of the finding's folder."""
        name = f"{self.op}-{self.backend}-{self.verdict}-{self.place}"
        return re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")


@dataclass(frozen=True)
class Finding:
    """A site, and the smallest trial that shows it.

    Attributes:
        record: The record of the worst tensor, as the agreement suite makes it.
        values: What each backend returns at the worst index, or its verdict.
        inputs: Each input as text; `shapes` has its shape.
        layout: Memory layouts of the inputs and of the cotangents.
        seed: The seed of the run that found it.
        repro: The text of repro.py.
    """

    site: Site
    record: AgreeRecord
    values: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "contiguous, contiguous"
    seed: int = 0
    repro: str = ""

    @property
    def elements(self) -> int:
        """The number of elements of the largest input."""
        sizes = [1]
        for shape in self.shapes.values():
            size = 1
            for length in shape:
                size *= length
            sizes.append(size)
        return max(sizes[1:], default=0)


def flags(problem: Problem) -> str:
    """The flags of a problem, as part of a place: -training, -not-training, -empty."""
    names = [
        name if value else f"not-{name}"
        for name, value in sorted(problem.attributes.items())
        if isinstance(value, bool)
    ]
    if problem.empty:
        names.append("empty")
    return "".join(f"-{flag}" for flag in names)


def sites(problem: Problem, records: Iterable[AgreeRecord]) -> dict[Site, AgreeRecord]:
    """The failures in one trial: a site for each backend, with its worst record.

    Wrong outputs come first, because they make the gradients wrong as well.
    """
    op = problem.op
    by_backend: dict[str, list[AgreeRecord]] = {}
    for record in records:
        by_backend.setdefault(record.backend, []).append(record)
    worst_by_site = {}
    for backend, own in by_backend.items():
        wrong = [r for r in own if r.verdict not in PASSING]
        first = [r for r in wrong if _pass(op, r) == "forward"]
        if wrong:
            worst = max(first or wrong, key=_badness)
            place = _place(op, worst) + flags(problem)
            worst_by_site[Site(op.name, backend, worst.verdict, place)] = worst
    return worst_by_site | _conventions(op, by_backend)


def _badness(record: AgreeRecord) -> tuple[bool, float]:
    """Sorts records: a missing or infinite number is worse than a wrong one."""
    distance = record.distance
    return record.verdict != "disagree", -1.0 if distance is None else distance


def _place(op: Op, record: AgreeRecord) -> str:
    if record.tensor == "all":
        return "run"
    rounds = record.verdict == "nonfinite" or bool(record.radius)
    return _pass(op, record) + (f"-{record.dtype}" if rounds else "")


def _pass(op: Op, record: AgreeRecord) -> str:
    """The part that computes a tensor: forward, backward or state."""
    if record.tensor in op.outputs:
        return "forward"
    return "state" if record.tensor in op.state else "backward"


def _conventions(
    op: Op, by_backend: Mapping[str, Sequence[AgreeRecord]]
) -> dict[Site, AgreeRecord]:
    """Frameworks that break ties in a way that no other framework does."""
    chosen = {
        backend: record
        for backend, records in by_backend.items()
        if backend.endswith("_autograd")
        for record in records
        if record.verdict == "convention"
    }
    names = [record.convention for record in chosen.values()]
    return {
        Site(op.name, backend, "convention", record.convention): record
        for backend, record in chosen.items()
        if record.convention != "first" and names.count(record.convention) == 1
    }
