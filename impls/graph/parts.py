"""The part of a graph that some elements of a tensor depend on, as a graph of its own.

Elements are a box: some places of each axis. For a box an operation needs a box of each
input: the same places where it works element by element, whole axes where it adds up,
rows and columns in a matrix product. An operation that only moves elements takes them
from the smallest box that holds them. The part has the values of the whole.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.impls.graph.choices import where
from gradwatch.impls.graph.engine import (
    Node,
    axes_of,
    recorded,
    rounded_to,
    summed_axes,
)
from gradwatch.impls.graph.moves import gather, reshape

Places = NDArray[np.intp]
#: Places of each axis, in order; None for all of them.
Box = tuple[Places | None, ...]
#: Operations that add up some axes.
SUMS = ("sum", "sum_to")
#: So many parts of one node are computed by themselves, and so many of other heads.
#: Without a limit a scan of k steps would need 2^k: each part needs several before it.
APART, HEADS = 4, 16
#: Elements of values that no device is worth its while for.
FEW = 1024
#: Depth of recursion: a part takes some nested calls for each operation behind it.
DEEP = 20_000


@contextlib.contextmanager
def deep_calls() -> Iterator[None]:
    """Raise the recursion limit, so that parts of deep graphs can be built."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEEP))
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


class Parts:
    """Parts of one graph; the nodes that several of them need are computed once."""

    def __init__(self, most: int = sys.maxsize) -> None:
        """Take at most `most` terms of a sum along each axis."""
        self.most = most
        self._known = defaultdict[Node, dict[tuple[bytes | None, ...], Node]](dict)

    def terms(self, count: int) -> Places | None:
        """The places of the terms of a sum that are taken; None for all."""
        return _some(count, self.most) if count > self.most else None

    def summed(
        self, node: Node, box: Box, inputs: tuple[Node, ...], attributes: Any
    ) -> Node:
        """The part of a sum or matrix product, from parts of its inputs."""
        return Node(node.primitive, inputs, attributes)

    def part(self, node: Node, box: Box) -> Node:
        """A node that holds the elements in a box, from the elements that they need."""
        lengths = zip(box, node.shape, strict=True)
        box = tuple(None if p is None or p.size == n else p for p, n in lengths)
        key = tuple(None if p is None else p.tobytes() for p in box)
        known = self._known[node]
        if key not in known:
            with rounded_to(node.precision):
                known[key] = self._apart(node, box, key)
            if (record := recorded()) and known[key] is not node:
                record.parts[known[key]] = node
        return known[key]

    def rows(self, node: Node, places: Places) -> Node:
        """A node that holds some places of the first axis."""
        return self.part(node, (places, *(None,) * (node.ndim - 1)))

    def known(self, node: Node, places: Places) -> list[Node]:
        """The part that was made of these rows, if there is one."""
        key = (places.tobytes(), *(None,) * (node.ndim - 1))
        return [part for k, part in self._known[node].items() if k == key]

    def _apart(self, node: Node, box: Box, key: tuple[bytes | None, ...]) -> Node:
        """A part by itself or, if a node has many, gathered from a larger part of it.

        Parts of disjoint heads count only from `HEADS` on.
        """
        known = [*self._known[node]]
        if len(known) < HEADS:
            known = [k for k in known if _meet(k[:-2], box[:-2])]
        axes = range(node.ndim)
        alike = [box[i] is None or {k[i] for k in known} <= {key[i]} for i in axes]
        if len(known) < APART or all(alike):
            return self._made(node, box)
        wide = tuple(p if same else None for p, same in zip(box, alike, strict=True))
        held = self.part(node, wide)
        inside = tuple(None if s else p for p, s in zip(box, alike, strict=True))
        return gather(held, index=_flat(held.shape, inside))

    def _made(self, node: Node, box: Box) -> Node:
        step, is_all = node.primitive, all(p is None for p in box)
        if step is None:
            if is_all:
                return node
            return Node(None, attributes=node.attributes, value=cut_of(node.value, box))
        make = _RULES.get(step.name, _elementwise if step.elementwise else None)
        if make is None:
            inputs = tuple(self.part(n, (None,) * n.ndim) for n in node.inputs)
            whole = Node(step, inputs, node.attributes)
            return whole if is_all else gather(whole, index=_flat(node.shape, box))
        return make(self, node, box)

    def at(self, source: Node, flat: Places, ahead: Box = ()) -> Node:
        """The elements at an array of flat positions behind a batch; -1 gives 0."""
        shape, how = source.shape[len(ahead) :], {"batch": len(ahead)} if ahead else {}
        if _asks_for_most(flat, math.prod(shape)):
            held = self.part(source, (*ahead, *(None,) * len(shape)))
            return gather(held, index=flat, **how)
        # One place where none is asked for: an axis is never empty if it is broadcast.
        some = np.where(flat < 0, flat.max(initial=0), flat)
        box, inside = list[Places](), list[Places]()
        at = np.unravel_index(some, shape) if shape else ()
        for places, n in zip(at, shape, strict=True):
            asked = np.zeros(n, bool)
            asked[places if places.size else 0] = True
            asked |= 2 * np.count_nonzero(asked) > n  # most is not copied to leave some
            box.append(np.flatnonzero(asked))
            inside.append((np.cumsum(asked) - 1)[places])
        held = self.part(source, (*ahead, *box))
        lengths = held.shape[len(ahead) :]
        index = np.ravel_multi_index(inside, lengths) if inside else some
        return gather(held, index=np.where(flat < 0, -1, index), **how)


