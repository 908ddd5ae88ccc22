"""The list of mistakes: what may stand in a backward in place of a right value.

Each row changes a value of the gradient's graph. Its rank says how readily a person
believes it, where several rows explain the same numbers: less is better.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from gradwatch.harness.judging.diagnosis.sweep import Array, At, Make, Sweep, itself
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.impls import graph
from gradwatch.impls.graph import Node
from gradwatch.impls.graph.engine import axes_of

Change = Callable[[Array], Array]
Form = tuple[float, str, str, Change]
NEAREST = 24  # values that are tried in place of another, nearest in the graph first


@dataclass(frozen=True)
class Edit:
    """Values of the graph replaced.

    Attributes:
        rank, kind: How far-fetched it is, and what kind of mistake.
        text: Says it; {term} and {rule} are those of the first node it is about, {0}
            and {1} the expressions of the others.
        about: Nodes.
        edits: What nodes become.
        saved: What nodes of the forward become where the backward reads them.
        scales: A factor that is fitted may stand before it.
    """

    rank: float
    kind: str
    text: str
    about: tuple[Node, ...]
    edits: Mapping[Node, Make] = field(default_factory=dict)
    saved: Mapping[Node, Make] = field(default_factory=dict)
    scales: bool = True

    @property
    def plain(self) -> bool:
        """Whether it is nothing but a factor before a term."""
        return self.kind == "path" and self.scales


def _along(x: Array, axis: int | None, how: Callable[..., Any]) -> Array:
    return np.broadcast_to(how(x, axis=axis, keepdims=True), x.shape)


def _without(x: Array, axis: int | None, place: int) -> Array:
    out = x.copy()
    np.moveaxis(out, axis or 0, 0)[place] = 0
    return out


def tf32(x: Array) -> Array:
    """Rounding to 11 digits, as of what enters a TF32 product."""
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.rint(mantissa * 2048) / 2048, exponent))


#: What may stand for a value, computed from it alone.
_VALUES: Sequence[Form] = (
    (4, "factor", "1 stands for {}", np.ones_like),
    (5, "value", "|{}| stands for it", np.abs),
    (5, "value", "the square of {} stands for it", np.square),
    (6, "value", "1 / {} stands for it", lambda x: 1 / x),
    (6, "value", "the root of {} stands for it", lambda x: np.sqrt(np.abs(x))),
    (6, "value", "1 - {} stands for it", lambda x: 1 - x),
    (6, "value", "1 + {} stands for it", lambda x: 1 + x),
    (6, "value", "the sign of {} stands for it", np.sign),
    (6, "value", "{} is clipped at 0", lambda x: np.maximum(x, 0)),
)
_MASKS: Sequence[Form] = (
    (5, "mask", "{} is not applied", np.ones_like),
    (5, "mask", "{} is inverted", np.logical_not),
    (6, "mask", "{} is false everywhere", np.zeros_like),
)
_MATRICES: Sequence[Form] = (
    (6, "order", "{} is read in column order", lambda x: x.reshape(x.shape[::-1]).T),
    (6, "order", "{} is its transpose, read in rows", lambda x: x.T.reshape(x.shape)),
)
#: What may stand for a value along an axis; the first five also for all of it.
_AXES: Sequence[tuple[float, str, str, Callable[[Array, int | None], Array]]] = (
    (5.5, "order", "{} is reversed", np.flip),
    (6, "shift", "{} is shifted by one", lambda x, i: np.roll(x, 1, i)),
    (6, "shift", "{} is shifted back by one", lambda x, i: np.roll(x, -1, i)),
    (6, "mean", "the mean of {} stands for it", lambda x, i: _along(x, i, np.mean)),
    (6, "mean", "the sum of {} stands for it", lambda x, i: _along(x, i, np.sum)),
    (6, "terms", "the last of {} is left out", lambda x, i: _without(x, i, -1)),
    (6, "terms", "the first of {} is left out", lambda x, i: _without(x, i, 0)),
    (6, "copies", "the first of {} stands for all", lambda x, i: _of_one(x, i, 0)),
    (6, "copies", "the last of {} stands for all", lambda x, i: _of_one(x, i, -1)),
    (6, "copies", "the first of {} is alone", lambda x, i: x - _without(x, i, 0)),
)


def _of_one(x: Array, axis: int | None, place: int) -> Array:
    return np.broadcast_to(x.take([place], axis), x.shape)


def forms(x: Array, digits: int) -> Iterator[Form]:
    """What may stand for a value, computed from it alone, in so many digits."""
    number = x.dtype.kind != "b"
    yield from _VALUES if number else _MASKS
    if number:
        yield from _roundings(digits)
    if x.ndim > 1:
        yield from _MATRICES
        if x.shape[-1] == x.shape[-2]:
            yield 5, "order", "{} is transposed", lambda x: np.swapaxes(x, -1, -2)
    if x.ndim > 2:
        turn = "{} is turned about in its last two axes"
        yield 5, "order", turn, lambda x: np.flip(x, (-2, -1))
    for axis in (None, *range(x.ndim)):
        rows = _AXES[:5] if axis is None else _AXES
        for rank, kind, text, form in rows if x.size > 1 else ():
            moved = number or kind in ("shift", "order")
            if moved and (axis is None or x.shape[axis] > 1):
                at = text if axis is None else f"{text} along axis {axis}"
                yield rank, kind, at, partial(lambda f, i, x: f(x, i), form, axis)


def _roundings(digits: int) -> Iterator[Form]:
    for name, precision in PRECISIONS.items():
        if precision.digits < digits:
            rounding = precision.round
            yield 6, "narrow", f"{{}} is rounded to {name}", rounding
            inverse = f"1 / {{}} is rounded to {name}"
            yield 7, "narrow", inverse, partial(lambda f, x: 1 / f(1 / x), rounding)
    if digits > 11:
        yield 7, "narrow", "{} is rounded to TF32", tf32


def by(how: Callable[..., Any], *nodes: Node) -> Make:
    """What is computed of some nodes."""
    return lambda at: np.asarray(how(*map(at, nodes)))


# Of one node ------------------------------------------------------------------------


def local(sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Every edit of one node that depends on a cotangent, from cheap to dear."""
    for node in sweep.ends:
        yield from _whole(node, sweep, digits)
    for node in [n for n in sweep.flowing if n not in sweep.ends]:
        yield from _terms(node, sweep, digits)
        yield from _sums(node, sweep)
        yield from _copies(node)
        yield from _operands(node, sweep, digits)


