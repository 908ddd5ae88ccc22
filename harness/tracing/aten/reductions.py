"""Operators that reduce or accumulate along axes, products of matrices among them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from operator import matmul
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._pytree import tree_map

from gradwatch.harness.judging.rounding.analysis import At, Error
from gradwatch.harness.tracing.aten.moves import moved
from gradwatch.harness.tracing.untraceable import Untraceable
from gradwatch.harness.tracing.values import (
    as_exact,
    as_float,
    as_mask,
    both,
    constant,
    ruled,
    written_over,
)
from gradwatch.impls import graph
from gradwatch.impls.graph import Node
from gradwatch.impls.graph.engine import reduced
from gradwatch.impls.graph.indexing import shared

Array = NDArray[Any]
Rule = Callable[..., Any]


def axes(dim: Any, ndim: int) -> tuple[int, ...]:
    """The axes that PyTorch's `dim` means: none given, and an empty list, are all."""
    if dim is None or (isinstance(dim, (list, tuple)) and not dim):
        return tuple(range(ndim))
    listed = dim if isinstance(dim, (list, tuple)) else (dim,)
    return tuple(sorted(i % ndim for i in listed)) if ndim else ()


def over(function: Callable[..., Node]) -> Rule:
    """The rule of one of the engine's reductions; a number is its own reduction."""

    def rule(x: Node, dim: Any = None, keepdim: bool = False, **_: Any) -> Node:
        if not x.ndim:
            x, dim, keepdim = graph.reshape(x, (1,)), 0, False
        return function(x, axes(dim, x.ndim), keepdims=keepdim)

    return rule


total = over(graph.sum)
largest, smallest = over(graph.max), over(graph.min)


def _variance(
    x: Node, dim: Any = None, correction: Any = 1, keepdim: bool = False, **_: Any
) -> Node:
    correction = 1 if correction is None else correction
    along = functools.partial(graph.var, correction=float(correction))
    return over(along)(x, dim, keepdim)


def _along(function: Callable[..., Node]) -> Rule:
    return lambda x, dim, **_: function(x, axis=dim) if x.ndim else x


# log(sum(exp(x))), whose gradient PyTorch computes from the result --------------------


def _log_of_sum(x: Array, axis: tuple[int, ...]) -> Array:
    most = np.max(x, axis, keepdims=True)
    shift = np.where(np.isfinite(most), most, 0)
    powers = x - shift
    total = np.sum(np.exp(powers, out=powers), axis, keepdims=True)
    return np.asarray(np.log(total) + shift)


def _log_of_sum_error(at: At) -> Error:
    """E of a logarithm of a sum: its terms' errors times their shares of the sum.

    The terms' own roundings are those of x - max, of exp and of the sum; the logarithm
    and the maximum that is added back round once each. However large the maximum is,
    exp(x - y) then has that error.
    """
    (x,), axis = at.node.inputs, at.node.attributes["axis"]
    part = np.exp(x.value - at.node.value).astype(np.float64)
    most = np.max(x.value, axis, keepdims=True)
    own = 3 + np.abs(x.value - most).astype(np.float64)
    carried = np.expm1(at.u * at.e[0]) / at.u
    moved = np.sum(np.where(part > 0, part * (carried + own), 0.0), axis, keepdims=True)
    kept = np.abs(at.node.value - most).astype(np.float64)
    return np.asarray(np.log1p(at.u * moved) / at.u + kept + at.v)


_logsumexp = ruled(
    "special.logsumexp",
    _log_of_sum,
    lambda dy, y, x, axis: (dy * graph.exp(x - y),),
    _log_of_sum_error,
    rounds=True,
)


def _logcumsumexp(x: Node, dim: int) -> Node:
    """Each prefix relative to its own maximum, by doubling the prefixes' length.

    `windows.prefixes` has no -inf beside the first ones, and so does not explain the
    digits that PyTorch's gradient loses at large numbers.
    """
    if not x.ndim:
        return x
    n, step, y = x.shape[dim], 1, graph.moveaxis(x, dim, -1)
    while step < n:
        earlier = graph.where(np.arange(n) < step, -np.inf, graph.roll(y, step, -1))
        y = graph.logsumexp(graph.stack((y, earlier)), axis=0)
        step *= 2
    return graph.moveaxis(y, -1, dim)


