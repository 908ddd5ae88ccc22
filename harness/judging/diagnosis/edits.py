"""The list of mistakes: what may stand in a backward in place of a right value.

Each row changes a value of the gradient's graph. Its rank says how readily a person
believes it, where several rows explain the same numbers: less is better.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from gradwatch.harness.judging.diagnosis.sweep import Array, At, Make, Sweep, itself
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.rounding.sums import summed_axes
from gradwatch.impls import graph
from gradwatch.impls.graph import Node

Form = tuple[float, str, Callable[[Array], Array]]
Edits = Mapping[Node, Make]
NEAREST = 24  # values that are tried in place of another, nearest in the graph first


@dataclass(frozen=True)
class Edit:
    """Values of the graph replaced.

    Attributes:
        rank: How far-fetched it is.
        text: Says it; {term} and {rule} are those of the first node it is `about`, {0}
            and {1} the expressions of the others.
        edits: What nodes become; `saved` where the backward reads them alone.
        plain: It is nothing but a factor before a term.
        also: Another edit at once.
    """

    rank: float
    text: str
    about: tuple[Node, ...]
    edits: Edits = field(default_factory=dict)
    saved: Edits = field(default_factory=dict)
    plain: bool = False
    also: Edit | None = None

    def beside(self, other: Edit) -> Edit:
        """Both edits at once."""
        both = {**self.edits, **other.edits}
        return replace(self, rank=self.rank + other.rank, edits=both, also=other)


# What may stand for a value ---------------------------------------------------------


def _along(how: Callable[..., Any]) -> Callable[[Array, int | None], Array]:
    return lambda x, i: np.broadcast_to(how(x, axis=i, keepdims=True), x.shape)


def _without(x: Array, axis: int, place: int) -> Array:
    out = x.copy()
    np.moveaxis(out, axis, 0)[place] = 0
    return out


def _taken(x: Array, axis: int, start: int, step: int) -> Array:
    """Elements along an axis from a place on; beyond the ends the first or last."""
    places = start + step * np.arange(x.shape[axis])
    return x.take(np.clip(places, 0, x.shape[axis] - 1), axis)


#: What may stand for a value, computed from it alone.
_VALUES: Sequence[Form] = (
    (4, "1 stands for {}", np.ones_like),
    (5, "0 stands for {}", np.zeros_like),
    (5, "|{}| stands for it", np.abs),
    (5, "the square of {} stands for it", np.square),
    (6, "1 / {} stands for it", lambda x: 1 / x),
    (6, "the root of {} stands for it", lambda x: np.sqrt(np.abs(x))),
    (6, "1 - {} stands for it", lambda x: 1 - x),
    (6, "1 + {} stands for it", lambda x: 1 + x),
    (6, "the sign of {} stands for it", np.sign),
    (6, "{} is clipped at 0", lambda x: np.maximum(x, 0)),
)
_MASKS: Sequence[Form] = (
    (5, "{} is not applied", np.ones_like),
    (5, "{} is inverted", np.logical_not),
    (6, "{} is false everywhere", np.zeros_like),
)
_MATRICES: Sequence[Form] = (
    (5, "{} is transposed", lambda x: np.swapaxes(x, -1, -2)),
    (6, "{} is read in column order", lambda x: x.reshape(x.shape[::-1]).T),
    (6, "{} is its transpose, read in rows", lambda x: x.T.reshape(x.shape)),
)
_Along = tuple[tuple[float, str, Callable[[Array, Any], Array]], ...]
#: Along an axis or of all: of masks, too, or of numbers alone.
_MOVES: _Along = (
    (5.5, "{} is reversed", np.flip),
    (6, "{} is shifted by one", lambda x, i: np.roll(x, 1, i)),
    (6, "{} is shifted back by one", lambda x, i: np.roll(x, -1, i)),
)
_MEANS: _Along = (
    (6, "the mean of {} stands for it", _along(np.mean)),
    (6, "the sum of {} stands for it", _along(np.sum)),
)
#: Along an axis alone, likewise.
_STEPS: _Along = (
    (6.5, "{} is shifted, its first kept", lambda x, i: _taken(x, i, -1, 1)),
    (6.5, "{} is shifted, its last kept", lambda x, i: _taken(x, i, 1, 1)),
)
_TERMS: _Along = (
    (6, "the last of {} is left out", lambda x, i: _without(x, i, -1)),
    (6, "the first of {} is left out", lambda x, i: _without(x, i, 0)),
    (6, "the first of {} stands for all", lambda x, i: _taken(x, i, 0, 0)),
    (6, "the last of {} stands for all", lambda x, i: _taken(x, i, x.size, 0)),
    (6, "the first of {} is alone", lambda x, i: x - _without(x, i, 0)),
)


def forms(x: Array, digits: int) -> Iterator[Form]:
    """What may stand for a value, computed from it alone, in so many digits."""
    number = x.dtype.kind != "b"
    yield from (*_VALUES, *_roundings(digits)) if number else _MASKS
    if x.ndim > 1:
        yield from _MATRICES[x.shape[-1] != x.shape[-2] :]
    if x.ndim > 2:
        turn = "{} is turned about in its last two axes"
        yield 5, turn, lambda x: np.flip(x, (-2, -1))
    everywhere = _MOVES + _MEANS * number
    for axis in (None, *range(x.ndim)):
        rows = everywhere if axis is None else everywhere + _STEPS + _TERMS * number
        for rank, text, form in rows if x.size > 1 else ():
            if axis is None or x.shape[axis] > 1:
                at = text if axis is None else f"{text} along axis {axis}"
                yield rank, at, partial(lambda f, i, x: f(x, i), form, axis)


def _roundings(digits: int) -> Iterator[Form]:
    tf32 = replace(PRECISIONS["bfloat16"], digits=11)
    for name, precision in {**PRECISIONS, "TF32": tf32}.items():
        if precision.digits < digits:
            text, rounding = f"{{}} is rounded to {name}", precision.round
            yield 6 + (precision is tf32), text, rounding
            yield 7, f"1 / {text}", partial(lambda f, x: 1 / f(1 / x), rounding)


def by(how: Callable[..., Any], *nodes: Node) -> Make:
    """What is computed of some nodes."""
    return lambda at: np.asarray(how(*map(at, nodes)))


def stand_ins(
    put: Callable[[Make], tuple[Edits, Edits]],
    about: tuple[Node, ...],
    digits: int,
    others: Sequence[Node] = (),
    text: str = "",
    rank: float = 0,
    read: Make | None = None,
) -> Iterator[Edit]:
    """Other forms of a value, and other values, where `put` has them stand.

    `about` is where, and the value; the text says where, and without one the value is
    named as a term. It is read there, unless another `read` is given.
    """
    value, name = about[-1], "{0}" if text else "{term}"
    given = read or by(np.asarray, value)
    for cost, said, form in forms(value.value, digits):
        made = put(partial(lambda f, at: np.asarray(f(given(at))), form))
        yield Edit(cost + rank, text + said.format(name), about, *made)
    for other in others if value.dtype.kind == "f" else ():
        cost, said = 4 + (other.primitive is not None), f"{text}{{1}} stands for {name}"
        made = put(by(np.asarray, other))
        yield Edit(cost + rank, said, (*about, other), *made)


def _there(node: Node, make: Make) -> tuple[Edits, Edits]:
    return {node: make}, {}


def _operand(node: Node, place: int, other: Make) -> tuple[Edits, Edits]:
    """A node whose operand is another."""

    def make(at: At) -> Array:
        arrays = [other(at) if i == place else at(n) for i, n in enumerate(node.inputs)]
        return graph.computed(node, arrays)

    return {node: make}, {}


# Of one node ------------------------------------------------------------------------


def local(sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Every edit of one node that depends on a cotangent, from cheap to dear."""
    for node in sweep.ends:
        yield from _terms(node, sweep, digits, by(np.asarray, *node.inputs), -3)
    for node in [n for n in sweep.flowing if n not in sweep.ends]:
        yield from _terms(node, sweep, digits, partial(itself, node), 0)
        yield from _sums(node, sweep)
        yield from _copies(node)
        yield from _operands(node, sweep, digits)