def _whole(node: Node, sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Edits of a gradient that comes out."""
    (source,) = node.inputs
    yield Edit(1, "path", "{term} is", (node,), {node: by(np.asarray, source)})
    for other in sweep.ends:
        if other is not node and other.shape == node.shape:
            text, made = "{term} has the values of {0}", {node: by(np.asarray, other)}
            yield Edit(1, "swapped", text, (node, other), made, scales=False)
    for rank, kind, text, form in forms(node.value, digits):
        if kind not in ("factor", "value") or "|" in text:
            made = {node: by(form, source)}
            yield Edit(rank - 3, kind, text.format("{term}"), (node,), made)


def _terms(node: Node, sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Edits of what flows."""

    def made(how: Callable[..., Array], *others: Node) -> Mapping[Node, Make]:
        return {node: lambda at: how(itself(node, at), *map(at, others))}

    yield Edit(3, "path", "{term} is", (node,), made(np.asarray))
    for other in near(node, sweep, wider=True):
        both, more = (node, other), made(np.multiply, other)
        yield Edit(5, "value", "{term} is multiplied by {0}", both, more)
        less = made(np.divide, other)
        yield Edit(4.5, "factor", "{term} is divided by {0}", both, less)
        if other.shape == node.shape:
            alone = made(lambda x, y: y, other)
            yield Edit(5.5, "value", "{0} stands for {term}", both, alone)
    given = node in sweep.cotangents
    for rank, kind, text, form in forms(node.value, digits):
        kind, text = "cotangent" if given else kind, text.format("{term}")
        yield Edit(rank - given, kind, text, (node,), made(form))


def _with(node: Node, place: int, other: Make) -> Mapping[Node, Make]:
    """A node whose operand is another."""

    def make(at: At) -> Array:
        arrays = [other(at) if i == place else at(n) for i, n in enumerate(node.inputs)]
        return graph.computed(node, arrays)

    return {node: make}


def _sums(node: Node, sweep: Sweep) -> Iterator[Edit]:
    """One copy for a sum; other axes, up to where it is copied again."""
    name = node.primitive.name if node.primitive else ""
    if name not in ("sum", "sum_to") or node.size == node.inputs[0].size:
        return
    (source,), chain, axes = node.inputs, [node], _summed(node)
    one = {0: "the first copy stands for the sum"}
    one[-1] = "the last copy overwrites the others"
    for place, words in one.items():
        text = f"in the sum of {{term}}, {words}"
        at = tuple(place if i in axes else slice(None) for i in range(source.ndim))
        copy = by(partial(lambda i, x: x[i].reshape(node.shape), at), source)
        yield Edit(4, "copies", text, (source,), {node: copy})
    while len(users := sweep.users.get(chain[-1], [])) == 1:
        chain.append(users[0])
        if chain[-1].primitive and chain[-1].primitive.name == "broadcast_to":
            break
    others = (None, *range(source.ndim))
    held = (None, *near(node, sweep)[:4])
    for k, axis, outside in itertools.product(range(len(chain)), others, held):

        def made(
            at: At, k: int = k, axis: int | None = axis, other: Node | None = outside
        ) -> Array:
            # Inside or outside of the right sum it is the same.
            factor = 1.0 if other is None else at(other)
            total = (at(source) * factor).sum(axis, keepdims=True) / factor
            for before, one in itertools.pairwise(chain[: k + 1]):
                total = _with_one(one, before, total, at)
            return np.broadcast_to(total, chain[k].shape)

        which = "all axes" if axis is None else f"axis {axis}"
        text = f"{{term}} is summed along {which} instead"
        yield Edit(5, "axis", text, (source,), {chain[k]: made})


def _with_one(node: Node, source: Node, value: Array, at: At) -> Array:
    """A node whose source has another value."""
    return itself(node, lambda n: value if n is source else at(n))


def _summed(node: Node) -> tuple[int, ...]:
    """The axes that a sum goes over."""
    (source,), shape = node.inputs, node.shape
    if "axis" in node.attributes:
        return axes_of(node.attributes["axis"], source.ndim)
    new = source.ndim - len(shape)
    wide = zip(shape, source.shape[new:], strict=True)
    return (*range(new), *(i + new for i, (n, m) in enumerate(wide) if n == 1 != m))


def _copies(node: Node) -> Iterator[Edit]:
    """Copies that overwrite each other."""
    name = node.primitive.name if node.primitive else ""
    if name == "scatter_add" and node.attributes["index"].ndim:
        index, source = node.attributes["index"], node.inputs[0]

        def written(at: At) -> Array:
            out = np.zeros(node.size + 1, node.dtype)
            out[index] = at(source)
            return out[:-1].reshape(node.shape)

        text = "equal indices overwrite {term}, and do not add it up"
        yield Edit(4, "copies", text, (source,), {node: written})


def _operands(node: Node, sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Another form of a saved value, or a step that is left out."""
    for i, source in enumerate(node.inputs):
        if source not in sweep.flows:
            alike = near(source, sweep, until=node)
            if source.shape != node.shape:
                alike += near(node, sweep)
            for rank, kind, text, about, make in _others(source, sweep, digits, alike):
                edits = _with(node, i, make)
                yield Edit(rank, kind, f"in {{rule}}, {text}", (node, *about), edits)
        elif source.shape == node.shape and node.primitive:
            text = f"{node.primitive.name} is left out after {{term}}"
            yield Edit(5, "operation", text, (source,), {node: by(np.asarray, source)})


def _others(
    source: Node, sweep: Sweep, digits: int, alike: Sequence[Node]
) -> Iterator[tuple[float, str, str, tuple[Node, ...], Make]]:
    """What may stand for a saved value: another form of it, or another value."""
    for rank, kind, text, form in forms(source.value, digits):
        yield rank, kind, text.format("{0}"), (source,), by(form, source)
    for other in alike if source.dtype.kind == "f" else ():
        rank, make = 4 if other in sweep.known else 5, by(np.asarray, other)
        yield rank, "value", "{1} stands for {0}", (source, other), make


def near(
    source: Node, sweep: Sweep, *, wider: bool = False, until: Node | None = None
) -> list[Node]:
    """Saved values of a shape, or that could be copied to it.

    Inputs and outputs come first, then what is near in the graph; with `until` also
    gradients that are computed before that node.
    """
    place = sweep.place
    late = -1 if until is None else place[until]

    def fits(n: Node) -> bool:
        named = n.primitive is not None or n in sweep.known
        flows = n in sweep.flows and place[n] >= late
        if n is source or flows or not named or n.dtype != source.dtype:
            return False
        if not wider or n.ndim > source.ndim or not n.ndim:
            return n.shape == source.shape
        pairs = zip(n.shape[::-1], source.shape[::-1], strict=False)
        return all(a in (1, b) for a, b in pairs)

    alike = filter(fits, sweep.order)
    here = place[source]
    return sorted(alike, key=lambda n: (n not in sweep.known, abs(place[n] - here)))[
        :NEAREST
    ]


# Of many nodes ----------------------------------------------------------------------


def constants(sweep: Sweep) -> list[Node]:
    """Numbers in the formula that the backward depends on."""
    return [
        n
        for n in sweep.order
        if n.primitive is None and n not in sweep.known and n not in sweep.flows
        if n.value.size == 1 and n.value.dtype.kind == "f"
    ]


def constant(node: Node, sweep: Sweep, alone: bool, new: float) -> Edit:
    """Another number in place of a constant: everywhere, or in the forward `alone`."""
    user = next((n for n in sweep.order if any(i is node for i in n.inputs)), node)
    text, value = f"{short(new)} stands for {{0}} in {{1}}", node.value
    made: dict[Node, Make] = {node: lambda at: np.full_like(value, new)}
    kept: dict[Node, Make] = {node: lambda at: value} if alone else {}
    rank = 4 + alone + 2.5 * (len(f"{new!r}") > 8)
    return Edit(rank, "constant", text, (user, node, user), made, kept)


def short(value: float) -> str:
    """A number, as few digits as are right."""
    return f"{value:.9g}"


def broad(sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Edits of saved values wherever they are used, and of inputs."""
    yield from _roots(sweep)
    yield from _exchanged(sweep)
    yield from _inputs(sweep, digits)
    for node in sweep.order:
        named = node.primitive is not None or node in sweep.known
        if named and node not in sweep.flows and node.value.dtype.kind in "fb":
            yield from _saved(node, sweep, digits)


#: What may be computed in place of an operation.
_PAIRS = {"add": "subtract", "multiply": "divide", "sin": "cos", "tanh": "sigmoid"}
_SIBLINGS = _PAIRS | {other: name for name, other in _PAIRS.items()}


def _saved(node: Node, sweep: Sweep, digits: int) -> Iterator[Edit]:
    alike = near(node, sweep)[:8]
    for rank, kind, text, about, make in _others(node, sweep, digits, alike):
        text, saved = f"in the backward, {text}", {node: make}
        yield Edit(rank + 1, kind, text, (node, *about), {}, saved)
    if node.primitive and node.primitive.name in _SIBLINGS:
        other = graph.PRIMITIVES[_SIBLINGS[node.primitive.name]]
        text = f"the backward has {{0}}, where {other.name} stands for its operation"
        saved = {node: by(other.compute, *node.inputs)}
        yield Edit(6, "operation", text, (node, node), {}, saved)


def _exchanged(sweep: Sweep) -> Iterator[Edit]:
    """Two cotangents, each in place of the other."""
    for a, b in itertools.combinations(sweep.cotangents, 2):
        if a.shape == b.shape:
            # What is read is what there was before: `saved` and edits are apart.
            made = {a: by(np.asarray, b), b: by(np.asarray, a)}
            text = "the backward takes {0} and {1} for each other"
            yield Edit(5, "swapped", text, (a, a, b), {}, made)


def _roots(sweep: Sweep) -> Iterator[Edit]:
    """A constant that stands beside a root, not under it."""
    for node in sweep.order:
        if node.primitive and node.primitive.name == "sqrt":
            (under,) = node.inputs
            if under.primitive and under.primitive.name == "add":
                a, b = under.inputs
                made = {node: by(lambda a, b: np.sqrt(a) + b, a, b)}
                text = "{1} is added to the root in {0}, not under it"
                yield Edit(4, "constant", text, (node, node, b), made)


def _inputs(sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Inputs that the backward reads as others than the forward does."""
    leaves = [n for n in sweep.inputs.values() if n in sweep.values]
    for rank, kind, text, form in _roundings(digits):
        made = {n: by(form, n) for n in leaves if n.dtype.kind == "f"}
        if leaves and rank < 7:
            text = text.format("what is saved of the inputs")
            yield Edit(5, kind, text, (leaves[0],), made)
    for leaf in leaves:
        for rank, kind, text, about, make in _others(leaf, sweep, digits, ()):
            text = f"in all that the backward uses, {text}"
            yield Edit(rank + 1, kind, text, (leaf, *about), {leaf: make})
