"""The map from ATen operators to rules in the engine, gathered from its parts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradwatch.harness.tracing.aten import (
    elementwise,
    matrices,
    moves,
    pooling,
    products,
    reductions,
    segments,
)
from gradwatch.impls import graph

Rule = Callable[..., Any]
_PARTS = (elementwise, reductions, moves, segments, products, pooling, matrices)


def _gathered(table: str) -> dict[str, Rule]:
    parts = (getattr(part, table, {}) for part in _PARTS)
    return {name: rule for part in parts for name, rule in part.items()}


#: Rules that get every tensor argument as a node of floats.
ON_FLOATS = _gathered("ON_FLOATS")
#: Rules that get nodes, exact tensors and numbers as they come.
ON_VALUES = _gathered("ON_VALUES")
#: Those that only move elements.
MOVES: dict[str, Rule] = dict.fromkeys(moves.MOVES, graph.gather)
