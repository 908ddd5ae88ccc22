"""Tables in Markdown; text escaped for it and for XML, so that it cannot be markup."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def cell(text: str) -> str:
    """Text as one line that ends no table cell, starts no markup and mentions nobody.

    A zero-width space follows each @ or # that would mention a person or an issue.
    """
    text = re.sub(r"(?<!\w)([@#])(?=\w)", "\\1\u200b", text)
    return " ".join(re.sub(r"([|<>*`\[\]\\])", r"\\\1", text).split())


def code(text: str) -> str:
    """Text as code in one line; a backtick, which would end it, becomes a quote."""
    return f"`{' '.join(text.split()).replace('`', chr(39))}`"


def table(head: Sequence[Any], rows: Iterable[Sequence[Any]]) -> str:
    """A table; its cells are not escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def legal_xml(text: str) -> str:
    """The text without characters that XML cannot contain."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
