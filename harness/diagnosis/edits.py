"""The list of mistakes: edits of a backward that replace a right value.

Each edit changes a value of the gradient's graph. Where several explain the same
numbers, the rank says how plausible each is: less is better.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gradwatch.harness.diagnosis.sweep import Array, Edit, Sweep
from gradwatch.harness.judging.precisions import PRECISIONS, Precision
from gradwatch.impls import graph
from gradwatch.impls.graph import Node
from gradwatch.impls.graph.expressions import NUMBERS, factored, region_of, written
from gradwatch.impls.graph.forms import CURVES, Form, counts, formed, forms, part_is
from gradwatch.impls.graph.rewriting import At, Make, again

NEAREST = 24  # values that are tried in place of another, nearest in the graph first
_COMPARISONS = ("less", "less_equal", "greater", "greater_equal")
LAST = 9  # the rank of an explanation that is given only where no other is found


# Replacements of a value ------------------------------------------------------------


def _roundings(digits: int) -> Iterator[Form]:
    tf32 = Precision("bfloat16", 11, -126, 128)  # its name: NumPy has neither
    for name, precision in {**PRECISIONS, "TF32": tf32}.items():
        if precision.digits < digits:
            text, rounding = f"{{}} is rounded to {name}", precision.round
            yield 6 + (precision is tf32), text, rounding
            yield 7, f"1 / {text}", partial(lambda f, x: 1 / f(1 / x), rounding)


def by(how: Callable[..., Any], *nodes: Node) -> Make:
    """An edit's value as a function of the values of some nodes."""

    def made(at: At) -> Any:
        given = [at(node) for node in nodes]
        if isinstance(given[0], Node):
            return formed(how, *given)
        return np.asarray(how(*map(np.asarray, given)))

    return made


def stand_ins(
    node: Node, place: int | None, digits: int, others: list[Node], name: str = "{0}"
) -> Iterator[Edit]:
    """Edits that replace a node, or its operand at a place, by a form or a value."""
    value = node if place is None else node.inputs[place]
    about, where = (node, value), "" if place is None else "in {rule}, "

    def put(form: Callable[[Array], Array], source: Node) -> dict[Node, Make]:
        def made(new: Array, *old: Array) -> Array:
            new = np.asarray(form(new))
            return graph.computed(
                node, [new if i == place else a for i, a in enumerate(old)]
            )

        if place is None:
            return {node: by(form, source)}
        return {node: by(made, source, *node.inputs)}

    narrow = _roundings(digits) if value.dtype.kind == "f" else ()
    for cost, said, form in (*forms(value.value), *counts(value), *narrow):
        yield Edit(cost, where + said.format(name), about, put(form, value))
    copied = partial(np.broadcast_to, shape=value.shape)
    for other in others if value.dtype.kind == "f" else ():
        cost, said = 4 + (other.primitive is not None), f"{{1}} stands for {name}"
        yield Edit(cost, where + said, (*about, other), put(copied, other))


# Of one node ------------------------------------------------------------------------


def local(node: Node, sweep: Sweep, digits: int) -> Iterator[Edit]:
    """The edits of one node that depends on a cotangent."""
    end, given = node in sweep.ends, node in sweep.cotangents
    inner = sweep.made.get(node, (node, 0))[1] is None  # words fit its rule's end best
    whole, least = {node: by(np.asarray, node)}, 2 - 2 * end + 0.1 * inner
    yield Edit(least, "{term} is", (node,), whole, plain=True)
    numbers = NUMBERS | {0.0: "zero everywhere"} if end else NUMBERS
    for factor, said in numbers.items():
        made = {node: by(partial(np.multiply, factor), node)}
        yield Edit(least - 0.05 * (not factor), f"{{term}} is {said}", (node,), made)
    others = [] if end else near(node, sweep)
    alike = [*others, *(sweep.ends if end else sweep.cotangents if given else ())]
    for edit in stand_ins(node, None, digits, alike, "{term}"):
        yield replace(edit, rank=edit.rank - 3 * end - given)
    for other, (cost, how, words) in itertools.product(others, _BY):
        text = f"{{term}} is {words} by {{0}}"
        yield Edit(cost, text, (node, other), {node: by(how, node, other)})
    yield from () if end else of_rule(node, sweep)
    for i, source in enumerate(node.inputs):
        if source not in sweep.flows:
            alike = near(source, sweep)
            alike += near(node, sweep) if source.shape != node.shape else []
            yield from stand_ins(node, i, digits, alike)
        elif source.shape == node.shape and node.primitive and not end:
            text = f"{node.primitive.name} is left out after {{term}}"
            yield Edit(5, text, (source,), {node: by(np.asarray, source)})


