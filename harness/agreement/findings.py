"""What the fuzzer finds: where a backend goes wrong, and on how small an input."""

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
    """What makes two findings the same one.

    `place` is what goes wrong first (forward, backward, state), the dtype where
    rounding is involved, and the flags that are set: "forward-float32-training". For
    a convention it is the name of that.
    """

    op: str
    backend: str
    verdict: str
    place: str

    @property
    def id(self) -> str:
        """Name of the finding's folder."""
        told = f"{self.op}-{self.backend}-{self.verdict}-{self.place}"
        return re.sub(r"[^A-Za-z0-9_]+", "-", told).strip("-")


@dataclass(frozen=True)
class Finding:
    """A site, and the smallest trial that shows it.

    Attributes:
        record: That of the agreement suite, of the worst tensor.
        values: What each backend gives at the worst index, or the verdict on it.
        inputs: Each input as text, and `shapes` its shape.
        layout: The memory layout of the inputs, then that of the cotangents.
        seed: That of the run that found it.
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
        """How many numbers the largest input has."""
        sizes = [1]
        for shape in self.shapes.values():
            size = 1
            for length in shape:
                size *= length
            sizes.append(size)
        return max(sizes[1:], default=0)


def flags(problem: Problem) -> str:
    """What is switched on or off, and whether an input is empty; part of a place."""
    told = [
        name if value else f"not-{name}"
        for name, value in sorted(problem.attributes.items())
        if isinstance(value, bool)
    ]
    if problem.empty:
        told.append("empty")
    return "".join(f"-{flag}" for flag in told)


def sites(problem: Problem, records: Iterable[AgreeRecord]) -> dict[Site, AgreeRecord]:
    """What goes wrong in one trial: a site for each backend, with its worst record.

    If outputs are wrong, the rest is too as a matter of course: they come first.
    """
    op = problem.op
    by_backend: dict[str, list[AgreeRecord]] = {}
    for record in records:
        by_backend.setdefault(record.backend, []).append(record)
    found = {}
    for backend, own in by_backend.items():
        wrong = [r for r in own if r.verdict not in PASSING]
        first = [r for r in wrong if _pass(op, r) == "forward"]
        if wrong:
            worst = max(first or wrong, key=_badness)
            place = _place(op, worst) + flags(problem)
            found[Site(op.name, backend, worst.verdict, place)] = worst
    return found | _conventions(op, by_backend)


def _badness(record: AgreeRecord) -> tuple[bool, float]:
    """A number that is not there is worse than a wrong one."""
    distance = record.distance
    return record.verdict != "disagree", -1.0 if distance is None else distance


def _place(op: Op, record: AgreeRecord) -> str:
    if record.tensor == "all":
        return "run"
    rounds = record.verdict == "nonfinite" or bool(record.radius)
    return _pass(op, record) + (f"-{record.dtype}" if rounds else "")


def _pass(op: Op, record: AgreeRecord) -> str:
    """Where a tensor comes from."""
    if record.tensor in op.outputs:
        return "forward"
    return "state" if record.tensor in op.state else "backward"


def _conventions(
    op: Op, by_backend: Mapping[str, Sequence[AgreeRecord]]
) -> dict[Site, AgreeRecord]:
    """Frameworks whose own call breaks ties as no other's does, nor the reference."""
    told = {
        backend: record
        for backend, records in by_backend.items()
        if backend.endswith("_autograd")
        for record in records
        if record.verdict == "convention"
    }
    names = [record.convention for record in told.values()]
    return {
        Site(op.name, backend, "convention", record.convention): record
        for backend, record in told.items()
        if record.convention != "first" and names.count(record.convention) == 1
    }
