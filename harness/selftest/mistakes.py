"""Reads mistakes.toml: the mistakes that people make in backwards, as edits of text."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from gradwatch.harness.project.paths import toml


@functools.cache
def read_mistakes() -> Mapping[str, Sequence[tuple[str, str, str]]]:
    """Return the edits of each op: what is wrong, a fragment, what replaces it.

    Only the process that asks calls this: a worker's Python may have no TOML parser.
    """
    table = toml(Path(__file__).with_suffix(".toml"))
    return {op: [(a, b, c) for a, b, c in edits] for op, edits in table.items()}
