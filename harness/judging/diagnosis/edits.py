"""The list of mistakes: what may stand in a backward in place of a right value.

From cheap to dear: each row changes one value of the gradient's graph. `rank` says how
readily a person believes a row, where several explain the same numbers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwatch.harness.judging.diagnosis.sweep import Array, At, Make, Sweep
from gradwatch.harness.judging.diagnosis.words import Words, number
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.impls import graph
from gradwatch.impls.graph import Node
from gradwatch.impls.graph.engine import axes_of

Form = tuple[int, str, str, Callable[[Array], Array]]
NEAREST = 24  # other values that are tried for one, nearest in the graph first


@dataclass(frozen=True)
class Edit:
    """One value of the graph replaced.

    Attributes:
        rank: How far-fetched it is.
        kind: Of mistake.
        words: What is said of it.
        node: Whose value.
        make: Of the other values.
        scales: A factor that is fitted may stand before it.
    """

    rank: int
    kind: str
    words: Callable[[], str]
    node: Node
    make: Make
    scales: bool = True


def _kept(v: Array, axis: int, part: slice) -> Array:
    """Zero outside of a part of an axis."""
    out, at = np.zeros_like(v), (slice(None),) * axis + (part,)
    out[at] = v[at]
    return out


def _along(v: Array, axis: Any, function: Callable[..., Any]) -> Array:
    return np.broadcast_to(function(v, axis=axis, keepdims=True), v.shape)


def _first(v: Array, axis: int, place: int) -> Array:
    return np.broadcast_to(v.take([place], axis), v.shape)


def narrow(name: str) -> Callable[[Array], Array]:
    """Rounding to a narrower type."""
    return PRECISIONS[name].round


def tf32(v: Array) -> Array:
    """Rounding to 11 digits, as the inputs of TF32 products."""
    mantissa, exponent = np.frexp(v)
    return np.asarray(np.ldexp(np.rint(mantissa * 2048) / 2048, exponent))


def forms(v: Array, digits: int) -> Iterator[Form]:
    """What may stand for a value, computed from it alone.

    Args:
        v: The value.
        digits: Of the precision under test: what is narrower is tried.
    """
    if v.dtype.kind == "b":
        yield 5, "mask", "{} is not applied", np.ones_like
        yield 5, "mask", "{} is inverted", np.logical_not
    else:
        yield 4, "factor left out", "1 stands for {}", np.ones_like
        yield 5, "value", "the absolute value of {} stands for it", np.abs
        yield 5, "value", "the square of {} stands for it", np.square
        yield 6, "value", "1 / {} stands for it", lambda x: 1 / x
        yield 6, "value", "the root of {} stands for it", lambda x: np.sqrt(np.abs(x))
        yield 6, "value", "1 - {} stands for it", lambda x: 1 - x
        yield 6, "value", "1 + {} stands for it", lambda x: 1 + x
        yield 6, "value", "the sign of {} stands for it", np.sign
        yield 6, "value", "{} is clipped at 0", lambda x: np.maximum(x, 0)
        for name, precision in PRECISIONS.items():
            if precision.digits < digits:
                yield 6, "narrow", f"{{}} is rounded to {name}", narrow(name)
                yield (
                    7,
                    "narrow",
                    f"1 / {{}} is rounded to {name}",
                    lambda x, p=precision: 1 / p.round(1 / x),
                )
        if digits > 11:
            yield 7, "narrow", "{} is rounded to TF32", tf32
    if v.size < 2:
        return
    if v.dtype.kind != "b":
        yield 6, "mean", "the mean of {} stands for it", lambda x: _along(x, None, np.mean)
        yield 6, "sum", "the sum of {} stands for it", lambda x: _along(x, None, np.sum)
    yield 5, "order", "{} is reversed", np.flip
    yield 6, "shift", "{} is shifted by one", lambda x: np.roll(x, 1)
    yield 6, "shift", "{} is shifted back by one", lambda x: np.roll(x, -1)
    if v.ndim > 1:
        yield 6, "order", "{} is read in column order", lambda x: x.reshape(x.shape[::-1]).T
        if v.shape[-1] == v.shape[-2]:
            yield 5, "transposed", "{} is transposed", lambda x: np.swapaxes(x, -1, -2)
    for axis in range(v.ndim):
        yield from _of_axis(v, axis)


def _of_axis(v: Array, axis: int) -> Iterator[Form]:
    n = v.shape[axis]
    if n < 2:
        return
    at = f" along axis {axis}" if v.ndim > 1 else ""
    if v.ndim > 1:
        yield 6, "shift", f"{{}} is shifted by one{at}", lambda x: np.roll(x, 1, axis)
        yield 6, "shift", f"{{}} is shifted back by one{at}", lambda x: np.roll(x, -1, axis)
        yield 6, "order", f"{{}} is reversed{at}", lambda x: np.flip(x, axis)
        if v.dtype.kind != "b":
            yield 6, "mean", f"the mean of {{}}{at} stands for it", lambda x: _along(x, axis, np.mean)
            yield 6, "sum", f"the sum of {{}}{at} stands for it", lambda x: _along(x, axis, np.sum)
    if v.dtype.kind != "b":
        last, first = slice(0, n - 1), slice(1, n)
        yield 6, "last term", f"the last element of {{}}{at} is left out", lambda x: _kept(x, axis, last)
        yield 6, "last term", f"the first element of {{}}{at} is left out", lambda x: _kept(x, axis, first)
        yield 6, "one for all", f"the first element of {{}}{at} stands for all", lambda x: _first(x, axis, 0)
        yield 6, "one for all", f"the last element of {{}}{at} stands for all", lambda x: _first(x, axis, -1)


#: What may be computed in place of an operation.
_SIBLINGS: dict[str, tuple[str, ...]] = {
    "add": ("subtract",),
    "subtract": ("add",),
    "multiply": ("divide", "add"),
    "divide": ("multiply",),
    "sin": ("cos",),
    "cos": ("sin",),
    "sinh": ("cosh",),
    "cosh": ("sinh",),
    "exp": ("expm1",),
    "sqrt": ("positive",),
    "square": ("positive",),
}


def edits(sweep: Sweep, words: Words, digits: int) -> Iterator[Edit]:
    """Every edit of a node that depends on a cotangent, from cheap to dear."""
    nodes = sweep.flowing[::-1]
    for node in nodes:
        yield _itself(node, words)
        yield from _edges(node, sweep, words)
    for node in nodes:
        yield from _reductions(node, words)
        yield from _operands(node, sweep, words, digits)
    for node in nodes:
        value = node.value
        for rank, kind, text, form in forms(value, digits):
            yield Edit(
                rank - (node in sweep.cotangents),
                "cotangent" if node in sweep.cotangents else kind,
                lambda text=text, node=node: text.format(words.path(node)),
                node,
                _of(node, form),
            )
    for node in nodes:
        yield from _others(node, sweep, words)


def _itself(node: Node, words: Words) -> Edit:
    def make(at: At) -> Array:
        return graph.computed(node, [at(n) for n in node.inputs]) if node.primitive else at(node)

    return Edit(3, "path", lambda: words.path(node), node, make)


def _of(node: Node, form: Callable[[Array], Array]) -> Make:
    """A form of a node's own value."""

    def make(at: At) -> Array:
        own = graph.computed(node, [at(n) for n in node.inputs]) if node.primitive else at(node)
        return form(own)

    return make


