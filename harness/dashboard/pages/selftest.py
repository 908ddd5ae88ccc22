"""The tables of `gradwatch selftest`: what each judge catches and falsely rejects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gradwatch.harness.dashboard.sources import Source
from gradwatch.harness.project.records import SelftestSummary

Row = tuple[str, str, int, Mapping[str, float]]


@dataclass(frozen=True)
class Selftest:
    """Rows of (precision, effect, number of runs, share of each judge)."""

    judges: tuple[str, ...]
    caught: tuple[Row, ...]
    accused: tuple[Row, ...]
    required: tuple[tuple[str, str, bool], ...]


def selftest(source: Source | None) -> Selftest | None:
    """The tables of a document; None if it has none."""
    if source is None or not source.summary.detection:
        return None
    summary: SelftestSummary = source.summary
    caught = tuple((r.dtype, r.effect, r.runs, r.caught) for r in summary.detection)
    accused = tuple(
        (r.dtype, "right", r.tensors, r.accused) for r in summary.false_alarms
    )
    required = tuple((r.required, r.found, r.met) for r in summary.requirements)
    names = (judge for *_, shares in (*caught, *accused) for judge in shares)
    return Selftest(tuple(dict.fromkeys(names)), caught, accused, required)
