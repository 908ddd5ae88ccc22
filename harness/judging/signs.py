"""One sign and colour for each verdict, in the terminal and on the pages."""

# A verdict is told by its sign as well as by its colour.
SIGNS = {
    "agree": ("✓", "green"),
    "convention": ("≈", "cyan"),
    "imprecise": ("~", "yellow"),
    "vacuous": ("○", "bright_black"),
    "unsupported": ("–", "bright_black"),
    "disagree": ("✗", "bold red"),
    "nonfinite": ("∞", "bold red"),
    "malformed": ("!", "bold red"),
    "error": ("E", "bold red"),
    "crash": ("†", "bold red"),
    "timeout": ("⏱", "bold red"),
}