def _with(node: Node, place: int, other: Callable[[At], Array]) -> Make:
    """A node's value where one of its operands is another."""

    def make(at: At) -> Array:
        arrays = [other(at) if i == place else at(n) for i, n in enumerate(node.inputs)]
        return graph.computed(node, arrays)

    return make


def _edges(node: Node, sweep: Sweep, words: Words) -> Iterator[Edit]:
    """One of several terms that a node adds, or one of several uses of a value."""
    flowing = [i for i, n in enumerate(node.inputs) if n in sweep.flows]
    if len(flowing) < 2:
        return
    for i in flowing:
        source = node.inputs[i]
        for rank, factor, said in (
            (2, 0.0, "left out"),
            (3, -1.0, "given the wrong sign"),
            (3, 2.0, "counted twice"),
        ):
            yield Edit(
                rank,
                "path",
                lambda source=source, said=said: f"{words.path(source)} is {said}",
                node,
                _with(node, i, lambda at, s=source, f=factor: at(s) * f),
                scales=False,
            )


def _reductions(node: Node, words: Words) -> Iterator[Edit]:
    """Sums that take one copy, their mean or their largest, and index mistakes."""
    step = node.primitive
    if step is None:
        return
    source = node.inputs[0]
    if step.name in ("sum", "sum_to"):
        shape, attributes = node.shape, node.attributes
        whole = graph.computed(node, [np.ones_like(source.value)])
        count = float(np.max(whole, initial=1.0))
        if count < 2:
            return
        axes = _summed(node)

        def reduced(x: Array, how: Callable[..., Any]) -> Array:
            return np.asarray(how(x, axes)).reshape(shape)

        rows: Sequence[tuple[int, str, str, Callable[[Array, Any], Array]]] = (
            (4, "copies", "the first of {n} terms stands for the sum of {}", lambda x, a: _ends(x, a, 0)),
            (4, "copies", "the last of {n} terms stands for the sum of {}: it is overwritten, not added up", lambda x, a: _ends(x, a, -1)),
            (5, "copies", "the largest of {n} terms stands for the sum of {}", lambda x, a: np.max(x, a)),
            (5, "last term", "the last of {n} terms is missing in the sum of {}", lambda x, a: np.sum(x, a) - _ends(x, a, -1)),
            (5, "last term", "the first of {n} terms is missing in the sum of {}", lambda x, a: np.sum(x, a) - _ends(x, a, 0)),
            (5, "sum", "absolute values are summed of {}", lambda x, a: np.sum(np.abs(x), a)),
        )
        for rank, kind, text, how in rows:
            yield Edit(
                rank,
                kind,
                lambda text=text: text.format(words.path(source), n=int(count)),
                node,
                lambda at, how=how: reduced(at(source), how),
            )
        yield from _other_axes(node, words, attributes)
    if step.name == "scatter_add":
        index, shape = node.attributes["index"], node.attributes["shape"]

        def written(at: At) -> Array:
            out = np.zeros(int(np.prod(shape)) + 1, at(source).dtype)
            out[index] = at(source)
            return out[:-1].reshape(shape)

        yield Edit(
            4,
            "copies",
            lambda: f"equal places overwrite each other, where {words.path(source)} should be added up",
            node,
            written,
        )
    if step.name in ("gather", "scatter_add"):
        for by in (1, -1):
            moved = np.roll(node.attributes["index"], by, -1) if node.attributes["index"].ndim else None
            if moved is not None and step is not None:
                yield Edit(
                    6,
                    "index",
                    lambda by=by: f"the index of {words.path(node)} is off by {by}",
                    node,
                    lambda at, moved=moved: np.asarray(
                        step.compute(*(at(n) for n in node.inputs), **{**node.attributes, "index": moved})
                    ),
                )


