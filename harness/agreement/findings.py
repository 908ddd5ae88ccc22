"""Findings of the fuzzer: where a backend fails, and a small input that shows it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.project.verdicts import PASSING
from gradwatch.impls.contract import Op

DEATHS = ("crash", "timeout")


@dataclass(frozen=True)
class Site:
    """Identifies a finding: two findings with equal sites are the same.

    Attributes:
        part: The first part that fails: forward, backward, state, or run for all.
        dtype: The precision, if rounding is involved.
        flags: What `flags` says of the problem.
        convention: For a convention, its name; then it stands for the other three.
    """

    op: str
    backend: str
    verdict: str
    part: str = ""
    dtype: str = ""
    flags: tuple[str, ...] = ()
    convention: str = ""

    @staticmethod
    def of(record: AgreeRecord, part: str, flags: Iterable[str]) -> Site:
        """The site of a record; `part` and `flags` are those of the attributes."""
        where = (record.op, record.backend, record.verdict)
        if record.verdict == "convention":
            return Site(*where, convention=record.convention)
        rounds = record.verdict == "nonfinite" or bool(record.radius)
        dtype = record.dtype if rounds and record.tensor != "all" else ""
        return Site(*where, part, dtype, tuple(flags))

    @property
    def place(self) -> str:
        """In words: "forward-float32-training", or the name of the convention."""
        return "-".join(
            filter(None, (self.part, self.dtype, *self.flags, self.convention))
        )

    @property
    def id(self) -> str:
        """The name of the finding, unique to its site."""
        name = f"{self.op}-{self.backend}-{self.verdict}-{self.place}"
        return re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")


@dataclass(frozen=True)
class Finding:
    """A site, and the smallest trial that shows it.

    Attributes:
        record: The record of the worst tensor, as the agreement suite makes it.
        shapes: Of each input.
        seed: The seed of the run that found it.
        script: The name of the file that reproduces it; several sites of one defect
            may share it. "" if it is not saved.
        text: The script, if it was written just now.
    """

    site: Site
    record: AgreeRecord
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    seed: int = 0
    script: str = ""
    text: str = ""

    @property
    def elements(self) -> int:
        """The number of elements of the largest input."""
        return max(map(math.prod, self.shapes.values()), default=0)


def flags(attributes: Mapping[str, Any], empty: bool) -> list[str]:
    """What a problem has beside numbers: training, not-training, empty."""
    names = [
        name if value else f"not-{name}"
        for name, value in sorted(attributes.items())
        if isinstance(value, bool)
    ]
    return [*names, "empty"] if empty else names


def sites(op: Op, records: Iterable[AgreeRecord]) -> dict[Site, AgreeRecord]:
    """The failures in one trial: a site for each backend, with its worst record.

    Wrong outputs come first, because they make the gradients wrong as well.
    """
    by_backend: dict[str, list[AgreeRecord]] = {}
    for record in records:
        by_backend.setdefault(record.backend, []).append(record)
    worst_by_site = {}
    for own in by_backend.values():
        wrong = [r for r in own if r.verdict not in PASSING]
        first = [r for r in wrong if _pass(op, r) == "forward"]
        if wrong:
            worst = max(first or wrong, key=_badness)
            worst_by_site[Site.of(worst, _pass(op, worst), worst.flags)] = worst
    return worst_by_site | _conventions(by_backend)


def _badness(record: AgreeRecord) -> tuple[bool, float]:
    """Sorts records: a missing or infinite number is worse than a wrong one."""
    distance = record.distance
    return record.verdict != "disagree", -1.0 if distance is None else distance


def _pass(op: Op, record: AgreeRecord) -> str:
    """The part that computes a tensor: forward, backward, state, or run for all."""
    if record.tensor == "all":
        return "run"
    if record.tensor in op.outputs:
        return "forward"
    return "state" if record.tensor in op.state else "backward"


def _conventions(
    by_backend: Mapping[str, Sequence[AgreeRecord]],
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
        Site.of(record, "", ()): record
        for record in chosen.values()
        if record.convention != "first" and names.count(record.convention) == 1
    }