def of_rule(node: Node, sweep: Sweep) -> Iterator[Edit]:
    """Edit of a whole rule that is not transposed."""
    rule, i = sweep.made.get(node, (node, None))
    dy = sweep.passed[rule] if i is not None else node
    if i is not None and dy.shape == rule.inputs[i].shape == node.shape:
        given = [dy if j == i else n for j, n in enumerate(rule.inputs)]
        ahead = by(lambda *values: graph.computed(rule, [*values]), *given)
        text = "{term} is that step applied once more, and not transposed"
        yield Edit(4.5, text, (node,), {node: ahead})


_INVERSE = {"add": "subtract", "subtract": "add"}
_BY = ((5, np.multiply, "multiplied"), (4.5, np.divide, "divided"))


def repeated(sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Edits that are the same at all copies of a step (a loop's), one of them near."""
    some, groups = {*sweep.near}, defaultdict[Any, list[Node]](list)
    for node in sweep.flowing:
        rule, i = sweep.made.get(node, (node, None))
        of = rule.primitive, sweep.record.places.get(rule), i
        for given in (tuple(n.primitive for n in rule.inputs), ()):
            groups[node.primitive, node.shape, of, given].append(node)
    for copies in dict.fromkeys(tuple(g) for g in groups.values() if some & {*g}):
        rows = [defaultdict[Any, list[Edit]](list) for _ in copies]
        for row, node in zip(rows, copies, strict=True):
            for edit in local(node, sweep, digits):
                later = sweep.place[edit.about[-1]] > sweep.place[edit.about[-2:][0]]
                row[edit.text, later].append(edit)
        for alike in rows[0]:
            yield from _in_each([row[alike] for row in rows])


def _in_each(rows: Sequence[Sequence[Edit]]) -> Iterator[Edit]:
    """An edit of the first copy of a step, made at all of them."""
    for first, *more in zip(*rows, strict=False) if len(rows) > 1 else ():
        text = f"{first.text}, in each of {len(rows)} copies"
        edits = {n: m for e in (first, *more) for n, m in e.edits.items()}
        yield replace(first, rank=first.rank + 1, text=text, edits=edits)


def near(source: Node, sweep: Sweep) -> list[Node]:
    """Saved values that broadcast to the shape of a node.

    Inputs and outputs come first, then values near in the graph.
    """

    def fits(n: Node) -> bool:
        saved = n not in sweep.flows and (n.primitive is not None or n in sweep.known)
        pairs = zip(n.shape[::-1], source.shape[::-1], strict=False)
        copied = min(1, source.ndim) <= n.ndim <= source.ndim
        copied = copied and all(a in (1, b) for a, b in pairs)
        return saved and copied and n is not source and n.dtype == source.dtype

    def far(n: Node) -> tuple[bool, bool, int]:
        distance = abs(sweep.place[n] - sweep.place[source])
        return n.shape != source.shape, n not in sweep.known, distance

    return sorted(filter(fits, sweep.order), key=far)[:NEAREST]


def lost(node: Node, along: Array, error: Array) -> Iterator[tuple[float, Edit]]:
    """Edits that leave out some slices in a row, or count them twice, as of a block.

    Each comes with what it leaves of the error in projections, the sums of `along`.
    """
    from scipy.spatial import KDTree  # takes as long to import as all of the judge

    axes = ((i, n) for i, n in enumerate(node.shape) if n <= 1 << 13)  # each with each
    for axis, n in axes if np.isfinite(along).all() else ():
        rest = tuple(i + 1 for i in range(node.ndim) if i != axis)
        parts = along.reshape(-1, *node.shape).sum(rest)
        sums = np.cumsum(np.c_[0 * error, parts], 1).T
        off, at = KDTree(sums).query(sums - error, p=np.inf)
        one, other = int(off.argmin()), int(at[off.argmin()])
        if 0 < abs(one - other) < n:
            kept = np.ones((n, *[1] * (node.ndim - axis - 1)))
            kept[min(one, other) : max(one, other)] = 0 if one < other else 2
            how = "left out" if one < other else "counted twice"
            where = region_of(np.broadcast_to(kept != 1, node.shape))[1]
            made = {node: by(partial(np.multiply, kept), node)}
            yield off.min(), Edit(LAST, part_is(where, how), (node,), made)


# Of many nodes ----------------------------------------------------------------------


def constants(
    sweep: Sweep, whole: bool
) -> Iterator[tuple[float, Callable[[float], Edit]]]:
    """Numbers in the formula, each with its edit as a function of another number.

    It is an edit of the `whole` function, or of what the clean nodes compute again.
    Equal numbers change together, and with them 1 minus the number, as in a momentum.
    A number that is computed from others, such as sqrt(2 / pi), stands for these.
    """
    given, fixed = sweep.known | sweep.flows, set[Node]()
    read = dict[Node, None]()
    for node in sweep.order:
        alone = node.size == 1 and node.dtype.kind == "f" and node not in given
        if alone and fixed.issuperset(node.inputs):
            fixed.add(node)
        else:
            read |= dict.fromkeys(n for n in node.inputs if n in fixed)
    nodes = sorted(read, key=sweep.far.__getitem__)
    numbers = {n: float(n.value.reshape(-1)[0]) for n in nodes}
    for node, old in numbers.items():
        alike = {n: v == old for n, v in numbers.items() if v == old or v + old == 1}
        yield old, partial(_constant, sweep, whole, {node: True})
        if len(alike) > 1 and node is next(iter(alike)):
            yield old, partial(_constant, sweep, whole, alike)


def _constant(sweep: Sweep, whole: bool, like: Mapping[Node, bool], new: float) -> Edit:
    node = next(iter(like))
    user = next((n for n in sweep.order if {node} & {*n.inputs}), node)
    rest = "" if all(like.values()) else f" and {1 - new:.9g} for 1 - {{0}}"
    text = f"{new:.9g} stands for {{0}}{rest} in {{1}}"
    rank = 4 + 0.5 * (len(like) > 1) + 3.1 * (float(f"{new:.3g}") != new)
    rank += 4 * bool(new * node.value < 0)  # nobody writes an eps of -0.12
    values = {n: new if same else 1 - new for n, same in like.items()}
    made = {n: by(partial(np.full_like, fill_value=v), n) for n, v in values.items()}
    edits = made if whole else sweep.read(made, again=True)
    return Edit(rank, text, (user, node, user), edits)


def broad(sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Edits of a value wherever the backward reads it, and where it recomputes it.

    Also of the side of a comparison, and of sums of values that depend on a cotangent.
    """
    leaves = [n for n in sweep.inputs.values() if n.dtype.kind == "f"]
    for _, text, form in _roundings(digits) if leaves else ():
        said = text.format("what is saved of the inputs")
        yield Edit(5, said, (leaves[0],), {n: by(form, n) for n in leaves})
    for node in sorted(sweep.order, key=sweep.far.__getitem__):
        if node in sweep.flows:
            for text, make in _sums(node, sweep):
                yield Edit(4.5, text, node.inputs[:1], {node: make})
            continue
        where = "where the backward computes it again, "
        where = where if node.primitive else "in all that the backward uses, "
        for edit in of_value(node, sweep, digits):
            edit = replace(edit, rank=edit.rank + 1)
            read, text = sweep.read(edit.edits), edit.text.removeprefix("in {rule}, ")
            rules = defaultdict[Node, dict[Node, Make]](dict)
            for user, make in read.items():
                rules[sweep.made.get(user, (user, 0))[0]][user] = make
            for some in rules.values():
                said = f"in {{rule}}, {text}"
                about = next(iter(some)), *edit.about[1:]
                yield replace(edit, text=said, about=about, edits=some)
            if len(rules) > 1:
                yield replace(edit, text=f"in the backward, {text}", edits=read)
            if node in sweep.forward and "rounded" not in text:
                edit = replace(edit, rank=edit.rank + 0.5, text=where + text)
                yield replace(edit, edits=sweep.read(edit.edits, again=True))


def of_value(node: Node, sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Edits of a value that depends on no cotangent."""
    step = node.primitive
    for side in _COMPARISONS if "how" in node.attributes else ():
        assert step is not None
        text = f"{side} stands for {node.attributes['how']} in {{0}}"
        made = by(partial(step.compute, how=side), *node.inputs)
        yield Edit(5.5, text, (node, node), {node: made})
    yield from exchanged(node)
    if node.value.dtype.kind in "fb":
        saved = [n for n in near(node, sweep) if n in sweep.forward][:8]
        yield from stand_ins(node, None, digits, saved)
    if step is None or node in sweep.forward:
        return
    for place, source in enumerate(node.inputs):  # of a rule's own step
        yield from stand_ins(node, place, digits, near(source, sweep)[:8])
    if other := _INVERSE.get(step.name):
        made = by(graph.PRIMITIVES[other].compute, *node.inputs)
        text = f"in {{rule}}, {other} stands for {step.name}"
        yield Edit(5, text, (node,), {node: made})


def functions(sweep: Sweep, digits: int) -> Iterator[Edit]:
    """Edits of the function itself, likely ones first."""
    steps = [n for n in sweep.steps if n in sweep.forward and n.dtype.kind in "fb"]
    yield from _axes(steps)
    for one, other in itertools.combinations(sweep.leaves, 2):
        if one.shape == other.shape and one.dtype == other.dtype:
            both = {one: by(np.asarray, other), other: by(np.asarray, one)}
            yield Edit(3, "{0} and {1} are exchanged", (one, one, other), both)
    yield from itertools.chain.from_iterable(_others(n, sweep) for n in steps)
    found, groups = dict[Node, list[Edit]](), defaultdict[Any, list[Node]](list)
    for node in steps:
        groups[node.primitive, node.shape, sweep.record.places.get(node)].append(node)
        found[node] = [*of_value(node, sweep, digits)]
        number = 0.5 * (node.size == 1)  # which is said with the step that reads it
        yield from (replace(edit, rank=edit.rank + number) for edit in found[node])
    for copies in groups.values():
        yield from _in_each([found[node] for node in copies])


def _axes(steps: Sequence[Node]) -> Iterator[Edit]:
    """Sums and maxima along another axis, all that have one axis together."""
    groups = defaultdict[Any, list[Node]](list)
    for node in steps:
        axis, n = node.attributes.get("axis"), node.inputs[0].ndim if node.inputs else 0
        axis = axis[0] if isinstance(axis, tuple) and len(axis) == 1 else axis
        if isinstance(axis, int) and n > 1:
            groups[axis % n, node.inputs[0].shape].append(node)
    for (axis, shape), nodes in groups.items():
        others = (i for i in range(len(shape)) if i != axis)
        for other, mean in itertools.product(others, (False, True)):
            text = f"axis {other} stands for axis {axis} from {{0}} on"
            text += ", where means are taken" if mean else ""
            part = shape[axis] / shape[other] if mean else 1.0
            edits = {n: partial(_turned, n, other, part) for n in nodes}
            yield Edit(3, text, (nodes[0], nodes[0]), edits)


def _turned(node: Node, axis: int, part: float, at: At) -> Any:
    """A reduction along another axis; a sum times a factor."""
    along = (axis,) if isinstance(node.attributes["axis"], tuple) else axis
    made = again(node, [at(n) for n in node.inputs], axis=along)
    return made * part if node.primitive is graph.PRIMITIVES["sum"] else made


def _others(node: Node, sweep: Sweep) -> Iterator[Edit]:
    """Another step for one such as tanh, or a reshape for a transpose."""
    name = node.primitive.name if node.primitive else ""
    if name == "permute_dims":
        text = "in {0}, elements are reshaped, and not transposed"
        read = partial(np.reshape, shape=node.shape)
        yield Edit(5, text, (node, node), {node: by(read, node.inputs[0])})
    saved = [n for n in near(node, sweep) if n in sweep.forward][:8]
    for value in (*node.inputs, *saved) if name in CURVES else ():
        for text, form in CURVES.items() if value.shape == node.shape else ():
            rank, said = 5.8 - 0.1 * ("of" in text), f"{text} of {{1}} stands for {{0}}"
            yield Edit(rank, said, (node, node, value), {node: by(form, value)})


def exchanged(node: Node) -> Iterator[Edit]:
    """Edits that take a step before the one it follows, as sqrt(x) + eps."""

    def swapped(before: Node, x: Node, at: At) -> Any:
        first = [at(x if n is before else n) for n in node.inputs]
        rest = (again(node, first) if n is x else at(n) for n in before.inputs)
        return again(before, [*rest])

    for before, x in ((n, x) for n in node.inputs for x in n.inputs):
        outer, inner = node.primitive, before.primitive
        if outer and inner and node.shape == before.shape == x.shape:
            text = f"{outer.name} comes before {inner.name} in {{0}}"
            yield Edit(5.5, text, (node, node), {node: partial(swapped, before, x)})


def _sums(node: Node, sweep: Sweep) -> Iterator[tuple[str, Make]]:
    """Replacements of a sum: a mean, or a sum along other axes."""
    if node.primitive is None:
        return
    name, x = node.primitive.name, node.inputs[0]
    if name == "scatter_add":
        last = partial(_written, node)
        yield "equal indices overwrite {term}, and do not add it up", by(last, x)
        count = np.maximum(1, graph.computed(node, [np.ones(x.shape)]))
        text = "{term} is averaged at equal indices, and not added up"
        yield text, by(lambda v: graph.computed(node, [v]) / count, x)
    if name == "cumulative_sum":
        text = "each element of {term} is left out of the running sum at its place"
        yield text, by(lambda v: graph.computed(node, [v]) - v, x)
    if name not in ("sum", "sum_to"):
        return
    factors = ((), *((n,) for n in near(node, sweep)[:4]))
    for axis, mean, factor in itertools.product(
        (None, *range(x.ndim)), (False, True), factors
    ):
        how = "averaged" if mean else "summed"
        along = "all axes" if axis is None else f"axis {axis}"
        total = partial(_summed, axis, node.size if mean else None)
        yield f"{{term}} is {how} along {along} instead", by(total, x, *factor)


def _summed(axis: int | None, size: int | None, x: Array, factor: Any = 1.0) -> Array:
    """The sum or mean along an axis of x times a factor, divided by the factor."""
    total = np.sum(x * factor, axis=axis, keepdims=True)
    return np.asarray(total / factor * (total.size / size if size else 1))


def _written(node: Node, source: Array) -> Array:
    """A scatter whose values, but for zeros, overwrite each other; the last is -1."""
    ahead = node.attributes.get("batch", 0)
    rows, size = math.prod(node.shape[:ahead]), math.prod(node.shape[ahead:])
    at = np.where(source != 0, node.attributes["index"], -1).reshape(rows, -1)
    out = np.zeros((rows, size + 1), node.dtype)
    out[np.arange(rows)[:, None], at] = source.reshape(rows, -1)
    return out[:, :-1].reshape(node.shape)


# Of a part of a tensor, and how its elements differ from others ----------------------


def regions(sweep: Sweep, name: str, got: Array, room: Array) -> Iterator[Edit]:
    """Edits of a part of a tensor that came back as `got`, with tolerance `room`."""
    node = sweep.tensors[name]
    value = sweep.values[node]
    bad = ~(np.abs(got - value) <= room)
    if sweep.parts and not 1 < got.ndim == sum(got.shape[:-1]) + 1:
        return  # positions in several rows are not those of the whole tensor
    parts = list[tuple[float, str, Callable[[Array], Array]]]()
    region, where = region_of(bad, alone=not sweep.parts)
    if where and not np.isfinite(got[region]).any():
        words = part_is(where, "not finite")
        parts.append((1, words, lambda x: np.where(region, got, x)))
    # A part that alone is wrong may be its right values times a factor.
    ratios = got[region] / value[region] if where else np.empty(0)
    finite = ratios[np.isfinite(ratios)]
    factor = float(np.median(finite)) if finite.size else np.nan
    plain = written(factor, (), 1e-3)
    if plain or (np.isfinite(factor) and ratios.size > 2 and "slices" not in where):
        factor, said = (plain or [(factor, f"multiplied by {factored(factor)}")])[0]
        words = part_is(where, said if factor else "zero")
        rank = LAST if "slices" in where else 1 if plain else 7.5
        if not (np.abs(got - factor * value) <= room).all():  # zeros are no other part
            parts.append((rank, words, lambda x: np.where(region, factor * x, x)))
    size, here = np.abs(value), np.abs(got[bad])
    top = float(here.max(initial=0))
    brief = len(f"{top:.9g}") <= 4
    clipped = top > 0 and here.min() == top and bool((size[bad] > top).all())
    if clipped and (brief or got[~bad].any()):
        words = f"{{term}} is clipped to [-{top:.9g}, {top:.9g}]"
        parts.append((3 if brief else 7.5, words, lambda x: np.clip(x, -top, top)))
    apart = got - value
    added = float(f"{float(np.median(apart)) if apart.size > 2 else 0:.2g}")
    if added and (np.abs(apart - added) <= room).all():
        parts.append((3, f"{added:g} is added to {{term}}", lambda x: x + added))
    for rank, words, of in parts:
        yield Edit(rank, words, (node,), {node: by(of, *node.inputs)})