def _summed(node: Node) -> tuple[int, ...]:
    """The axes that a sum goes over."""
    source = node.inputs[0]
    if node.primitive and node.primitive.name == "sum":
        return axes_of(node.attributes["axis"], source.ndim)
    shape = node.attributes["shape"]
    new = source.ndim - len(shape)
    copied = (i + new for i, n in enumerate(shape) if n == 1 and source.shape[i + new] != 1)
    return (*range(new), *copied)


def _ends(x: Array, axes: Sequence[int], place: int) -> Array:
    """The first or last of the terms of a sum."""
    at = tuple(place if i in axes else slice(None) for i in range(x.ndim))
    return np.asarray(x[at])


def _other_axes(node: Node, words: Words, attributes: Any) -> Iterator[Edit]:
    """A sum along other axes whose result has, or is copied to, the same shape."""
    source, axes = node.inputs[0], _summed(node)
    if len(axes) != 1:
        return
    for axis in range(source.ndim):
        if axis in axes:
            continue
        for how in ("kept", "dropped"):

            def make(at: At, axis: int = axis, how: str = how) -> Array:
                total = np.sum(at(source), axis, keepdims=how == "kept")
                return np.broadcast_to(total, node.shape)

            yield Edit(
                5,
                "axis",
                lambda axis=axis: f"the sum of {words.path(source)} is taken along axis {axis}, not {axes[0]}",
                node,
                make,
            )


def _operands(node: Node, sweep: Sweep, words: Words, digits: int) -> Iterator[Edit]:
    """Another form of a saved value in one operation of the backward."""
    for i, source in enumerate(node.inputs):
        if source in sweep.flows or node.primitive is None:
            continue
        for rank, kind, text, form in forms(source.value, digits):
            yield Edit(
                rank,
                kind,
                lambda text=text, source=source: f"in {words.rule(node)}, {text.format(words.quoted(source))}",
                node,
                _with(node, i, lambda at, s=source, f=form: f(at(s))),
            )
        yield Edit(
            6,
            "value",
            lambda source=source: f"in {words.rule(node)}, {words.quoted(source)} is left out",
            node,
            _with(node, i, lambda at, s=source: np.zeros_like(at(s))),
            scales=False,
        )
    yield from _swapped(node, words)


