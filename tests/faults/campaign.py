"""Kinds of faults, what each fault may cost, and the table of a campaign."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

#: What no fault may cost.
LOSSES = (
    "result lost",
    "exit 0 without judging",
    "process left",
    "traceback",
)


@dataclass(frozen=True)
class Fault:
    """A fault that was injected, and what was lost by it: details by loss."""

    what: str
    lost: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert {*self.lost} <= {*LOSSES}, self.lost


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    `share` is its part of a campaign; `inject` yields as many faults as it is asked
    for, drawn from the generator, and works in the folder that it is given.
    """

    name: str
    share: float
    inject: Callable[[int, Random, Path], Iterator[Fault]]


Campaign = Mapping[str, Sequence[Fault]]


def counts(kinds: Sequence[Kind], total: int) -> dict[str, int]:
    """How many faults of each kind there are in a campaign; at least one."""
    wanted = {kind.name: max(1, int(total * kind.share)) for kind in kinds}
    wanted[kinds[0].name] += max(0, total - sum(wanted.values()))
    return wanted


def run(
    kinds: Sequence[Kind],
    total: int,
    seed: int,
    folder: Path,
    progress: Callable[[str, Fault], None] = lambda kind, fault: None,
) -> Campaign:
    """Inject faults of all kinds; each kind has its own random numbers."""
    campaign: dict[str, list[Fault]] = {}
    for kind in kinds:
        place = folder / kind.name.replace(" ", "-")
        place.mkdir(parents=True)
        faults = campaign[kind.name] = []
        count = counts(kinds, total)[kind.name]
        for fault in kind.inject(count, Random(f"{seed} {kind.name}"), place):
            faults.append(fault)
            progress(kind.name, fault)
    return campaign


def lost(campaign: Campaign) -> list[str]:
    """A line for each loss."""
    return [
        f"{loss}: {kind}: {fault.what}: {detail}"
        for kind, faults in campaign.items()
        for fault in faults
        for loss, detail in fault.lost.items()
    ]


def table(campaign: Campaign) -> str:
    """Injected, survived and lost, by kind, in Markdown."""
    lines = [
        f"| fault | injected | survived | {' | '.join(LOSSES)} |",
        f"|---|{'---:|' * (2 + len(LOSSES))}",
    ]
    every = [fault for faults in campaign.values() for fault in faults]
    for name, faults in (*campaign.items(), ("all", every)):
        losses = Counter(loss for fault in faults for loss in fault.lost)
        survived = sum(not fault.lost for fault in faults)
        cells = (name, len(faults), survived, *(losses[loss] for loss in LOSSES))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)