def _asks_for_most(flat: Places, size: int) -> bool:
    """Whether flat positions are half of all, or there are none to ask for."""
    if 2 * flat.size < size:
        return False
    asked = np.zeros(size + 1, bool)  # the last: where -1 leads
    asked[flat] = True
    return bool(2 * np.count_nonzero(asked[:-1]) >= size)


def _meet(key: tuple[bytes | None, ...], box: Box) -> bool:
    """Whether two boxes have elements in common."""
    pairs = ((k, p) for k, p in zip(key, box, strict=True) if k and p is not None)
    return all(np.isin(p, np.frombuffer(k, np.intp)).any() for k, p in pairs)


class Held(Parts):
    """Parts of a graph, with leaves where the values of nodes are held."""

    def _made(self, node: Node, box: Box) -> Node:
        if not node.held:
            return super()._made(node, box)
        some = any(p is not None for p in box)
        return Node(None, value=cut_of(node.value, box) if some else node.value)


@functools.lru_cache(maxsize=256)  # to make a generator takes as long as some passes
def _some(count: int, most: int) -> Places:
    few = np.random.default_rng(count).choice(count, most, replace=False)
    return np.sort(few)


def cut_of(array: Any, box: Box) -> Any:
    """The elements of an array in a box; a view, if its places follow one another."""
    runs = [slice(None) if p is None else _run(p) for p in box]
    cut = array[tuple(run or slice(None) for run in runs)]
    picked = [(i, p) for i, p in enumerate(box) if p is not None and runs[i] is None]
    # The fewest of an axis first: half of the time of an index by np.ix_.
    for axis, places in sorted(picked, key=lambda at: at[1].size / array.shape[at[0]]):
        if cut.flags.c_contiguous:
            cut = np.take(cut, places, axis)
        else:  # np.take would copy the whole array first
            cut = cut[(slice(None),) * axis + (places,)]
    return cut if cut.size > FEW else np.asarray(cut)


def _run(places: Places) -> slice | None:
    """The slice of the same places, if there is one."""
    start, end = (int(places[0]), int(places[-1]) + 1) if places.size else (0, 0)
    alike = end - start == places.size and np.array_equal(places, np.r_[start:end])
    return slice(start, end) if alike else None


def _places(shape: Sequence[int], box: Box) -> list[Places]:
    pairs = zip(shape, box, strict=True)
    return [np.arange(n) if p is None else p for n, p in pairs]


def _shape(shape: Sequence[int], box: Box) -> tuple[int, ...]:
    return tuple(places.size for places in _places(shape, box))


def _flat(shape: Sequence[int], box: Box) -> Places:
    """Flat positions of a box's elements, in its shape."""
    index: Places = np.zeros((), np.intp)
    for n, places in zip(shape, _places(shape, box), strict=True):
        index = index[..., None] * n + places
    return index


def _inner(shape: Sequence[int], box: Box) -> Box:
    """The box of an input that is broadcast, along axes of length 1 and new ones."""
    pairs = zip(shape, box[len(box) - len(shape) :], strict=True)
    return tuple(None if n == 1 else p for n, p in pairs)


def _elementwise(parts: Parts, node: Node, box: Box) -> Node:
    inputs = tuple(parts.part(s, _inner(s.shape, box)) for s in node.inputs)
    return Node(node.primitive, inputs, node.attributes)


def _broadcast_to(parts: Parts, node: Node, box: Box) -> Node:
    held = parts.part(node.inputs[0], _inner(node.inputs[0].shape, box))
    return Node(node.primitive, (held,), {"shape": _shape(node.shape, box)})


def _permute_dims(parts: Parts, node: Node, box: Box) -> Node:
    axes = node.attributes["axes"]
    inside = tuple(box[axes.index(i)] for i in range(node.ndim))
    return Node(node.primitive, (parts.part(node.inputs[0], inside),), {"axes": axes})


def _reshape(parts: Parts, node: Node, box: Box) -> Node:
    (source,) = node.inputs
    if not node.size or all(p is None for p in box):
        held = parts.part(source, (None,) * source.ndim)
        return reshape(held, _shape(node.shape, box))
    inside = list[Places | None]()
    for behind, here in _alike(source.shape, node.shape):
        shape, lengths = source.shape[behind], node.shape[here]
        if all(p is None for p in box[here]):
            inside += [None] * len(shape)
            continue
        flat = _flat(lengths, box[here])
        inside += map(np.unique, np.unravel_index(flat, shape) if shape else ())
        if math.prod(p.size for p in inside[behind] if p is not None) != flat.size:
            return parts.at(source, _flat(node.shape, box))  # no box
    return reshape(parts.part(source, tuple(inside)), _shape(node.shape, box))