def missing(sweep: Sweep, words: Words) -> Iterator[Edit]:
    """A saved factor that is left out, or another one in its place."""
    for node in sweep.flowing:
        for edit in (*_operands(node, sweep, words, 0), *_others(node, sweep, words)):
            if edit.kind == "factor left out" or edit.rank == 4:
                yield edit


def _swapped(node: Node, words: Words) -> Iterator[Edit]:
    """Another operation on the same operands."""
    name = node.primitive.name if node.primitive else ""
    for other in _SIBLINGS.get(name, ()):
        if other in graph.PRIMITIVES:
            compute = graph.PRIMITIVES[other].compute
            yield Edit(
                5,
                "operation",
                lambda other=other: f"in {words.rule(node)}, {other} stands for {name}",
                node,
                lambda at, compute=compute: np.asarray(compute(*(at(n) for n in node.inputs))),
            )


def _others(node: Node, sweep: Sweep, words: Words) -> Iterator[Edit]:
    """Another saved value of the same shape in one operation of the backward."""
    for i, source in enumerate(node.inputs):
        if source in sweep.flows or source.value.dtype.kind not in "f":
            continue
        if node.primitive is None or (source.primitive is None and source not in words.names):
            continue
        for other in near(source, sweep, words):
            yield Edit(
                4 if other in words.names or other in sweep.outputs else 5,
                "value",
                lambda s=source, o=other: f"in {words.rule(node)}, {words.quoted(o)} stands for {words.quoted(s)}",
                node,
                _with(node, i, lambda at, o=other: at(o)),
            )


def near(source: Node, sweep: Sweep, words: Words) -> list[Node]:
    """Values of the same shape, inputs and outputs first, then by their place."""
    place = {n: i for i, n in enumerate(sweep.order)}
    here = place[source]
    alike = [
        n
        for n in sweep.order
        if n is not source
        and n not in sweep.flows
        and n.value.shape == source.shape
        and n.value.dtype == source.value.dtype
        and (n.primitive is not None or n in words.names)
    ]
    first = {*words.names, *sweep.outputs}
    return sorted(alike, key=lambda n: (n not in first, abs(place[n] - here)))[:NEAREST]


# What changes many values at once ---------------------------------------------------


@dataclass(frozen=True)
class Change:
    """A value of the forward that the backward, or everything, sees changed."""

    rank: int
    kind: str
    words: Callable[[], str]
    saved: dict[Node, Make]
    edits: dict[Node, Make]
    within: Set[Node] | None = None


#: Values that people write for an eps or a scale.
_CONSTANTS = (0.0, 1.0, 2.0, 0.5, 1e-12, 1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1)


def constants(sweep: Sweep, words: Words) -> list[Node]:
    """Numbers in the formula that the backward depends on."""
    return [
        n
        for n in sweep.order
        if n.primitive is None
        and n not in words.names
        and n not in sweep.flows
        and n.value.size == 1
        and n.value.dtype.kind == "f"
    ]


def constant(node: Node, new: float, words: Words, rank: int = 4) -> Iterator[Change]:
    """Another number in place of a constant: everywhere, or in one of both sweeps."""
    old = float(node.value.reshape(-1)[0])
    user = next((n for n in words.sweep.order if any(i is node for i in n.inputs)), node)
    said = f"{number(new)} stands for {number(old)} in {words.quoted(user)}{words.line(user)}"

    def other(at: At) -> Array:
        return np.full_like(node.value, new)

    def own(at: At) -> Array:
        return node.value

    yield Change(rank, "constant", lambda: said, {}, {node: other})
    if node in words.sweep.forward:
        yield Change(rank + 1, "constant", lambda: said, {node: own}, {node: other})


