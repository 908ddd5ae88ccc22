"""The look of each backend in every chart: its framework's colour, its dialect's shape.

Each colour has a contrast of at least 3:1 (WCAG 2.2, 1.4.11) with the light and with
the dark background, so one serves both; neighbours are as different as they can be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradwatch.harness.dashboard.families import dialect_of, families
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


@dataclass(frozen=True)
class Style:
    """Colour, marker and dash of one runner."""

    colour: str
    marker: str
    dash: str

    @property
    def sign(self) -> str:
        """The marker as a letter."""
        return MARKERS[self.marker]


def styles(runners: Sequence[str]) -> dict[str, Style]:
    """A style for each runner: its framework's colour, its dialect's shapes."""
    named = {dialect_of(runner) for runner in runners}
    names = sorted(named, key=lambda name: (name not in DIALECTS, name))
    shapes = list(zip(MARKERS, DASHES, strict=True))
    return {
        runner: Style(
            COLOURS[i % len(COLOURS)],
            *shapes[names.index(dialect_of(runner)) % len(shapes)],
        )
        for i, family in enumerate(families(runners))
        for runner in family.runners
    }
