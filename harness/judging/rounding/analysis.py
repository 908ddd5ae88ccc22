"""How far rounding alone may move each value of a graph: running error analysis.

Every node gets a magnitude E beside its value v, counted in units of the unit roundoff
u of the precision under test: an honest implementation in that precision lands within
about u * E of v. E obeys one rule per primitive (`ERROR`), the gradient is a node like
any other, and so its tolerance is derived rather than chosen.

The judge allows a deviation of limit * u * E. That, and not one radius, is what a rule
takes a value to be uncertain by where it is not linear: in second-order terms, and
where it decides whether a denominator may vanish or a choice may turn around. A weight
that may turn is off by 1 at most, so its E is 1 / (limit * u). Rules add the smallest
normal number where a product or quotient may underflow. What may overflow is a matter
apart (excuses/overflow.py): E goes on as if the range had no end.

Source: Wilkinson's running error analysis; Higham, Accuracy and Stability of Numerical
Algorithms, 2nd ed., section 3.3; the bounds of single functions are mean-value bounds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from gradwatch.harness.judging.precisions import Arithmetic
from gradwatch.harness.judging.rounding.errors import (
    At,
    Error,
    Errors,
    Table,
    computed,
    copied,
    everywhere,
    largest,
    operation,
    zeros,
)
from gradwatch.harness.judging.rounding.rules import RULES
from gradwatch.impls.graph import Node


def running_errors(
    order: Sequence[Node],
    arithmetic: Arithmetic,
    limit: float,
    table: Table | None = None,
) -> Errors:
    """E of every node, in units of the unit roundoff; inputs come before their users.

    Leaves are exact where the format holds their value; a constant that it must round
    (4.3, an eps of 1e-5) counts one rounding. Rules in `table` go before `ERROR`'s.
    """
    rules = {**ERROR, **(table or {})}
    errors = Errors(arithmetic, limit, rules, {}, {}, shifts(order))
    with np.errstate(all="ignore"):
        for node in order:
            errors.sizes[node] = _size(node, errors.sizes)
            errors.errors[node] = _error(node, errors)
    return errors


def shifts(order: Sequence[Node]) -> frozenset[Node]:
    """Constants whose error cancels in the result: exact, whatever they are.

    A maximum that is subtracted before an exponential scales all terms of a sum alike,
    and is divided out or added back; hypot divides by its larger operand and multiplies
    by it. Every other constant has the error of what it was computed from.
    """
    constants = [n for n in order if operation(n) == "stop_gradient"]
    if not constants:
        return frozenset()
    users = defaultdict[Node, list[Node]](list)
    for node in order:
        for source in node.inputs:
            users[source].append(node)
    return frozenset(node for node in constants if _is_shift(node, users))


def _is_shift(node: Node, users: Mapping[Node, Sequence[Node]]) -> bool:
    source = unmoved(node.inputs[0])
    if operation(source) not in ("max", "maximum"):
        return False
    homogeneous = operation(source) == "maximum"
    return all(
        operation(user) in ("add", "compare", "logical")
        or (homogeneous and operation(user) in ("multiply", "divide"))
        or (
            operation(user) == "subtract"
            and any(operation(after) == "exp" for after in _uses(user, users))
        )
        for user in _uses(node, users)
    )


def _uses(node: Node, users: Mapping[Node, Sequence[Node]]) -> Iterator[Node]:
    """Nodes that compute with a node, or with a copy of it."""
    for user in users[node]:
        if operation(user) == "where" or ERROR[operation(user)] is copied:
            yield from _uses(user, users)
        else:
            yield user


def unmoved(node: Node) -> Node:
    """The node whose elements this one only moves or copies."""
    while moves(node):
        node = node.inputs[0]
    return node


def moves(node: Node) -> bool:
    """Whether each element is one of an input, moved or copied."""
    return node.primitive is not None and ERROR[node.primitive.name] is copied


def _difference(at: At) -> Error:
    """As a sum; what is centred by its own mean may have lost a rounding of the mean.

    Who centres once more is immune to the mean's error, who does not is exposed to it,
    and who finds the variance with another mean is exposed to both.
    """
    error = RULES["subtract"](at)
    return error + at.b if is_mean(*at.node.inputs[::-1]) else error


def is_mean(node: Node, source: Node) -> bool:
    """Whether a node is a sum over a source, times a scalar; or that of one element."""
    source, scaled = unmoved(source), False
    while operation(node := unmoved(node)) in ("multiply", "divide"):
        if node is source or node.inputs[1].size != 1:
            return scaled and node is source
        node, scaled = node.inputs[0], True
    if operation(node) in ("sum", "sum_to"):
        return unmoved(node.inputs[0]) is source
    return scaled and node is source


def local_errors(errors: Errors, order: Iterable[Node]) -> dict[Node, Error | None]:
    """What each node's own rounding adds, in E: None where it adds nothing."""
    found: dict[Node, Error | None] = {}
    with np.errstate(all="ignore"):
        for node in order:
            rule = errors.rules[node.primitive.name] if node.primitive else None
            if rule is None:
                own = errors.errors[node]
            elif rule is copied:
                found[node] = None
                continue
            else:
                exact = [zeros(errors.sizes[source]) for source in node.inputs]
                at = At(node, errors, exact, own=True)
                own = _settled(np.asarray(rule(at)), at.v)
            found[node] = own if own.any() else None
    return found


def _size(node: Node, sizes: dict[Node, Error]) -> Error:
    """Magnitudes in float64; elements that only move bring theirs along."""
    if moves(node):
        return computed(node, *(sizes[source] for source in node.inputs))
    size = node.value.astype(np.float64)
    return np.abs(size, out=size)


def _error(node: Node, errors: Errors) -> Error:
    size = errors.sizes[node]
    if node.primitive is None:
        held = errors.arithmetic.step.round(node.value)
        exact = held == node.value
        if everywhere(exact):
            errors.peaks[node] = 0.0
            return zeros(size)
        off = np.abs(held - node.value)
        lost = np.maximum(size, off.astype(np.float64) / errors.arithmetic.roundoff)
        return np.where(exact | np.isnan(size), 0.0, lost)
    if node in errors.exact:
        return zeros(size)
    at = At(node, errors, [errors.errors[source] for source in node.inputs])
    error = np.asarray(errors.rules[node.primitive.name](at), dtype=np.float64)
    if error.size:
        peak = float(largest(error))
        if peak < np.inf:  # false for nan
            errors.peaks[node] = peak
            return error
    return _settled(error, size)


def _settled(error: Error, size: Error) -> Error:
    """An infinite value comes without a rounding error; elsewhere nan is no bound."""
    # False for nan.
    if error.size and largest(error) < np.inf and largest(size) < np.inf:
        return error
    return np.where(size == np.inf, 0.0, np.where(np.isnan(error), np.inf, error))


ERROR: Table = {
    **RULES,
    "subtract": _difference,
    "stop_gradient": copied,
    "reshape": copied,
    "permute_dims": copied,
    "broadcast_to": copied,
    "gather": copied,
}
#: Primitives that the engine of older commits has, whose history is judged today.
FORMER: Table = {"take": copied, "put": copied}
ERROR |= FORMER