@functools.lru_cache(maxsize=1024)  # each block of rows asks again
def _alike(a: tuple[int, ...], b: tuple[int, ...]) -> list[tuple[slice, slice]]:
    """Pairs of axis ranges of two shapes that hold the same elements in one order."""
    sizes = [np.cumprod([1, *shape]) for shape in (a, b)]
    shared = np.intersect1d(sizes[0], sizes[1])
    ends = [np.searchsorted(s, shared, "right") - 1 for s in sizes]
    cuts = ([slice(*ij) for ij in itertools.pairwise([0, *e])] for e in ends)
    return list(zip(*cuts, strict=True))


def _reduction(parts: Parts, node: Node, box: Box) -> Node:
    (source,), attributes = node.inputs, dict(node.attributes)
    if "shape" in attributes or isinstance(attributes["axis"], tuple):
        axes: tuple[int, ...] = summed_axes(node, source.shape)
    else:
        axes = axes_of(attributes["axis"], source.ndim)
    kept = [i for i in range(source.ndim) if i not in axes]
    aligned = "shape" in attributes or node.ndim == source.ndim
    new = source.ndim - node.ndim
    kept = [i for i in kept if i >= new] if aligned else kept  # those are of length 1
    inside = {i: box[i - new if aligned else j] for j, i in enumerate(kept)}
    if node.primitive and node.primitive.name in SUMS:
        inside |= {i: parts.terms(source.shape[i]) for i in axes}
    held = parts.part(source, tuple(inside.get(i) for i in range(source.ndim)))
    if "shape" in attributes:
        attributes["shape"] = _shape(node.shape, box)
    return parts.summed(node, box, (held,), attributes)


def _along(parts: Parts, node: Node, box: Box) -> Node:
    """A primitive along an axis, which needs whole lines, and then some of its places.

    The other axes are independent of each other.
    """
    (source,), axis = node.inputs, node.attributes["axis"] % node.ndim
    lines = tuple(None if i == axis else p for i, p in enumerate(box))
    whole = Node(node.primitive, (parts.part(source, lines),), node.attributes)
    if box[axis] is None:
        return whole
    inside = tuple(p if i == axis else None for i, p in enumerate(box))
    return gather(whole, index=_flat(whole.shape, inside))


def _matmul(parts: Parts, node: Node, box: Box) -> Node:
    a, b = node.inputs
    few = parts.terms(a.shape[-1])
    ends: tuple[Box, Box] = ((box[-2], few), (few, box[-1]))
    inside = (
        (*_inner(s.shape[:-2], box[:-2]), *end)
        for s, end in zip((a, b), ends, strict=True)
    )
    inputs = tuple(parts.part(s, i) for s, i in zip((a, b), inside, strict=True))
    return parts.summed(node, box, inputs, node.attributes)


def _gather(parts: Parts, node: Node, box: Box) -> Node:
    batch = node.attributes.get("batch", 0)
    index, start = cut_of(node.attributes["index"], box[batch:]), 0
    if len(node.inputs) == 1:
        return parts.at(node.inputs[0], index, box[:batch])
    found = None
    for source in node.inputs:
        size = math.prod(source.shape[batch:])
        mine = (index >= start) & (index < start + size)
        if mine.any() or (found is None and source is node.inputs[-1]):
            held = parts.at(source, np.where(mine, index - start, -1), box[:batch])
            found = held if found is None else where(mine, held, found)
        start += size
    assert found is not None
    return found


def _scatter_add(parts: Parts, node: Node, box: Box) -> Node:
    (source,), index = node.inputs, node.attributes["index"]
    batch = node.attributes.get("batch", 0)
    ahead, behind, shape = box[:batch], box[batch:], node.shape[batch:]
    made = {**node.attributes, "shape": _shape(node.shape, box)}
    if all(p is None for p in behind):
        held = parts.part(source, (*ahead, *(None,) * index.ndim))
        return Node(node.primitive, (held,), made)
    wanted = _flat(shape, behind)
    asked = np.zeros(math.prod(shape) + 1, bool)  # the last is where -1 leads
    asked[wanted] = True
    terms = np.flatnonzero(asked[index.reshape(-1)])
    made["index"] = np.searchsorted(wanted.reshape(-1), index.reshape(-1)[terms])
    return Node(node.primitive, (parts.at(source, terms, ahead),), made)


_RULES: dict[str, Callable[[Parts, Node, Box], Node]] = {
    "broadcast_to": _broadcast_to,
    "permute_dims": _permute_dims,
    "reshape": _reshape,
    **dict.fromkeys(("sum", "sum_to", "max"), _reduction),
    **dict.fromkeys(("cumulative_sum", "pick"), _along),
    "matmul": _matmul,
    "gather": _gather,
    "scatter_add": _scatter_add,
}
