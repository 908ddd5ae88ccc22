"""Escapes text for Markdown, so that it cannot end a cell or start markup."""

from __future__ import annotations

import re


def cell(text: str) -> str:
    """Text as one line that cannot end a table cell or start markup."""
    return " ".join(re.sub(r"([|<>*`\[\]\\])", r"\\\1", text).split())
