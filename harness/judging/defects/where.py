"""The predicates by which a known outcome says where its defect shows.

A clause is a property of a trial from `PROPERTIES`, or `regime`, `dtype` or `case` with
names, which may hold the wildcards * and ?: "regime large or mixed". "not" turns it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.impls.contract import Problem

Array = NDArray[Any]


def holds(clauses: Sequence[str], trial: Trial) -> bool:
    """Whether a trial has all of these properties."""
    with np.errstate(all="ignore"):
        return all(_holds(clause, trial) for clause in clauses)


def checked(clause: str) -> str:
    """The clause, if it is one.

    Raises:
        ValueError: Nothing has that name.
    """
    plain = clause.removeprefix("not ")
    if plain not in PROPERTIES and plain.partition(" ")[0] not in _NAMES:
        raise ValueError(f"no property {plain!r} of a trial")
    return clause


_NAMES: dict[str, Callable[[Trial], str]] = {
    "regime": lambda trial: trial.regime,
    "dtype": lambda trial: trial.problem.dtype,
    "name": lambda trial: trial.name,
    "case": lambda trial: trial.case,
}


def _holds(clause: str, trial: Trial) -> bool:
    if clause.startswith("not "):
        return not _holds(clause.removeprefix("not "), trial)
    if clause in PROPERTIES:
        return PROPERTIES[clause](trial.problem)
    kind, _, names = clause.partition(" ")
    value = _NAMES[kind](trial)
    return any(matches(value, name) for name in names.split(" or "))


def matches(name: str, pattern: str) -> bool:
    """Whether a name has a pattern, whose brackets are no character class."""
    return fnmatchcase(_literal(name), _literal(pattern))


def _literal(text: str) -> str:
    return text.replace("[", "(").replace("]", ")")


def _inputs(problem: Problem) -> Iterator[Array]:
    """The floating inputs, in float64."""
    for array in problem.inputs.values():
        if array.dtype.kind == "f":
            yield array.astype(np.float64)


def _any(condition: Callable[[Array], Array]) -> Callable[[Problem], bool]:
    """Whether some element of an input is so."""
    return lambda problem: any(condition(a).any() for a in _inputs(problem))


def _beyond(limit: Callable[[Problem], float]) -> Callable[[Problem], bool]:
    """Whether an element of the first input is finite and above a limit."""

    def one(problem: Problem) -> bool:
        x = next(_inputs(problem))
        return bool((np.isfinite(x) & (x > limit(problem))).any())

    return one


def _exp_is_lost(sign: int) -> Callable[[Problem], bool]:
    """Whether exp(sign * x) is a number that loses half its digits beside 1."""

    def lost(problem: Problem) -> bool:
        x, precision = sign * next(_inputs(problem)), PRECISIONS[problem.dtype]
        above = math.log(precision.smallest)
        below = math.log(precision.roundoff) / 2
        return bool(((above < x) & (x < below)).any())

    return lost


def _saturated(problem: Problem) -> Array:
    """Where a logit is so far on its target's side that exp(-|x|) decides."""
    x, target, *_ = _inputs(problem)
    precision = PRECISIONS[problem.dtype]
    size = np.where(target == (x > 0), np.abs(x), 0.0)
    above = -math.log(precision.roundoff) / 4
    return np.asarray((above < size) & (size < -math.log(precision.smallest)))


def _is_subnormal(problem: Problem) -> bool:
    """An input, or its product with a cotangent or a tangent, is subnormal."""
    smallest = PRECISIONS[problem.dtype].smallest
    first = next(_inputs(problem))
    others = [*problem.cotangents, *problem.tangents.values()]
    alike = [a for a in others if a is not None and a.shape in (first.shape, ())]
    products = [first, *(first * a.astype(np.float64) for a in alike)]
    return any(bool(((p != 0) & (np.abs(p) < smallest)).any()) for p in products)


def _product_overflows(problem: Problem) -> bool:
    """An input times its cotangent is beyond the range."""
    first, dy = next(_inputs(problem)), problem.cotangents[0]
    if dy is None or dy.shape not in (first.shape, ()):
        return False
    size = np.abs(first * dy.astype(np.float64))
    return bool((np.isfinite(first) & (size > PRECISIONS[problem.dtype].largest)).any())


def _factors(problem: Problem) -> Array:
    """Size of the product of the first input's elements, along the op's axis."""
    x = np.abs(next(_inputs(problem)))
    return np.asarray(np.prod(x, axis=problem.attributes.get("axis"), keepdims=True))


