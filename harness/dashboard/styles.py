"""The look of each backend in every chart: a hue for its framework, its own shape.

Colours are computed: each has a contrast of at least 3:1 (WCAG 2.2, 1.4.11) with the
light and with the dark background, so one colour serves both.
"""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass

from impls.catalogue import framework_of

MARKERS = ("circle", "square", "triangle", "diamond", "inverted_triangle", "hex")
DASHES = ("solid", "dashed", "dotted", "dotdash", "dashdot")
_HUES = (0.58, 0.07, 0.40, 0.80, 0.95, 0.15)  # blue, orange, green, purple, red, yellow
_LUMINANCES = (
    0.20,
    0.135,
    0.285,
)  # 3:1: at most 0.30 on white, 0.13 or more on #14171c


@dataclass(frozen=True)
class Style:
    """Colour, marker and dash of one runner."""

    colour: str
    marker: str
    dash: str


def styles(runners: Sequence[str]) -> dict[str, Style]:
    """A style for each runner."""
    families: dict[str, list[str]] = {}
    for runner in sorted(runners):
        families.setdefault(framework_of(runner), []).append(runner)
    return {
        runner: Style(
            colour(_HUES[i % len(_HUES)], _LUMINANCES[k % len(_LUMINANCES)]),
            MARKERS[k % len(MARKERS)],
            DASHES[k % len(DASHES)],
        )
        for i, family in enumerate(families.values())
        for k, runner in enumerate(family)
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
