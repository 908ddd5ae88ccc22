"""The look of each backend in every chart: its framework's colour, its dialect's shape.

Colours are computed: each has a contrast of at least 3:1 (WCAG 2.2, 1.4.11) with the
light and with the dark background, so one colour serves both.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass

from gradwatch.harness.dashboard.families import dialect_of, families
from gradwatch.impls.contract import DIALECTS

# Of the dialects: Bokeh's markers, and the lengths of dashes and gaps in pixels.
MARKERS = (
    *("circle", "square", "triangle", "diamond", "inverted_triangle", "hex", "star"),
)
DASHES = ("solid", "6", "2 4", "10 3 2 3", "12 3", "6 4 2 4", "1 2")

# Of the frameworks: hue and luminance, neighbours as different as they can be. 3:1
# needs at most 0.30 on white, and 0.13 or more on #14171c.
_COLOURS = (
    (0.58, 0.20),  # blue
    (0.07, 0.24),  # orange
    (0.36, 0.17),  # green
    (0.77, 0.15),  # purple
    (0.50, 0.28),  # teal
    (0.99, 0.17),  # red
    (0.14, 0.28),  # ochre
    (0.89, 0.26),  # pink
)


@dataclass(frozen=True)
class Style:
    """Colour, marker and dash of one runner."""

    colour: str
    marker: str
    dash: str


def styles(runners: Sequence[str]) -> dict[str, Style]:
    """A style for each runner: its framework's colour, its dialect's shapes."""
    named = {dialect_of(runner) for runner in runners}
    names = sorted(named, key=lambda name: (name not in DIALECTS, name))
    shapes = {name: place for place, name in enumerate(names)}
    return {
        runner: Style(
            colour(*_COLOURS[i % len(_COLOURS)]),
            MARKERS[shapes[dialect_of(runner)] % len(MARKERS)],
            DASHES[shapes[dialect_of(runner)] % len(DASHES)],
        )
        for i, family in enumerate(families(runners))
        for runner in family.runners
    }


def colour(hue: float, target: float) -> str:
    """The saturated colour of a hue (0 to 1) with a relative luminance, as #rrggbb."""
    dark, light = 0.0, 1.0
    for _ in range(20):  # bisection to much less than one step of 255
        middle = (dark + light) / 2
        if luminance(colorsys.hls_to_rgb(hue, middle, 0.85)) < target:
            dark = middle
        else:
            light = middle
    red, green, blue = colorsys.hls_to_rgb(hue, dark, 0.85)
    return "#" + "".join(f"{round(255 * part):02x}" for part in (red, green, blue))


def luminance(rgb: Sequence[float]) -> float:
    """Relative luminance of sRGB parts between 0 and 1, as WCAG 2.2 defines it."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in rgb
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