def _divided_factors(problem: Problem) -> bool:
    """A factor is 0 or not finite, or the product of some leaves the range."""
    x = next(_inputs(problem))
    return bool(
        (x == 0).any()
        or not np.isfinite(x).all()
        or _overflowing_factors(problem)
        or _underflowing_factors(problem)
    )


def _exp_is_infinite(problem: Problem) -> bool:
    """The first input holds a number, or an infinity, whose exp overflows."""
    x = next(_inputs(problem))
    return bool((x > math.log(PRECISIONS[problem.dtype].largest)).any())


def _cosh_overflows(problem: Problem) -> bool:
    """The same of exp(-x) or exp(x)."""
    x = np.abs(next(_inputs(problem)))
    return bool((x > math.log(PRECISIONS[problem.dtype].largest)).any())


def _batch_of_equals(problem: Problem) -> bool:
    """All of the first input along its first axis is one number."""
    x = next(_inputs(problem))
    return x.ndim > 0 and bool((x == x[:1]).all())


def _zero_if_flushed(problem: Problem) -> bool:
    """An element of the first input is 0, or subnormal."""
    x = next(_inputs(problem))
    return bool((np.abs(x) < PRECISIONS[problem.dtype].smallest).any())


def _overflowing_factors(problem: Problem) -> bool:
    x, y = next(_inputs(problem)), _factors(problem)
    return bool((np.isfinite(x).all() & (y > PRECISIONS[problem.dtype].largest)).any())


def _underflowing_factors(problem: Problem) -> bool:
    """A product of factors, none of them 0, that is 0 in its precision."""
    x, y = next(_inputs(problem)), _factors(problem)
    lost = (
        y < 2 * PRECISIONS[problem.dtype].smallest * PRECISIONS[problem.dtype].roundoff
    )
    return bool((lost & (x != 0).all()).any())


def _uneven_tangents(problem: Problem) -> bool:
    """A number of a tangent is less than a 16th of another tangent's there."""
    if len(problem.tangents) != 2:
        return False
    a, b = map(np.abs, problem.tangents.values())
    return bool(((a * 16 < b) | (b * 16 < a)).any())


def _subnormal_square(problem: Problem) -> bool:
    """A number that is not finite, or not 0 with a square that is no normal number."""
    smallest = PRECISIONS[problem.dtype].smallest
    return any(
        bool((~np.isfinite(x) | ((x != 0) & (x * x < smallest))).any())
        for x in _inputs(problem)
    )


def _zero_rows(problem: Problem) -> bool:
    """All of the first input along the op's axis is 0."""
    x, axis = next(_inputs(problem)), problem.attributes.get("axis")
    return x.size > 0 and bool((x == 0).all(axis).any())


#: By name, whether a problem has a property.
PROPERTIES: dict[str, Callable[[Problem], bool]] = {
    "an empty tensor": lambda problem: any(
        a.size == 0 for a in problem.inputs.values()
    ),
    "an infinity": _any(np.isinf),
    "a nan": _any(np.isnan),
    "finite": lambda problem: all(np.isfinite(a).all() for a in _inputs(problem)),
    "a zero": _any(lambda a: a == 0),
    "a negative number": _any(lambda a: a < 0),
    "a subnormal number": _is_subnormal,
    "exp(x) overflows": _beyond(lambda p: math.log(PRECISIONS[p.dtype].largest)),
    "exp(x) is lost beside 1": _exp_is_lost(1),
    "exp(-x) is lost beside 1": _exp_is_lost(-1),
    "cosh(x) overflows": lambda problem: bool(
        (
            abs(next(_inputs(problem))) > math.log(PRECISIONS[problem.dtype].largest)
        ).any()
    ),
    "every logit saturated at its target": lambda problem: bool(
        _saturated(problem).size and _saturated(problem).all()
    ),
    "an infinite weight": lambda problem: bool(
        np.isinf(problem.inputs["weight"]).any()
    ),
    "a number near 0": _any(lambda a: (a != 0) & (abs(a) < 0.01)),
    "a tangent far below another": _uneven_tangents,
    "a subnormal square": _subnormal_square,
    "a row of zeros": _zero_rows,
    "a padding index": lambda problem: problem.attributes.get("padding") is not None,
    "x dy overflows": _product_overflows,
    "factors that prod cannot divide by": _divided_factors,
    "exp(x) is infinite": _exp_is_infinite,
    "a constant batch": _batch_of_equals,
    "a zero or a subnormal number": _zero_if_flushed,
    "a product of factors that is not finite": lambda problem: bool(
        (~(_factors(problem) <= PRECISIONS[problem.dtype].largest)).any()
    ),
}
