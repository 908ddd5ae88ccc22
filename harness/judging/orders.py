"""The graph of a formula's derivatives, in each order of differentiation.

Gradients are nodes, so the engine differentiates its own gradient, and the reference of
a second order has values and radii like that of a first. With inputs x, cotangents u
(one for each output y) and tangents v (one for each input):

    vjp    dx = J(x)^T u, the gradient
    jvp    jvp.y = J(x) v, forward mode: the derivative of <dx(u), v> by u
    hvp    the double backward: the gradients of <dx(x, u), v> by every input (hvp.dx,
           the Hessian of <y, u> times v) and by every cotangent (hvp.ddy)

`hvp.ddy` is mathematically `jvp.y`; implementations compute it in another way.

Source: Griewank and Walther, Evaluating Derivatives, 2nd ed., ch. 3 and 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gradwatch.harness.judging.precisions import PRECISIONS, Array, name_of
from gradwatch.impls import catalogue, graph
from gradwatch.impls.contract import Problem, as_tuple
from gradwatch.impls.graph import Node

ORDERS = ("vjp", "jvp", "hvp")
SECOND = ORDERS[1:]
#: Most inputs for which each tangent has a gradient of its own: a sweep for each.
PARTS = 8
#: Name of the convention that takes the second derivative from the other side of a kink
#: of the gradient.
OTHER_SIDE = "other side"


def is_second(tensor: str) -> bool:
    """Whether a tensor's name is one of a second order."""
    return tensor.partition(".")[0] in SECOND


def nodes_of(problem: Problem, wide: np.dtype[Any]) -> dict[str, Node]:
    """The tensors of a problem for leaves of a type: gradients, outputs and state.

    In a second order only its derivatives.
    """
    op, order = problem.op, problem.order
    leaves, results = results_of(problem, wide)
    cotangents = {
        name: dy
        for name, dy in zip(op.outputs, problem.cotangents, strict=True)
        if dy is not None and name not in op.integers
    }
    inputs = {name: leaves[name] for name in problem.wanted}
    given = cotangents, problem.tangents
    along = (_widened(arrays, problem.dtype, wide) for arrays in given)
    computed, _ = derivatives(order, results, inputs, *along)
    return {**computed, **results} if order == "vjp" else computed


def results_of(
    problem: Problem, wide: np.dtype[Any]
) -> tuple[dict[str, Node], dict[str, Node]]:
    """The leaves of a problem by name, and its outputs and new state."""
    arrays = _widened(problem.inputs, problem.dtype, wide)
    leaves = {n: graph.variable(a) for n, a in arrays.items()}
    returned = run_formula(problem, leaves)
    results = dict(zip(problem.op.outputs + problem.op.state, returned, strict=True))
    return leaves, results


def _widened(
    arrays: Mapping[str, Array], dtype: str, wide: np.dtype[Any]
) -> dict[str, Array]:
    """Arrays rounded to a precision, in the wide type; integers stay as they are."""
    held = dict(arrays)
    for name, array in arrays.items():
        if array.dtype.kind not in "biu":
            held[name] = array.astype(wide, copy=False)
            if name_of(array.dtype) != dtype:
                held[name] = PRECISIONS[dtype].round(held[name])
    return held


def run_formula(problem: Problem, leaves: Mapping[str, Node]) -> tuple[Node, ...]:
    """The nodes that the formula returns for these inputs: outputs, then state."""
    formula = problem.op.said("formula")
    with catalogue.guard(f"{problem.op.name}.py"):
        returned = formula(graph, *problem.arguments(leaves), **problem.attributes)
    nodes: tuple[Node, ...] = as_tuple(returned)
    return nodes


def derivatives(
    order: str,
    outputs: Mapping[str, Node],
    inputs: Mapping[str, Node],
    cotangents: Mapping[str, Array],
    tangents: Mapping[str, Array],
) -> tuple[dict[str, Node], list[str]]:
    """The derivatives of an order of a graph, and names of those that no path leads to.

    The latter are zeros. `outputs` are differentiable, `inputs` the leaves; an output
    without a cotangent is ignored.
    """
    along = {
        name: graph.variable(np.asarray(dy, dtype=outputs[name].dtype))
        for name, dy in cotangents.items()
    }
    first = _gradients(outputs, along, inputs)
    reached = {name: node for name, node in first.items() if node is not None}
    if order == "vjp":
        prefix, found, sources = "d", first, dict(inputs)
    elif order == "jvp":
        prefix, sources = "jvp.", along
        found = _second(reached, tangents, sources)
    else:
        sources = {**inputs, **{f"d{name}": dy for name, dy in along.items()}}
        prefix, found = "hvp.d", _second(reached, tangents, sources)
    nodes = {
        prefix + name: graph.variable(np.zeros_like(sources[name].value))
        if node is None
        else node
        for name, node in found.items()
    }
    return nodes, [prefix + name for name, node in found.items() if node is None]


def _second(
    first: Mapping[str, Node],
    tangents: Mapping[str, Array],
    sources: Mapping[str, Node],
) -> dict[str, Node | None]:
    """Gradients of the sum of first * tangent, as the sum of each tangent's part.

    An honest implementation may add these parts last, and lose digits by cancellation.
    """
    names = [name for name in tangents if name in first]
    apart = len(names) <= PARTS and not graph.is_cancelling_last()
    groups = [[name] for name in names] if apart else [names]
    summed: dict[str, Node | None] = dict.fromkeys(sources)
    for group in groups:
        along = {name: tangents[name] for name in group}
        for name, part in _gradients(first, along, sources).items():
            before = summed[name]
            if part is not None:
                summed[name] = part if before is None else before + part
    return summed


def _gradients(
    outputs: Mapping[str, Node], along: Mapping[str, Any], inputs: Mapping[str, Node]
) -> dict[str, Node | None]:
    """Gradients of the sum of all outputs * along by each of the inputs."""
    names = [name for name in along if name in outputs]
    pulled = [along[name] for name in names]
    nodes = graph.gradient([outputs[n] for n in names], pulled, list(inputs.values()))
    return dict(zip(inputs, nodes, strict=True))
