"""Backends by framework: columns of the matrix, entries of legends, looks in charts.

The colour of a backend is its framework's, its shape is its dialect's. Each colour has
a contrast of at least 3:1 (WCAG 2.2, 1.4.11) with the light and with the dark
background, so one serves both; neighbours are as different as they can be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gradwatch.harness.dashboard.matrix import Cell
from gradwatch.impls.catalogue import framework_of
from gradwatch.impls.contract import DIALECTS

#: Of the frameworks: blue, orange, green, purple, teal, red, ochre, pink.
COLOURS = (
    *("#127ddf", "#d86512", "#0b851e", "#a125ed"),
    *("#0da1a1", "#e4121f", "#a88f0e", "#f044b5"),
)
BAD, GOOD = "#d4351c", "#2e8b57"

#: Of the dialects: names and signs of Bokeh's markers; dashes and gaps in pixels.
MARKERS = {
    "circle": "●",
    "square": "■",
    "triangle": "▲",
    "diamond": "◆",
    "inverted_triangle": "▼",
    "hex": "⬢",
    "star": "★",
}
DASHES = ("solid", "6", "2 4", "10 3 2 3", "12 3", "6 4 2 4", "1 2")


class Family(NamedTuple):
    """The backends of one framework on one device, under the name of both."""

    name: str
    runners: tuple[str, ...]

    def worst(self, row: Mapping[str, Cell]) -> Cell:
        """The cell that a folded column shows."""
        return max((row[runner] for runner in self.runners), key=lambda c: c.rank)


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


class Style(NamedTuple):
    """Colour, marker and dash of one runner; the sign is the marker as a letter."""

    colour: str
    marker: str
    sign: str
    dash: str


def styles(runners: Sequence[str]) -> dict[str, Style]:
    """A style for each runner: its framework's colour, its dialect's shapes."""
    named = {dialect_of(runner) for runner in runners}
    names = sorted(named, key=lambda name: (name not in DIALECTS, name))
    shapes = [(*m, dash) for m, dash in zip(MARKERS.items(), DASHES, strict=True)]
    return {
        runner: Style(
            COLOURS[i % len(COLOURS)],
            *shapes[names.index(dialect_of(runner)) % len(shapes)],
        )
        for i, family in enumerate(families(runners))
        for runner in family.runners
    }