def changes(sweep: Sweep, words: Words, digits: int) -> Iterator[Change]:
    """Edits of constants, of saved values wherever they are used, and of inputs."""
    for node in constants(sweep, words):
        old = float(node.value.reshape(-1)[0])
        tried = (*_CONSTANTS, -old, old - 1, old + 1, 10 * old, old / 10, old * 100, old / 100, 2 * old, old / 2)
        if float(np.float16(old)) != old:
            tried += (float(np.float32(old)), float(np.float16(old)))
        for new in dict.fromkeys(tried):
            if new != old:
                yield from constant(node, new, words)
    held = [n for n in sweep.order if n not in sweep.flows and n.value.dtype.kind in "fb"]
    held = [n for n in held if n.primitive is not None or n in words.names]
    for node in held:
        if node.value.dtype.kind == "f":
            for other in near(node, sweep, words)[:8]:
                yield Change(
                    5,
                    "value",
                    lambda n=node, o=other: f"the backward uses {words.quoted(o)} for {words.quoted(n)}{words.line(n)}",
                    {node: lambda at, o=other: at(o)},
                    {},
                )
        for rank, kind, text, form in forms(node.value, digits):
            yield Change(
                rank + 1,
                kind,
                lambda n=node, text=text: f"in the backward, {text.format(words.quoted(n))}{words.line(n)}",
                {node: lambda at, n=node, f=form: f(at(n))},
                {},
            )
        for swap in _swapped(node, words):
            yield Change(
                6,
                "operation",
                lambda n=node, s=swap: f"the backward has {s.words().split(', ')[-1]} in {words.quoted(n)}",
                {node: swap.make},
                {},
            )
    yield from _roots(sweep, words)
    yield from _inputs(sweep, words, digits)


def _roots(sweep: Sweep, words: Words) -> Iterator[Change]:
    """A constant that stands beside a root, not under it."""
    for node in sweep.order:
        under = node.inputs[0] if node.primitive and node.primitive.name == "sqrt" else None
        if under is None or not under.primitive or under.primitive.name != "add":
            continue
        value, eps = under.inputs
        if eps.size == 1 and eps.primitive is None:

            def make(at: At, value: Node = value, eps: Node = eps) -> Array:
                return np.asarray(np.sqrt(at(value)) + at(eps))

            yield Change(
                4,
                "constant",
                lambda eps=eps, node=node: f"{words.quoted(eps)} is added to the root, not under it, in {words.quoted(node)}{words.line(node)}",
                {},
                {node: make},
            )


def _inputs(sweep: Sweep, words: Words, digits: int) -> Iterator[Change]:
    """Inputs that are not the saved ones, in all that the backward computes."""
    leaves = [n for n in sweep.inputs.values() if n.value.dtype.kind == "f" and n in words.names]
    leaves = [n for n in leaves if n in sweep.values]
    for name, precision in PRECISIONS.items():
        if precision.digits < digits:
            for some in ([leaves] if len(leaves) > 1 else []) + [[n] for n in leaves]:
                what = "all inputs" if len(some) > 1 else words.names[some[0]]
                yield Change(
                    5,
                    "narrow",
                    lambda name=name, what=what: f"what is saved of {what} is rounded to {name}",
                    {},
                    {n: lambda at, n=n, f=narrow(name): f(at(n)) for n in some},
                )
    for leaf in leaves:
        for rank, kind, text, form in forms(leaf.value, 0):
            yield Change(
                rank + 1,
                kind,
                lambda leaf=leaf, text=text: text.format(words.names[leaf]),
                {},
                {leaf: lambda at, n=leaf, f=form: f(at(n))},
            )


def rules(sweep: Sweep, words: Words) -> Iterator[Change]:
    """Another value wherever the rule of one operation uses a saved one."""
    by_rule: dict[Node, list[Node]] = {}
    for node, (rule, _) in words.made.items():
        by_rule.setdefault(rule, []).append(node)
    for rule, made in by_rule.items():
        within = {*made}
        for source in dict.fromkeys((*rule.inputs, rule)):
            users = [n for n in made if any(i is source for i in n.inputs)]
            if len(users) < 2 or source.value.dtype.kind != "f" or source in sweep.flows:
                continue
            for other in broadcast(source, sweep, words):
                yield Change(
                    5,
                    "value",
                    lambda s=source, o=other, r=rule: f"in the backward of {words.quoted(r)}{words.line(r)}, {words.quoted(o)} stands for {words.quoted(s)}",
                    {source: lambda at, o=other, s=source: np.broadcast_to(at(o), s.shape)},
                    {},
                    within,
                )


def broadcast(source: Node, sweep: Sweep, words: Words) -> list[Node]:
    """Saved values that could be copied to a shape, those of the same shape first."""
    wider = []
    for n in sweep.order:
        if n not in sweep.flows and n.value.dtype == source.value.dtype and n is not source and n.ndim:
            if n.shape != source.shape and (n.primitive is not None or n in words.names):
                with contextlib.suppress(ValueError):
                    if np.broadcast_shapes(n.shape, source.shape) == source.shape:
                        wider.append(n)
    return near(source, sweep, words)[:12] + wider[:12]
