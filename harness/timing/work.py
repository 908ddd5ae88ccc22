"""The least work of an op: bytes to move, and floating-point operations.

Both are counted from the formula's graph, so no page has to state them. The bytes are
those that every implementation must move: each input and each output once. The
operations are those of the formula as written: one for each element of each primitive,
two for each term of a matrix product.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gradwatch.harness.judging.cases import run_formula
from gradwatch.impls import graph
from gradwatch.impls.contract import Problem

_FREE = {
    *("reshape", "permute_dims", "broadcast_to", "stop_gradient", "gather"),
    *("take", "put"),  # primitives of older commits' engines
}


class Work(NamedTuple):
    """The work of one phase: bytes in and out, operations."""

    bytes: int
    flops: int


def work(problem: Problem) -> dict[str, Work]:
    """The least work of forward and of backward, without saved tensors."""
    op = problem.op
    leaves = {n: graph.variable(a) for n, a in problem.inputs.items()}
    results = run_formula(problem, leaves)
    named = dict(zip(op.outputs, results, strict=False))
    pairs = [
        (named[n], np.ones(named[n].shape) if dy is None else dy)
        for n, dy in zip(op.outputs, problem.cotangents, strict=True)
        if n not in op.integers
    ]
    wanted = [leaves[n] for n in problem.wanted]
    nodes = graph.gradient([y for y, _ in pairs], [dy for _, dy in pairs], wanted)
    gradients = [node for node in nodes if node is not None]
    forward = set(graph.topological_order(results))
    backward = set(graph.topological_order(gradients)) - forward
    inputs, made, given = (
        sum(node.value.nbytes for node in nodes)
        for nodes in (leaves.values(), results, gradients)
    )
    cotangents = sum(y.value.nbytes for y, _ in pairs)
    return {
        "forward": Work(inputs + made, sum(map(_flops, forward))),
        "backward": Work(inputs + cotangents + given, sum(map(_flops, backward))),
    }


def _flops(node: graph.Node) -> int:
    name = node.primitive.name if node.primitive else ""
    if not name or name in _FREE:
        return 0
    if name == "matmul":
        return 2 * node.size * node.inputs[0].shape[-1]
    if name in ("sum", "sum_to", "max", "argmax", "pick"):
        return node.inputs[0].size
    if name == "scatter_add":  # the first value at a place is no addition
        return int(node.inputs[0].size - np.unique(node.attributes["index"]).size)
    return node.size
