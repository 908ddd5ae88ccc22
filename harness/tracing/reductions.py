"""Operators that reduce or accumulate along axes."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from harness.tracing.moves import moved
from harness.tracing.values import as_exact, as_float, constant
from impls import graph
from impls.graph import Node

Rule = Callable[..., Any]


def axes(dim: Any, ndim: int) -> tuple[int, ...]:
    """The axes that PyTorch's `dim` means: none given, and an empty list, are all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(ndim))
    listed = dim if isinstance(dim, (list, tuple)) else (dim,)
    return tuple(sorted(i % ndim for i in listed)) if ndim else ()


def total(x: Node, dim: Any = None, keepdim: bool = False, **_: Any) -> Node:
    """Sum over the axes; of a number, itself."""
    return graph.sum(x, axis=axes(dim, x.ndim), keepdims=keepdim) if x.ndim else x


def _count(x: Node, dim: Any) -> int:
    return math.prod(x.shape[i] for i in axes(dim, x.ndim))


def _mean(x: Node, dim: Any = None, keepdim: bool = False, **_: Any) -> Node:
    return total(x, dim, keepdim) / float(_count(x, dim))


def _variance(
    x: Node, dim: Any = None, correction: Any = 1, keepdim: bool = False, **_: Any
) -> Node:
    centred = x - _mean(x, dim, keepdim=True)
    free = _count(x, dim) - (1 if correction is None else correction)
    return total(graph.square(centred), dim, keepdim) / float(max(free, 0))


def over(function: Callable[[Node], Node]) -> Rule:
    """A rule for several axes, of a function that reduces the last one."""

    def rule(x: Node, dim: Any = None, keepdim: bool = False, **_: Any) -> Node:
        if not x.ndim:
            return x
        gone = axes(dim, x.ndim)
        kept = tuple(i for i in range(x.ndim) if i not in gone)
        rows = graph.permute_dims(x, kept + gone)
        shape = tuple(x.shape[i] for i in kept)
        y = function(graph.reshape(rows, (*shape, _count(x, dim))))
        ones = tuple(1 if i in gone else n for i, n in enumerate(x.shape))
        return graph.reshape(y, ones if keepdim else shape)

    return rule


def _largest(x: Node) -> Node:
    return graph.max(x, axis=x.ndim - 1)


def _smallest(x: Node) -> Node:
    return -_largest(-x)


def _product(x: Node) -> Node:
    """By halves: a gradient that stays right where one factor, or two, are 0."""
    count = x.shape[-1]
    if not count:
        return constant(np.ones(x.shape[:-1]))
    while count > 1:
        half = count // 2
        pairs = x[..., :half] * x[..., half : 2 * half]
        left = x[..., 2 * half :]
        x = (
            moved(lambda a, b: torch.cat([a, b], -1), pairs, left)
            if count % 2
            else pairs
        )
        count = half + count % 2
    return graph.reshape(x, x.shape[:-1])


def _cumsum(x: Node, dim: int, **_: Any) -> Node:
    """A product with a triangle of ones."""
    if not x.ndim:
        return x
    count = x.shape[dim]
    rows = moved(lambda a: a.movedim(dim, -1).reshape(-1, count), x)
    sums = graph.matmul(rows, constant(np.triu(np.ones((count, count)))))
    shape = tuple(np.moveaxis(np.empty(x.shape, bool), dim, -1).shape)
    return moved(lambda a: a.reshape(shape).movedim(-1, dim), sums)


def _cumprod(x: Node, dim: int, **_: Any) -> Node:
    if not x.ndim:
        return x
    parts = [moved(torch.narrow, x, dim, i, 1) for i in range(x.shape[dim])]
    if not parts:
        return x
    products = functools.reduce(
        lambda done, p: [*done, done[-1] * p], parts[1:], parts[:1]
    )
    return moved(lambda *p: torch.cat(p, dim), *products)


def _norm(
    x: Node, order: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> Node:
    size = graph.abs(x)
    if order in (math.inf, -math.inf):
        return over(_largest if order > 0 else _smallest)(size, dim, keepdim)
    if order == 0:
        return total(as_float(graph.not_equal(x, 0.0)), dim, keepdim)
    if order == 1:
        return total(size, dim, keepdim)
    if order == 2:
        return graph.sqrt(total(graph.square(x), dim, keepdim))
    return graph.pow(total(graph.pow(size, order), dim, keepdim), 1.0 / order)


def _any(x: Node, dim: Any = None, keepdim: bool = False) -> Node:
    return graph.greater(total(x, dim, keepdim), 0.0)


ON_FLOATS: dict[str, Rule] = {
    "sum": total,
    "mean": _mean,
    "var": _variance,
    "var_mean": lambda x, dim=None, **k: (
        _variance(x, dim, **k),
        _mean(x, dim, keepdim=k.get("keepdim", False)),
    ),
    "amax": over(_largest),
    "amin": over(_smallest),
    "prod": over(_product),
    "cumsum": _cumsum,
    "cumprod": _cumprod,
    "linalg_vector_norm": _norm,
}


# PyTorch picks which element, the engine moves it --------------------------------


def _chosen(function: Callable[..., Any], default: int = -1) -> Rule:
    """max, sort, topk, ... along an axis: values moved by the indices of PyTorch's."""

    def rule(x: Any, *args: Any, **kwargs: Any) -> Any:
        x = as_float(x)
        _, index = function(as_exact(x), *args, **kwargs)
        dims = [a for a in args if isinstance(a, int) and not isinstance(a, bool)]
        place = 1 if function in (torch.topk, torch.kthvalue) else 0
        dim = kwargs.get("dim", dims[place] if len(dims) > place else default)
        whole = index if index.ndim == x.ndim else index.unsqueeze(dim)
        values = moved(lambda a: torch.gather(a, dim, whole), x) if x.ndim else x
        return graph.reshape(values, tuple(index.shape)), index

    return rule


def _sort(
    x: torch.Tensor, dim: int = -1, descending: bool = False, stable: Any = None
) -> Any:
    return torch.sort(x, dim=dim, descending=descending, stable=bool(stable))


def _whole_or_axis(along: Rule, whole: Rule) -> Rule:
    """Operators whose form without an axis returns the value alone."""

    def rule(x: Any, *args: Any, **kwargs: Any) -> Any:
        return along(x, *args, **kwargs) if args or kwargs else whole(as_float(x))

    return rule


def _middle(function: Callable[..., Any]) -> Rule:
    def rule(x: Node) -> Node:
        at = int(function(as_exact(x).ravel(), 0).indices)
        return moved(lambda a: a.ravel()[at], x)

    return rule


ON_VALUES: dict[str, Rule] = {
    "any": lambda x, dim=None, keepdim=False: _any(as_float(x), dim, keepdim),
    "all": lambda x, dim=None, keepdim=False: graph.logical_not(
        _any(1.0 - as_float(graph.not_equal(as_float(x), 0.0)), dim, keepdim)
    ),
    "max": _whole_or_axis(_chosen(torch.max), over(_largest)),
    "min": _whole_or_axis(_chosen(torch.min), over(_smallest)),
    "median": _whole_or_axis(_chosen(torch.median), _middle(torch.median)),
    "nanmedian": _whole_or_axis(_chosen(torch.nanmedian), _middle(torch.nanmedian)),
    "sort": _chosen(_sort),
    "topk": _chosen(torch.topk),
    "kthvalue": _chosen(torch.kthvalue),
    "mode": _chosen(torch.mode),
    "cummax": _chosen(torch.cummax),
    "cummin": _chosen(torch.cummin),
}
