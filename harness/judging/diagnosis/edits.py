"""The list of mistakes: what may stand in a backward in place of a right value.

Each row changes a value of the gradient's graph. Its rank says how readily a person
believes it, where several rows explain the same numbers: less is better.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from gradwatch.harness.judging.diagnosis.sweep import Array, At, Make, Sweep
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
#: What becomes of rows, or of all elements in a row: of masks, too, up to MOVES.
_ROWS: Sequence[Form] = (
    (5.5, "{} is reversed", lambda x: x[::-1]),
    (6, "{} is shifted by one", lambda x: np.roll(x, 1, 0)),
    (6, "{} is shifted back by one", lambda x: np.roll(x, -1, 0)),
    (6.5, "{} is shifted, its first kept", lambda x: np.r_[x[:1], x[:-1]]),
    (6.5, "{} is shifted, its last kept", lambda x: np.r_[x[1:], x[-1:]]),
    (6, "the mean of {} stands for it", lambda x: _alike(x.mean(0), x)),
    (6, "the sum of {} stands for it", lambda x: _alike(x.sum(0), x)),
    (6, "the last of {} is left out", lambda x: np.r_[x[:-1], 0 * x[-1:]]),
    (6, "the first of {} is left out", lambda x: np.r_[0 * x[:1], x[1:]]),
    (6, "the first of {} is alone", lambda x: np.r_[x[:1], 0 * x[1:]]),
    (7.5, "the first of {} stands for all", lambda x: _alike(x[0], x)),
    (7.5, "the last of {} stands for all", lambda x: _alike(x[-1], x)),
)
_MOVES = 5


def _alike(row: Array, rows: Array) -> Array:
    return np.broadcast_to(row, rows.shape)


def _along(axis: int | None, form: Callable[[Array], Array], x: Array) -> Array:
    if axis is None:
        return form(x.ravel()).reshape(x.shape)
    return np.moveaxis(form(np.moveaxis(x, axis, 0)), 0, axis)


def forms(x: Array, digits: int) -> Iterator[Form]:
    """What may stand for a value, computed from it alone, in so many digits."""
    number = x.dtype.kind != "b"
    yield from (*_VALUES, *_roundings(digits)) if number else _MASKS
    if x.ndim > 1:
        yield from _MATRICES[x.shape[-1] != x.shape[-2] :]
    if x.ndim > 2:
        turn = "{} is turned about in its last two axes"
        yield 5, turn, lambda x: np.flip(x, (-2, -1))
    for axis in (None, *(i for i, n in enumerate(x.shape) if 1 < n < x.size)):
        at = "" if axis is None else f" along axis {axis}"
        rows = (_ROWS if number else _ROWS[:_MOVES]) if x.size > 1 else ()
        for rank, text, form in rows:
            yield rank, text + at, partial(_along, axis, form)


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
    about: tuple[Node, Node],
    place: int | None,
    digits: int,
    others: Sequence[Node] = (),
    text: str = "",
    rank: float = 0,
) -> Iterator[Edit]:
    """Other forms of a value, and other values, in place of it.

    `about` is a node and the value: itself, or its operand of this place. The text says
    where, and without one the value is named as a term.
    """
    (node, value), name = about, "{0}" if text else "{term}"
    for cost, said, form in forms(value.value, digits):
        made = _put(node, place, by(form, value))
        yield Edit(cost + rank, text + said.format(name), about, made)
    copied = partial(np.broadcast_to, shape=value.shape)
    for other in others if value.dtype.kind == "f" else ():
        cost, said = 4 + (other.primitive is not None), f"{text}{{1}} stands for {name}"
        it = by(copied if other.size < value.size else np.asarray, other)
        yield Edit(cost + rank, said, (*about, other), _put(node, place, it))


def _put(node: Node, place: int | None, other: Make) -> Edits:
    def make(at: At) -> Array:
        arrays = [other(at) if i == place else at(n) for i, n in enumerate(node.inputs)]
        return graph.computed(node, arrays)

    return {node: other if place is None else make}


# Of one node ------------------------------------------------------------------------


def local(sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Every edit of one node that depends on a cotangent; first of what comes out."""
    for node in (*sweep.ends, *(n for n in sweep.flowing if n not in sweep.ends)):
        yield from _of(node, sweep, digits)


