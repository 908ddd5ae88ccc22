"""Matrix products, and contractions of several axes, which are matrix products too."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwatch.impls.graph.engine import Node, as_nodes, axes_of, fit, primitive, public
from gradwatch.impls.graph.extended import product
from gradwatch.impls.graph.indexing import (
    diagonal,
    matrix_transpose,
    moveaxis,
    positions,
    windows,
)
from gradwatch.impls.graph.moves import gather, permute_dims, reshape
from gradwatch.impls.graph.reductions import sum


def _matmul_rule(dy: Node, y: Node, a: Node, b: Node) -> tuple[Node, Node]:
    batch = y.shape[:-2]
    da, db = dy @ matrix_transpose(b), matrix_transpose(a) @ dy
    return (
        fit(da, (*batch, *a.shape[-2:]), a.shape),
        fit(db, (*batch, *b.shape[-2:]), b.shape),
    )


def _shape(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if a[-1] != b[-2]:
        raise ValueError(f"matrices of shapes {a} and {b} cannot be multiplied")
    return (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])


_matmul = primitive("matmul", product, _matmul_rule, shape=_shape)


@public
def matmul(a: Any, b: Any) -> Node:
    """Matrix product with the array API's treatment of vectors and leading axes."""
    a, b = as_nodes((a, b))
    rows = reshape(a, (1, a.shape[0])) if a.ndim == 1 else a
    columns = reshape(b, (b.shape[0], 1)) if b.ndim == 1 else b
    product = _matmul(rows, columns)
    if a.ndim > 1 and b.ndim > 1:
        return product
    shape = product.shape[:-2] + a.shape[-2:-1] + (b.shape[-1:] if b.ndim > 1 else ())
    return reshape(product, shape)


@public
def vecdot(a: Any, b: Any, *, axis: int = -1) -> Node:
    """Sum of products along an axis."""
    return sum(a * b, axis)


@public
def outer(a: Any, b: Any) -> Node:
    """All products of the elements of two vectors."""
    a, b = as_nodes((a, b))
    return reshape(a, (-1, 1)) * reshape(b, (1, -1))


@public
def tensordot(a: Any, b: Any, *, axes: Any = 2) -> Node:
    """Products summed over the last axes of a and the first of b, or over pairs."""
    a, b = as_nodes((a, b))
    if isinstance(axes, int):
        axes = (range(a.ndim - axes, a.ndim), range(axes))
    left, right = axes_of(tuple(axes[0]), a.ndim), axes_of(tuple(axes[1]), b.ndim)
    rest_a = [i for i in range(a.ndim) if i not in left]
    rest_b = [i for i in range(b.ndim) if i not in right]
    terms = math.prod(a.shape[i] for i in left)
    rows = reshape(permute_dims(a, (*rest_a, *left)), (-1, terms))
    columns = reshape(permute_dims(b, (*right, *rest_b)), (terms, -1))
    shape = (*(a.shape[i] for i in rest_a), *(b.shape[i] for i in rest_b))
    return reshape(matmul(rows, columns), shape)


def convolved(
    x: Node,
    weight: Node,
    stride: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    stretch: Sequence[int] | None,
    groups: int,
) -> Node:
    """A convolution: the `windows` of x times the channels of a weight, by groups."""
    n = weight.ndim - 2
    batch, made, taps = x.shape[0], weight.shape[0], math.prod(weight.shape[2:])
    axes = windows(x.shape[2:], weight.shape[2:], stride, padding, dilation, stretch)
    place, depth = positions(x.shape[2:], axes), math.prod(weight.shape[1:])
    out = place.shape[:n]
    # A table of one channel's positions: of all it is larger than all tensors.
    rows = gather(x, index=place.reshape(math.prod(out), taps).T, batch=2)
    rows = reshape(rows, (batch, groups, depth, math.prod(out)))
    columns = reshape(weight, (groups, made // groups, depth))
    return reshape(matmul(columns, rows), (batch, made, *out))


@public
def einsum(subscripts: str, *operands: Any) -> Node:
    """Sums of products by Einstein's convention, "bij,bjk->bik"; taken left to right.

    Raises:
        ValueError: the subscripts do not fit the operands.
    """
    terms, result = _subscripts(subscripts, len(operands))
    nodes = as_nodes(operands)
    left, letters = _diagonals(nodes[0], terms[0])
    for i, (term, node) in enumerate(zip(terms[1:], nodes[1:], strict=True)):
        right, others = _diagonals(node, term)
        needed = set(result).union(*terms[i + 2 :])
        left, letters = _contract(left, letters, right, others, needed)
    left, letters = _summed(left, letters, set(result))
    return permute_dims(left, tuple(letters.index(c) for c in result))


def _subscripts(subscripts: str, count: int) -> tuple[list[str], str]:
    given, arrow, result = subscripts.replace(" ", "").partition("->")
    terms = given.split(",")
    if "." in subscripts:
        raise ValueError("einsum takes no ellipsis here: name all axes")
    if len(terms) != count:
        raise ValueError(f"{len(terms)} subscripts for {count} operands")
    if not arrow:
        result = "".join(sorted(c for c in set(given) - {","} if given.count(c) == 1))
    unknown = set(result) - set(given)
    if unknown or len(set(result)) < len(result):
        raise ValueError(f"the result {result!r} must name axes of {given!r} once each")
    return terms, result


def _diagonals(x: Node, letters: str) -> tuple[Node, str]:
    """A letter that stands twice is a diagonal."""
    if x.ndim != len(letters):
        raise ValueError(f"subscripts {letters!r} for an array of {x.ndim} axes")
    for letter in dict.fromkeys(letters):
        while letters.count(letter) > 1:
            first, second = [i for i, c in enumerate(letters) if c == letter][:2]
            x = diagonal(moveaxis(x, (first, second), (-2, -1)))
            rest = [c for i, c in enumerate(letters) if i not in (first, second)]
            letters = "".join((*rest, letter))
    return x, letters


def _summed(x: Node, letters: str, needed: set[str]) -> tuple[Node, str]:
    gone = tuple(i for i, c in enumerate(letters) if c not in needed)
    left = "".join(c for c in letters if c in needed)
    return (sum(x, gone) if gone else x), left


def _contract(
    a: Node, in_a: str, b: Node, in_b: str, needed: set[str]
) -> tuple[Node, str]:
    """Two operands as one product of batches of matrices."""
    a, in_a = _summed(a, in_a, needed | set(in_b))
    b, in_b = _summed(b, in_b, needed | set(in_a))
    size = dict(zip(in_a, a.shape, strict=True)) | dict(zip(in_b, b.shape, strict=True))
    shared = [c for c in in_a if c in in_b]
    batch = [c for c in shared if c in needed]
    terms = [c for c in shared if c not in needed]
    rows = [c for c in in_a if c not in shared]
    columns = [c for c in in_b if c not in shared]

    def merged(x: Node, letters: str, *groups: list[str]) -> Node:
        order = tuple(letters.index(c) for group in groups for c in group)
        shape = (math.prod(size[c] for c in group) for group in groups)
        return reshape(permute_dims(x, order), tuple(shape))

    product = merged(a, in_a, batch, rows, terms) @ merged(
        b, in_b, batch, terms, columns
    )
    result = [*batch, *rows, *columns]
    return reshape(product, tuple(size[c] for c in result)), "".join(result)
