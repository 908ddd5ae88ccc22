"""What a function was seen to do; the script of a finding holds this text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

Tensor = TypeVar("Tensor")


@dataclass
class Observation(Generic[Tensor]):
    """What a function did.

    `outputs` and `gradients` are copies of what the first sweep gave; `leaves` are what
    it was called with, afterwards. `others` are gradients that have to be the same: how
    they were got, which tensors were frozen, and what came out, outputs behind them
    where these were run again. `faults` are ("input" or "output" or ..., its place,
    what went wrong), `raised` what was run after the first sweep and raised;
    `repeatable` says whether a second run gave the same bits.
    """

    outputs: list[Tensor]
    gradients: list[Tensor | None]
    leaves: list[Tensor]
    others: list[tuple[str, tuple[int, ...], list[Tensor | None]]] = field(
        default_factory=list
    )
    faults: list[tuple[str, int, str]] = field(default_factory=list)
    raised: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)
    repeatable: bool = True
