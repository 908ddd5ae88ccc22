"""What `gradwatch selftest` found: which judge catches what, and whom it accuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.dashboard.sources import Source


@dataclass(frozen=True)
class Selftest:
    """Shares by judge: rows of (precision, effect, how many, share by judge)."""

    judges: tuple[str, ...]
    caught: tuple[tuple[str, str, int, Mapping[str, float]], ...]
    accused: tuple[tuple[str, str, int, Mapping[str, float]], ...]
    required: tuple[tuple[str, str, bool], ...]


def selftest(source: Source | None) -> Selftest | None:
    """The tables of a document, or None where there is none of that form."""
    if source is None:
        return None
    told: Mapping[str, Any] = source.summary
    try:
        caught = tuple(
            (str(r["dtype"]), str(r["effect"]), int(r["runs"]), _shares(r["caught"]))
            for r in told["detection"]
        )
        accused = tuple(
            (str(r["dtype"]), "right", int(r["tensors"]), _shares(r["accused"]))
            for r in told["false_alarms"]
        )
        required = tuple(
            (str(r["required"]), str(r["found"]), bool(r["met"]))
            for r in told["requirements"]
        )
    except (KeyError, TypeError, ValueError):
        return None
    names = (judge for *_, shares in (*caught, *accused) for judge in shares)
    return Selftest(tuple(dict.fromkeys(names)), caught, accused, required)


def _shares(told: Mapping[str, Any]) -> dict[str, float]:
    return {str(judge): float(share) for judge, share in dict(told).items()}
