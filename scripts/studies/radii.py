"""Both radii against the true error, over the depth of a network: docs/radii.svg.

    python -m scripts.studies.radii [TARGET]

x -> tanh(x W), 2 to 50 times over, in float32. For the gradient of the first weight:
the median over its elements of the error of float32, of the spread, and of the bound.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.figure import Figure

if __package__ in (None, ""):  # run by path
    sys.path.insert(0, str(Path(__file__).parents[2]))

from gradwatch.harness.judging.reference import reference_of_graph
from gradwatch.impls import graph
from scripts.studies.detection import SETTINGS, write_figure

DEPTHS = (2, 3, 5, 8, 12, 20, 30, 50)
ROWS, WIDTH = 8, 16
TARGET = Path(__file__).parents[2] / "docs" / "radii.svg"


def gradient(arrays: list[np.ndarray], dtype: str) -> graph.Node:
    """The gradient of the first weight, as a node."""
    dy, x, *weights = (a.astype(dtype) for a in arrays)
    leaves = [graph.variable(w) for w in weights]
    y = graph.variable(x)
    for leaf in leaves:
        y = graph.tanh(graph.matmul(y, leaf))
    (node,) = graph.gradient([y], [dy], leaves[:1])
    assert node is not None
    return node


def measured(depth: int) -> tuple[float, float, float]:
    """Medians of error, spread and bound, relative to the gradient."""
    rng = np.random.default_rng(depth)
    shapes = [(ROWS, WIDTH)] * 2 + [(WIDTH, WIDTH)] * depth
    arrays = [
        (rng.standard_normal(s) / (WIDTH**0.5 if i > 1 else 1)).astype("float32")
        for i, s in enumerate(shapes)
    ]
    right = reference_of_graph(lambda: {"dw": gradient(arrays, "float64")}, "float32")
    truth = right.bounds()["dw"]
    size = np.abs(truth.value)
    error = np.abs(gradient(arrays, "float32").value - truth.value)
    three = (error, right.spreads()["dw"], truth.radius)
    return tuple(float(np.median(part / size)) for part in three)  # type: ignore[return-value]  # three parts


def lines() -> Iterator[tuple[str, str, list[float]]]:
    """Name, style and values of each line."""
    rows = np.array([measured(depth) for depth in DEPTHS])
    names = ("true error of float32", "spread", "bound")
    for name, style, values in zip(
        names, ("ko-", "C0s--", "C1^:"), rows.T, strict=True
    ):
        yield name, style, values.tolist()


def main(target: Path = TARGET) -> None:
    """Draw the picture."""
    with rc_context(SETTINGS):
        figure = Figure(figsize=(6.5, 3.4), layout="constrained")
        ax = figure.subplots()
        for name, style, values in lines():
            ax.plot(DEPTHS, values, style, label=name)
        ax.axhline(0.1, color="0.5", lw=0.8)
        ax.annotate(
            "a tenth of the gradient", (DEPTHS[-1], 0.13), ha="right", color="0.4"
        )
        ax.set(
            yscale="log",
            xlabel="layers",
            ylabel="share of the gradient",
            ylim=(1e-8, 1e6),
        )
        ax.grid(alpha=0.3)
        ax.legend(loc="upper right", frameon=False)
        write_figure(figure, target)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
