"""The record of a function's runs; the script of a finding holds this text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

Tensor = TypeVar("Tensor")


@dataclass
class Observation(Generic[Tensor]):
    """The outputs and gradients of a function, and its faults.

    `outputs` and `gradients` are copies of those of the first sweep; `leaves` are its
    arguments, as they are afterwards. `others` are gradients that have to be the same:
    how they were computed, which tensors were frozen, and the gradients, then the
    outputs where these were computed again. `faults` are ("input" or "output" or ...,
    its index, what went wrong), `raised` the later runs that raised; `repeatable` says
    whether a second run gave the same bits.
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