def norm(
    x: Node, order: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any
) -> Node:
    """A norm of vectors, whose gradient at a vector of zeros is 0, as in PyTorch."""
    size = graph.abs(x)
    if order in (math.inf, -math.inf):
        return (largest if order > 0 else smallest)(size, dim, keepdim)
    if order == 0:
        return total(as_float(graph.not_equal(x, 0.0)), dim, keepdim)
    if order == 1:
        return total(size, dim, keepdim)
    powers = graph.square(x) if order == 2 else graph.pow(size, float(order))
    sums = total(powers, dim, keepdim)
    nothing = graph.equal(sums, 0.0)
    safe = graph.where(nothing, 1.0, sums)
    root = graph.sqrt(safe) if order == 2 else graph.pow(safe, 1.0 / order)
    return graph.where(nothing, 0.0, root)


def _pdist(x: Node, p: float = 2.0) -> Node:
    first, second = np.triu_indices(x.shape[0], 1)
    return norm(x[first] - x[second], p, -1)


def _plus_product(
    c: Any, a: Any, b: Any, beta: Any = 1, alpha: Any = 1, product: Rule = matmul
) -> Any:
    y = product(a, b) if alpha == 1 else product(a, b) * alpha
    if beta == 0:
        shape = np.broadcast_shapes(c.shape, y.shape)
        return both(lambda part: graph.broadcast_to(part, shape), y)
    return (c if beta == 1 else c * beta) + y


ON_FLOATS: dict[str, Rule] = {
    **dict.fromkeys(("mm", "bmm"), matmul),
    **dict.fromkeys(("_sparse_addmm", "addmm", "addmv"), _plus_product),
    "addbmm": functools.partial(_plus_product, product=lambda a, b: total(a @ b, 0)),
    "_cdist_forward": lambda a, b, p, *_: norm(
        a[..., None, :] - b[..., None, :, :], p, -1
    ),
    "_pdist_forward": _pdist,
    **dict.fromkeys(("sum", "_sparse_sum"), total),
    "mean": over(graph.mean),
    "var": _variance,
    "amax": largest,
    "amin": smallest,
    "prod": over(graph.prod),
    "cumsum": _along(graph.cumulative_sum),
    "cumprod": _along(graph.cumulative_prod),
    "logcumsumexp": _logcumsumexp,
    "logsumexp": over(
        lambda x, axis, keepdims: graph.reshape(
            _logsumexp(x, axis=axis), reduced(x.shape, axis, keepdims)
        )
    ),
    "linalg_vector_norm": norm,
}


# PyTorch picks which element, the engine moves it --------------------------------


def _chosen(function: Callable[..., Any], default: int = -1) -> Rule:
    """max, sort, topk, ... along an axis: values moved by the indices of PyTorch's.

    Any of equal values may be taken, so that the gradient is a set.
    """

    def rule(x: Any, *args: Any, **kwargs: Any) -> Any:
        x = as_float(x)
        value, index = function(exact := as_exact(x), *args, **kwargs)
        dims = [a for a in args if isinstance(a, int) and not isinstance(a, bool)]
        place = 1 if function in (torch.topk, torch.kthvalue) else 0
        dim = kwargs.get("dim", dims[place] if len(dims) > place else default)
        at, ties = index, False
        if x.ndim and x.size and function is not torch.mode and not exact.isnan().any():
            if index.ndim < x.ndim:  # only what equals the one chosen counts
                equal = (exact == value.unsqueeze(dim)).sum(dim) > 1
            else:
                equal = exact.sort(dim).values.diff(dim=dim) == 0
            ties = bool(equal.any())
        if ties:
            convention = graph.convention(x, axis=dim % x.ndim, indexed=True)
            if convention in ("first", "last"):
                # Places in order; equal ones in the order in which they stand.
                ends = [dim] if convention == "last" else []
                ranks = exact.flip(ends).argsort(stable=True, dim=dim).argsort(dim)
                _, at = function(ranks.flip(ends).double(), *args, **kwargs)
            elif convention == graph.SHARED:
                x = shared(x, dim)
        whole = at if at.ndim == x.ndim else at.unsqueeze(dim)
        values = moved(lambda a: torch.gather(a, dim, whole), x) if x.ndim else x
        return graph.reshape(values, tuple(index.shape)), index

    return rule