def _of(node: Node, sweep: Sweep, digits: int) -> Iterator[Edit]:
    end, given = node in sweep.ends, node in sweep.cotangents
    least, zero = (1, "zero everywhere") if end else (3, "left out")
    yield Edit(least, "{term} is", (node,), {node: by(np.asarray, node)}, plain=True)
    for cost, said, form in (
        (1.05, zero, np.zeros_like),
        (1, "counted twice", partial(np.multiply, 2)),
        (1, "given the wrong sign", np.negative),
    ):
        yield Edit(least - cost, f"{{term}} is {said}", (node,), {node: by(form, node)})
    others = [] if end else near(node, sweep)
    alike = [*others, *(sweep.ends if end else sweep.cotangents if given else ())]
    yield from stand_ins((node, node), None, digits, alike, "", -3 * end - given)
    for other, (cost, how, words) in itertools.product(others, _BY):
        text = f"{{term}} is {words} by {{0}}"
        yield Edit(cost, text, (node, other), {node: by(how, node, other)})
    if not end:
        yield from _sums(node, sweep)
    for i, source in enumerate(node.inputs):
        if source not in sweep.flows:
            alike = near(source, sweep)
            alike += near(node, sweep) if source.shape != node.shape else []
            yield from stand_ins((node, source), i, digits, alike, "in {rule}, ")
        elif source.shape == node.shape and node.primitive and not end:
            text = f"{node.primitive.name} is left out after {{term}}"
            yield Edit(5, text, (source,), {node: by(np.asarray, source)})


_BY = ((5, np.multiply, "multiplied"), (4.5, np.divide, "divided"))


def repeated(sweep: Sweep, digits: int) -> Iterator[Edit]:
    """The same edit at every copy of a step, as in a loop."""
    alike, made = defaultdict[Any, list[Node]](list), dict[Any, Any]()
    for y, dy, parts in sweep.record.rules:
        of = y.primitive, sweep.record.places.get(y)
        made |= {n: (of, i) for i, n in enumerate(parts) if n is not dy}
    for node in sweep.flowing:
        alike[node.primitive, node.shape, made.get(node)].append(node)
    for copies in alike.values():
        for same in zip(*(_of(n, sweep, digits) for n in copies), strict=False):
            first, *more = same
            if more and not first.plain and all(one.text == first.text for one in more):
                text = f"{first.text}, in each of {len(same)} copies"
                edits = {n: make for one in same for n, make in one.edits.items()}
                yield replace(first, rank=first.rank + 1, text=text, edits=edits)


def _sums(node: Node, sweep: Sweep) -> Iterator[Edit]:
    """One copy for a sum; other axes, up to where it is copied again."""
    name = node.primitive.name if node.primitive else ""
    if name == "scatter_add":
        text = "equal indices overwrite {term}, and do not add it up"
        copy = partial(_written, node.attributes["index"], node)
        yield Edit(4, text, node.inputs, {node: by(copy, *node.inputs)})
    if name not in ("sum", "sum_to") or node.size == node.inputs[0].size:
        return
    (source,), chain, hows = node.inputs, [node], dict[str, Callable[[Array], Array]]()
    for place, words in ((0, "first copy stands for"), (-1, "last copy overwrites")):
        axes = summed_axes(node, source.shape)
        at = tuple(place if i in axes else slice(None) for i in range(source.ndim))
        copy = partial(lambda i, x: x[i].reshape(node.shape), at)
        hows[f"in the sum of {{term}}, the {words} all"] = copy
    for axis in (None, *range(source.ndim)):
        along = "all axes" if axis is None else f"axis {axis}"
        total = partial(np.sum, axis=axis, keepdims=True)
        hows[f"{{term}} is summed along {along} instead"] = total
    while len(users := _users(chain[-1], sweep.flowing)) == 1:
        chain += users
        if users[0].primitive and users[0].primitive.name == "broadcast_to":
            break
    held = (None, *near(node, sweep)[:4])
    rows = itertools.product(range(len(chain)), hows.items(), held)
    for k, (text, how), outside in rows:

        def made(at: At, k: int = k, how: Any = how, other: Any = outside) -> Array:
            # Inside or outside of the right sum it is the same.
            factor = 1.0 if other is None else at(other)
            new = {node: how(at(source) * factor) / factor}
            for one in chain[1 : k + 1]:
                inputs = [new[n] if n in new else at(n) for n in one.inputs]
                new[one] = graph.computed(one, inputs)
            return np.broadcast_to(new[chain[k]], chain[k].shape)

        yield Edit(4.5, text, (source,), {chain[k]: made})


def _written(index: Array, node: Node, source: Array) -> Array:
    """A scatter whose copies overwrite each other; the last place takes what is out."""
    out = np.zeros(node.size + 1, node.dtype)
    out[index] = source
    return out[:-1].reshape(node.shape)


