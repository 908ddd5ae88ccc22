"""Escapes text for Markdown and XML, so that it cannot be markup or illegal."""

from __future__ import annotations

import re

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def cell(text: str) -> str:
    """Text as one line that cannot end a table cell or start markup."""
    return " ".join(re.sub(r"([|<>*`\[\]\\])", r"\\\1", text).split())


def code(text: str) -> str:
    """The same, set as code; a backtick in it would end that, so it becomes a quote."""
    return f"`{' '.join(text.split()).replace('`', chr(39))}`"


def legal_xml(text: str) -> str:
    """The text without characters that XML cannot contain."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", text)
