"""Reads mistakes.toml: the mistakes that people make in backwards, as edits of text."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

#: What is wrong, a fragment of a backward, what stands there instead.
Edit = tuple[str, str, str]


@functools.cache
def read_mistakes() -> Mapping[str, Sequence[Edit]]:
    """Return the edits of each op that has some.

    Only the process that asks calls this: a worker's Python may have no TOML parser.
    """
    parser = importlib.import_module(
        "tomllib" if sys.version_info >= (3, 11) else "tomli"
    )
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    table = parser.loads(text)
    return {op: [(a, b, c) for a, b, c in edits] for op, edits in table.items()}
