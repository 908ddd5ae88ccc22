"""The tables of `gradwatch selftest`: what each judge catches and falsely rejects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.dashboard.sources import Source


@dataclass(frozen=True)
class Selftest:
    """Rows of (precision, effect, number of runs, share of each judge)."""

    judges: tuple[str, ...]
    caught: tuple[tuple[str, str, int, Mapping[str, float]], ...]
    accused: tuple[tuple[str, str, int, Mapping[str, float]], ...]
    required: tuple[tuple[str, str, bool], ...]


def selftest(source: Source | None) -> Selftest | None:
    """The tables of a document; None if it does not have this form."""
    if source is None:
        return None
    summary: Mapping[str, Any] = source.summary
    try:
        caught = tuple(
            (str(r["dtype"]), str(r["effect"]), int(r["runs"]), _shares(r["caught"]))
            for r in summary["detection"]
        )
        accused = tuple(
            (str(r["dtype"]), "right", int(r["tensors"]), _shares(r["accused"]))
            for r in summary["false_alarms"]
        )
        required = tuple(
            (str(r["required"]), str(r["found"]), bool(r["met"]))
            for r in summary["requirements"]
        )
    except (KeyError, TypeError, ValueError):
        return None
    names = (judge for *_, shares in (*caught, *accused) for judge in shares)
    return Selftest(tuple(dict.fromkeys(names)), caught, accused, required)


def _shares(shares: Mapping[str, Any]) -> dict[str, float]:
    return {str(judge): float(share) for judge, share in dict(shares).items()}
