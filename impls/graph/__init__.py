"""A small automatic differentiation engine on NumPy.

Calling a function of this package only *builds* a graph: a `Node` remembers its
`Primitive` and its input nodes. `forward` walks the graph in topological order
(post-order depth-first search from the outputs) and fills in the values; `gradient`
walks it in reverse and *adds* the contributions of several paths to a node. A rule
returns nodes, not numbers, so a gradient is a node of the same graph: it can be
evaluated, inspected, and given a running error, like any other.

    x, w = variable(np.ones(3)), variable(np.arange(3.0))
    y = sum(exp(x) * w)
    dx, dw = gradient([y], [np.ones(())], [x, w])
    dx.value

The package is itself the `xp` that an op's formula is called with: names and arguments
are those of the array API standard (2024.12), plus `sigmoid`, `exp2`, `erf`, `erfc`,
`rsqrt`, `logsumexp`, `einsum`, `pad`, `sliding_windows`, `gather`, `scatter_add` and
`stop_gradient`. Functions are methods, too: x.sum(axis=0). A missing name raises
AttributeError with the nearest name, or with another way to write it.

Files: engine.py (nodes and sweeps), moves.py and indexing.py (moving elements),
choices.py (comparisons, where), elementwise.py and special.py, selection.py (maxima),
arithmetic.py, reductions.py, products.py, creation.py (constants); parts.py (what some
elements depend on), blocks.py (a sweep by blocks of rows), rewriting.py and forms.py
(steps and values that are replaced).
"""

from typing import Any

from gradwatch.impls.graph import (  # each registers functions for formulas
    arithmetic,
    choices,
    creation,
    elementwise,
    indexing,
    moves,
    products,
    reductions,
    selection,
)
from gradwatch.impls.graph.choices import as_run, is_other_side, other_side
from gradwatch.impls.graph.engine import (
    FLOATING,
    FUNCTIONS,
    PRIMITIVES,
    Array,
    Builder,
    Foreign,
    Node,
    Primitive,
    Record,
    as_array,
    cancelling_last,
    computed,
    computing,
    forward,
    forward_dropping,
    gradient,
    is_cancelling_last,
    on,
    primitive,
    recorded,
    recording,
    rounded_to,
    topological_order,
    variable,
)
from gradwatch.impls.graph.hints import miss
from gradwatch.impls.graph.selection import (
    BOUNDED,
    SELECTIONS,
    SHARED,
    TIES,
    Choice,
    convention,
    pick,
    share,
    ties,
)

__all__ = [
    "BOUNDED",
    "FLOATING",
    "FUNCTIONS",
    "PRIMITIVES",
    "SELECTIONS",
    "SHARED",
    "TIES",
    "Array",
    "Builder",
    "Choice",
    "Foreign",
    "Node",
    "Primitive",
    "Record",
    "arithmetic",
    "as_array",
    "as_run",
    "cancelling_last",
    "choices",
    "computed",
    "computing",
    "convention",
    "creation",
    "elementwise",
    "forward",
    "forward_dropping",
    "gradient",
    "indexing",
    "is_cancelling_last",
    "is_other_side",
    "moves",
    "on",
    "other_side",
    "pick",
    "primitive",
    "products",
    "recorded",
    "recording",
    "reductions",
    "rounded_to",
    "selection",
    "share",
    "ties",
    "topological_order",
    "variable",
]

globals().update(FUNCTIONS | creation.CONSTANTS)


def __getattr__(name: str) -> Any:
    return miss(name, FUNCTIONS)
