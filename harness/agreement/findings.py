"""Findings of the fuzzer: where a backend fails, and a small input that shows it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gradwatch.harness.project.records import AgreeRecord, FindingRecord
from gradwatch.harness.project.verdicts import PASSING
from gradwatch.impls.contract import Op

DEATHS = ("crash", "timeout")


def finding_of(record: AgreeRecord, part: str) -> FindingRecord:
    """The finding that a record shows: two with equal ids are the same.

    Args:
        record: Of the worst tensor, as the agreement suite makes it.
        part: The first part that fails: forward, backward, state, or run for all.
    """
    rounds = record.verdict == "nonfinite" or bool(record.radius)
    dtype = record.dtype if rounds and record.tensor != "all" else ""
    place = "-".join(filter(None, [part, dtype, *record.flags]))
    name = f"{record.op}-{record.backend}-{record.verdict}-{place}"
    return FindingRecord(
        id=re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-"),
        op=record.op,
        backend=record.backend,
        verdict=record.verdict,
        place=place,
        part=part,
        record=record,
    )


def flags(attributes: Mapping[str, Any], empty: bool) -> list[str]:
    """What a problem has beside numbers: training, not-training, empty."""
    names = [
        name if value else f"not-{name}"
        for name, value in sorted(attributes.items())
        if isinstance(value, bool)
    ]
    return [*names, "empty"] if empty else names


def findings_of(op: Op, records: Iterable[AgreeRecord]) -> list[FindingRecord]:
    """The failures in one trial: one for each backend, with its worst record.

    Wrong outputs come first, because they make the gradients wrong as well.
    """
    by_backend: dict[str, list[AgreeRecord]] = {}
    for record in records:
        by_backend.setdefault(record.backend, []).append(record)
    found = list[FindingRecord]()
    for own in by_backend.values():
        wrong = [r for r in own if r.verdict not in PASSING]
        first = [r for r in wrong if _pass(op, r) == "forward"]
        if wrong:
            worst = max(first or wrong, key=_badness)
            found.append(finding_of(worst, _pass(op, worst)))
    return found


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