def _users(node: Node, among: Sequence[Node]) -> list[Node]:
    return [n for n in among if any(source is node for source in n.inputs)]


def near(source: Node, sweep: Sweep) -> list[Node]:
    """Saved values of a shape, or that could be copied to it.

    Inputs and outputs come first, then what is near in the graph.
    """

    def fits(n: Node) -> bool:
        named = n is not source and (n.primitive is not None or n in sweep.known)
        if not named or n in sweep.flows or n.dtype != source.dtype:
            return False
        pairs = zip(n.shape[::-1], source.shape[::-1], strict=False)
        copied = 0 < n.ndim <= source.ndim and all(a in (1, b) for a, b in pairs)
        return copied or n.shape == source.shape

    def far(n: Node) -> tuple[bool, bool, int]:
        distance = abs(sweep.place[n] - sweep.place[source])
        return n.shape != source.shape, n not in sweep.known, distance

    return sorted(filter(fits, sweep.order), key=far)[:NEAREST]


# Of many nodes ----------------------------------------------------------------------


def constants(sweep: Sweep) -> Iterator[tuple[float, Callable[[float], Edit]]]:
    """Numbers in the formula, and others in their place, or in the forward alone.

    Equal ones become others together, and what is 1 less them, as momenta are.
    """
    leaves = (n for n in sweep.order if n.primitive is None and n.size == 1)
    given = sweep.known | sweep.flows
    floats = (n for n in leaves if n.dtype.kind == "f" and n not in given)
    numbers = {n: float(n.value.reshape(-1)[0]) for n in floats}
    for node, old in numbers.items():
        alike = {n: v == old for n, v in numbers.items() if v == old or v + old == 1}
        user = next(iter(_users(node, sweep.order)), node)
        for alone in (False, True) if node in sweep.forward else (False,):
            yield old, partial(_constant, (user, node, user), {node: True}, alone)
        if len(alike) > 1 and node is next(iter(alike)):
            yield old, partial(_constant, (user, node, user), alike, False)


def _constant(
    about: tuple[Node, ...], alike: Mapping[Node, bool], alone: bool, new: float
) -> Edit:
    rest = "" if all(alike.values()) else f" and {1 - new:.9g} for 1 - {{0}}"
    text = f"{new:.9g} stands for {{0}}{rest} in {{1}}"
    rank = 4 + alone + 0.5 * (len(alike) > 1) + 2.5 * (len(f"{new!r}") > 8)
    values = {n: new if same else 1 - new for n, same in alike.items()}
    edits = {n: by(partial(np.full_like, fill_value=v), n) for n, v in values.items()}
    kept: Edits = {n: lambda at: about[1].value for n in alike if alone}
    return Edit(rank, text, about, edits, kept)


def broad(sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Other values wherever the backward reads one, and where it computes it again."""
    leaves = [n for n in sweep.inputs.values() if n.dtype.kind == "f"]
    for _, text, form in _roundings(digits) if leaves else ():
        said = text.format("what is saved of the inputs")
        yield Edit(5, said, (leaves[0],), {n: by(form, n) for n in leaves})
    for node in sweep.order:
        text = "" if node in sweep.flows else "in the backward, "
        found = [*_otherwise(node, text)]
        named = node.primitive is not None or node in sweep.known or node.size > 1
        if text and named and node.value.dtype.kind in "fb":
            alike = near(node, sweep)[:8] if node.primitive else []
            found += stand_ins((node, node), None, digits, alike, text, 1)
        again = "where the backward computes it again, "
        again = again if node.primitive else "in all that the backward uses, "
        for edit in found:
            if text:
                yield replace(edit, edits={}, saved=edit.edits)
            if (node in sweep.forward and "rounded" not in edit.text) or not text:
                said = edit.text.replace(text, again) if text else edit.text
                yield replace(edit, rank=edit.rank + 0.5, text=said)


#: What may be computed in place of an operation, and other attributes of one.
_PAIRS = {"add": "subtract", "multiply": "divide", "sin": "cos", "tanh": "sigmoid"}
_PAIRS |= {other: name for name, other in _PAIRS.items()}
_ATTRIBUTES: Mapping[str, Sequence[Any]] = {
    "how": ("less", "less_equal", "greater", "greater_equal"),
    "at_tie": (0.0, 0.5, 1.0),
    "axis": (None, 0, 1, 2, 3),
}


def _otherwise(node: Node, where: str) -> Iterator[Edit]:
    """Another operation, attribute or order of two operations."""
    if (step := node.primitive) is None:
        return
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
        yield Edit(5.5, f"{where}{said} in {{0}}", (node, node), {node: make})
