"""Text for a Markdown document: nothing in it ends a cell or starts markup."""

from __future__ import annotations

import re


def cell(text: str) -> str:
    """One line that ends no cell of a table, and no markup of a message's own."""
    return " ".join(re.sub(r"([|<>*`\[\]\\])", r"\\\1", text).split())