def _terms(
    node: Node, sweep: Sweep, digits: int, read: Make, rank: int
) -> Iterator[Edit]:
    """Edits of what flows; of a gradient that comes out, which rank first."""
    yield Edit(1 if rank else 3, "{term} is", (node,), {node: read}, plain=True)
    for other in near(node, sweep, wider=True) if not rank else ():
        for cost, how, words in (
            (5, np.multiply, "multiplied"),
            (4.5, np.divide, "divided"),
        ):
            made = partial(lambda f, o, at: f(read(at), at(o)), how, other)
            text = f"{{term}} is {words} by {{0}}"
            yield Edit(cost, text, (node, other), {node: made})
    given = node in sweep.cotangents
    alike = [*sweep.ends] if rank else [*sweep.cotangents] * given + near(node, sweep)
    alike = [n for n in alike if n.shape == node.shape and n is not node]
    put, rank = partial(_there, node), rank - given
    yield from stand_ins(put, (node, node), digits, alike, "", rank, read)


def _sums(node: Node, sweep: Sweep) -> Iterator[Edit]:
    """One copy for a sum; other axes, up to where it is copied again."""
    name = node.primitive.name if node.primitive else ""
    if name not in ("sum", "sum_to") or node.size == node.inputs[0].size:
        return
    (source,), chain = node.inputs, [node]
    axes = summed_axes(node, source.shape)
    one = {0: "the first copy stands for the sum"}
    one[-1] = "the last copy overwrites the others"
    for place, words in one.items():
        text = f"in the sum of {{term}}, {words}"
        at = tuple(place if i in axes else slice(None) for i in range(source.ndim))
        copy = by(partial(lambda i, x: x[i].reshape(node.shape), at), source)
        yield Edit(4, text, (source,), {node: copy})
    while len(users := _users(chain[-1], sweep.flowing)) == 1:
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
            new = {node: (at(source) * factor).sum(axis, keepdims=True) / factor}
            for one in chain[1 : k + 1]:
                new[one] = itself(one, lambda n: new[n] if n in new else at(n))
            return np.broadcast_to(new[chain[k]], chain[k].shape)

        which = "all axes" if axis is None else f"axis {axis}"
        text = f"{{term}} is summed along {which} instead"
        yield Edit(5, text, (source,), {chain[k]: made})


