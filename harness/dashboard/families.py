"""Backends by framework: the columns of the matrix, and the entries of the legends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gradwatch.harness.dashboard.matrix import Cell
from gradwatch.harness.project.verdicts import VERDICTS
from gradwatch.impls.catalogue import framework_of

# What a cell says that has no error to show; the least comes first.
_CALM = ("none", "missing", "unsupported", "agree", "vacuous")


@dataclass(frozen=True)
class Family:
    """The backends of one framework on one device, under the name of both."""

    name: str
    runners: tuple[str, ...]

    def worst(self, row: Mapping[str, Cell]) -> Cell:
        """The cell that a folded column shows."""
        return max((row[runner] for runner in self.runners), key=_badness)


def families(runners: Iterable[str]) -> tuple[Family, ...]:
    """Backends grouped by framework and device, both in alphabetical order."""
    groups: dict[str, list[str]] = {}
    for runner in sorted(runners):
        groups.setdefault(family_of(runner), []).append(runner)
    return tuple(Family(name, tuple(groups[name])) for name in sorted(groups))


def family_of(runner: str) -> str:
    """torch of torch_custom, and "torch on cuda" of "torch_custom on cuda (old)"."""
    backend, on, device = runner.partition(" (")[0].partition(" on ")
    return framework_of(backend) + on + device


def dialect_of(runner: str) -> str:
    """custom of torch_custom, and "custom (old)" of "torch_custom on cuda (old)"."""
    runner, bracket, versions = runner.partition(" (")
    backend = runner.partition(" on ")[0]
    return (backend.partition("_")[2] or backend) + bracket + versions


def _badness(cell: Cell) -> tuple[bool, bool, bool, int, int, float]:
    """Sorts cells, the worst last: wrong, then a known defect, then by verdict."""
    calm = _CALM.index(cell.verdict) if cell.verdict in _CALM else len(_CALM)
    severe = VERDICTS.index(cell.verdict) if cell.verdict in VERDICTS else 0
    return cell.wrong, cell.astray, bool(cell.defect), calm, severe, cell.ratio or 0.0
