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
#: Rules that get every tensor argument as a node of floats.
ON_FLOATS: dict[str, Rule] = {
    **elementwise.ON_FLOATS,
    **reductions.ON_FLOATS,
    **products.ON_FLOATS,
    **pooling.ON_FLOATS,
    **matrices.ON_FLOATS,
}
#: Rules that get nodes, exact tensors and numbers as they come.
ON_VALUES: dict[str, Rule] = {
    **elementwise.ON_VALUES,
    **reductions.ON_VALUES,
    **moves.ON_VALUES,
    **segments.ON_VALUES,
    **products.ON_VALUES,
    **matrices.ON_VALUES,
}

#: Those that only move elements.
MOVES: dict[str, Rule] = dict.fromkeys(moves.MOVES, graph.gather)