def _users(node: Node, among: Sequence[Node]) -> list[Node]:
    return [n for n in among if any(source is node for source in n.inputs)]


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
        yield Edit(4, text, (source,), {node: written})


def _operands(node: Node, sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Another form of a saved value, or a step that is left out."""
    for i, source in enumerate(node.inputs):
        if source not in sweep.flows:
            alike = near(source, sweep)
            if source.shape != node.shape:
                alike += near(node, sweep)
            put, about = partial(_operand, node, i), (node, source)
            yield from stand_ins(put, about, digits, alike, "in {rule}, ")
        elif source.shape == node.shape and node.primitive:
            text = f"{node.primitive.name} is left out after {{term}}"
            yield Edit(5, text, (source,), {node: by(np.asarray, source)})


def near(source: Node, sweep: Sweep, *, wider: bool = False) -> list[Node]:
    """Saved values of a shape, or that could be copied to it.

    Inputs and outputs come first, then what is near in the graph.
    """

    def fits(n: Node) -> bool:
        named = n.primitive is not None or n in sweep.known
        if n is source or n in sweep.flows or not named or n.dtype != source.dtype:
            return False
        if not wider or n.ndim > source.ndim or not n.ndim:
            return n.shape == source.shape
        pairs = zip(n.shape[::-1], source.shape[::-1], strict=False)
        return all(a in (1, b) for a, b in pairs)

    def far(n: Node) -> tuple[bool, int]:
        return n not in sweep.known, abs(sweep.place[n] - sweep.place[source])

    return sorted(filter(fits, sweep.order), key=far)[:NEAREST]


# Of many nodes ----------------------------------------------------------------------


def constants(sweep: Sweep) -> Iterator[tuple[float, Callable[[float], Edit]]]:
    """Numbers in the formula, and others in their place, or in the forward alone."""
    for node in sweep.order:
        leaf = node.primitive is None and node.size == 1 and node.dtype.kind == "f"
        if leaf and node not in sweep.known and node not in sweep.flows:
            old = float(node.value.reshape(-1)[0])
            for alone in (False, True) if node in sweep.forward else (False,):
                yield old, partial(_constant, node, sweep, alone)


def _constant(node: Node, sweep: Sweep, alone: bool, new: float) -> Edit:
    user = next(iter(_users(node, sweep.order)), node)
    text = f"{new:.9g} stands for {{0}} in {{1}}"
    rank = 4 + alone + 2.5 * (len(f"{new!r}") > 8)
    edits: Edits = {node: lambda at: np.full_like(node.value, new)}
    kept = {node: lambda at: node.value} if alone else {}
    return Edit(rank, text, (user, node, user), edits, kept)


#: What may be computed in place of an operation, and other attributes of one.
_PAIRS = {"add": "subtract", "multiply": "divide", "sin": "cos", "tanh": "sigmoid"}
_PAIRS |= {other: name for name, other in _PAIRS.items()}
_ATTRIBUTES: Mapping[str, Sequence[Any]] = {
    "how": ("less", "less_equal", "greater", "greater_equal"),
    "at_tie": (0.0, 0.5, 1.0),
    "axis": range(4),
}


def otherwise(sweep: Sweep) -> Iterator[Edit]:
    """Other operations, attributes and orders, in both sweeps or the backward."""
    for node in sweep.order:
        if (step := node.primitive) is None:
            continue
        hows = dict[str, Make]()
        if other := _PAIRS.get(step.name):
            how = graph.PRIMITIVES[other].compute
            hows[f"{other} stands for {step.name}"] = by(how, *node.inputs)
        for name in _ATTRIBUTES.keys() & node.attributes.keys():
            old = node.attributes[name]
            for new in _ATTRIBUTES[name]:
                said = f"{name} {new} stands for {old}".removeprefix("how ")
                if new != old:
                    how = partial(step.compute, **{**node.attributes, name: new})
                    hows[said] = by(how, *node.inputs)
        under = node.inputs[0].primitive
        if step.elementwise and under and len(node.inputs[0].inputs) == 2:
            said = f"{under.name} comes after {step.name}, not before,"
            first = partial(lambda f, g, a, b: g(f(a), b), step.compute, under.compute)
            hows[said] = by(first, *node.inputs[0].inputs)
        for said, make in hows.items():
            text, made = f"{said} in {{0}}", {node: make}
            yield Edit(6, text, (node, node), made)
            if node not in sweep.flows:
                yield Edit(5.5, f"the backward has {text}", (node, node), {}, made)


def broad(sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Edits of saved values wherever they are used, and of what they are made of."""
    leaves = [*sweep.inputs.values()]
    for rank, text, form in _roundings(digits):
        made = {n: by(form, n) for n in leaves if n.dtype.kind == "f"}
        if leaves and rank < 7:
            text = text.format("what is saved of the inputs")
            yield Edit(5, text, (leaves[0],), made)
    for node in sweep.order:
        named = node.primitive is not None or node in sweep.known or node.size > 1
        if named and node not in sweep.flows and node.value.dtype.kind in "fb":
            alike, put, about = (
                near(node, sweep)[:8],
                partial(_there, node),
                (node, node),
            )
            if node.primitive is None:
                text = "in all that the backward uses, "
                yield from stand_ins(put, about, digits, (), text, 1)
                continue
            for edit in stand_ins(put, about, digits, alike, "in the backward, ", 1):
                yield replace(edit, edits={}, saved=edit.edits)
            if node in sweep.forward:
                text = "where the backward computes it again, "
                yield from stand_ins(put, about, 0, alike, text, 1.5)