def _whole_or_axis(function: Callable[..., Any], whole: Rule | None = None) -> Rule:
    """Operators whose form without an axis returns the value alone."""
    along = _chosen(function)

    def rule(x: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return along(x, *args, **kwargs)
        if whole is not None:
            return whole(as_float(x))
        at = int(function(as_exact(x).ravel(), 0).indices)
        return moved(lambda a: a.ravel()[at], as_float(x))

    return rule


def _counted(count: Callable[..., Any]) -> Rule:
    """The counts of a histogram: constants that depend on the numbers."""
    return lambda *given, **named: count(*tree_map(as_exact, given), **named)


def _grouped_mm(a: Any, b: Any, offs: Any = None, *_: Any, **__: Any) -> Node:
    """Groups of rows of a, up to each offset, each times its own matrix."""
    a, b = as_float(a), as_float(b)
    if offs is None:
        return graph.matmul(a, b)
    if (a.ndim, b.ndim) != (2, 3):
        why = "has groups of columns, which have no rule"
        raise Untraceable("aten._grouped_mm", why, "no rule")
    ends = as_exact(offs).tolist()
    pairs = zip([0, *ends], ends, strict=False)
    return graph.concat([a[i:j] @ b[e] for e, (i, j) in enumerate(pairs) if j > i])


# A loss of sequences ------------------------------------------------------------------


def _ctc(steps: Node, labels: list[int], blank: int) -> Node:
    """-log of the probability of all ways to write the labels, with blanks between.

    Graves and others, Connectionist temporal classification, 2006, section 4.1, in
    logarithms. `steps` are log probabilities, of each step a row. A label may come
    after a blank, itself, or another label; the first states alone can be reached.
    """
    states = np.array([blank, *(s for label in labels for s in (label, blank))])
    place = np.arange(states.size)[:, None] - np.arange(3)
    alpha = steps[0, states[:2]]
    for step in range(1, steps.shape[0]):
        held = (place >= 0) & (place < alpha.size)
        held[:, 2] &= (states != blank) & (states != np.roll(states, 2))
        count = int(held.any(axis=1).sum())
        before = graph.gather(alpha, index=np.where(held, place, -1)[:count])
        terms = graph.where(held[:count], before, -math.inf)
        alpha = graph.logsumexp(terms, axis=-1) + steps[step, states[:count]]
    ends = alpha[max(states.size - 2, 0) :]
    return -graph.logsumexp(ends) if ends.size else constant(math.inf)


def _ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Node, None]:
    log_probs, targets = as_float(log_probs), as_exact(targets)
    spans = [[int(n) for n in as_exact(v)] for v in (input_lengths, target_lengths)]
    rows = targets if targets.ndim == 2 else targets.split(spans[1])
    losses = []
    for i, (count, n) in enumerate(zip(*spans, strict=True)):
        steps, labels = log_probs[:count, i], rows[i][:n].tolist()
        loss = _ctc(steps, labels, blank)
        if np.isfinite(loss.value):
            # Each gradient comes from forward and backward variables (equation 16 of
            # Graves and others), with the rounding of an exp(a + b + loss).
            whole = graph.broadcast_to(loss, steps.shape)
            one = graph.stop_gradient(graph.exp(whole * 1.0 - whole))
            steps = written_over(steps * one, steps)
        losses.append(_ctc(steps, labels, blank))
    if zero_infinity:
        losses = [y if np.isfinite(y.value) else constant(0.0) for y in losses]
    return graph.stack(losses), None


ON_VALUES: dict[str, Rule] = {
    "_ctc_loss": _ctc_loss,
    "_grouped_mm": _grouped_mm,
    "histc": _counted(torch.histc),
    "histogram": _counted(torch.histogram),
    "any": lambda x, *dim: over(graph.any)(as_mask(x), *dim),
    "max": _whole_or_axis(torch.max, largest),
    "min": _whole_or_axis(torch.min, smallest),
    "median": _whole_or_axis(torch.median),
    "nanmedian": _whole_or_axis(torch.nanmedian),
    "sort": _chosen(torch.sort),
    "topk": _chosen(torch.topk),
    "kthvalue": _chosen(torch.kthvalue),
    "mode": _chosen(torch.mode),
    "cummax": _chosen(torch.cummax),
    "cummin": _chosen(torch.cummin),
}
