"""The predicates by which a known outcome says where its defect shows.

A clause is a property of a trial from `PROPERTIES`, or `regime`, `dtype` or `case` with
names, which may hold the wildcards * and ?: "regime large or mixed". "not" turns it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
        return bool(np.any(PROPERTIES[clause](_At(trial.problem))))
    kind, _, names = clause.partition(" ")
    value = _NAMES[kind](trial)
    return any(matches(value, name) for name in names.split(" or "))


def matches(name: str, pattern: str) -> bool:
    """Whether a name has a pattern, whose brackets are no character class."""
    return fnmatchcase(_literal(name), _literal(pattern))


def _literal(text: str) -> str:
    return text.replace("[", "(").replace("]", ")")


class _At:
    """A problem's numbers, in float64; `x` is its first floating input."""

    def __init__(self, problem: Problem) -> None:
        self.problem, precision = problem, PRECISIONS[problem.dtype]
        self.inputs = [
            a.astype(np.float64) for a in problem.inputs.values() if a.dtype.kind == "f"
        ]
        self.x, self.axis = self.inputs[0], problem.attributes.get("axis")
        self.smallest, self.largest = precision.smallest, precision.largest
        self.roundoff = precision.roundoff
        self.most = math.log(self.largest)  # the largest argument of exp

    def some(self, condition: Callable[[Array], Array]) -> bool:
        """Whether some element of an input is so."""
        return any(condition(a).any() for a in self.inputs)

    @property
    def factors(self) -> Array:
        """Size of the product of x along the op's axis."""
        return np.asarray(np.prod(np.abs(self.x), axis=self.axis, keepdims=True))

    def products(self, *others: Array | None) -> list[Array]:
        """Products of x with those of its shape, or of none."""
        alike = [a for a in others if a is not None and a.shape in (self.x.shape, ())]
        return [self.x * a.astype(np.float64) for a in alike]


def _exp_is_lost(at: _At, sign: int) -> Any:
    """Whether exp(sign * x) is a number that loses half its digits beside 1."""
    x = sign * at.x
    return (math.log(at.smallest) < x) & (x < math.log(at.roundoff) / 2)


def _saturated(at: _At) -> Any:
    """Where a logit is so far on its target's side that exp(-|x|) decides."""
    x, target, *_ = at.inputs
    size = np.where(target == (x > 0), np.abs(x), 0.0)
    above = -math.log(at.roundoff) / 4
    return (above < size) & (size < -math.log(at.smallest))


def _is_subnormal(at: _At) -> bool:
    """An input, or its product with a cotangent or a tangent, is subnormal."""
    others = (*at.problem.cotangents, *at.problem.tangents.values())
    products = (at.x, *at.products(*others))
    return any(((p != 0) & (np.abs(p) < at.smallest)).any() for p in products)


def _product_overflows(at: _At) -> bool:
    """An input times its cotangent is beyond the range."""
    products = at.products(at.problem.cotangents[0])
    return any((np.isfinite(at.x) & (np.abs(p) > at.largest)).any() for p in products)


def _divided_factors(at: _At) -> bool:
    """A factor is 0 or not finite, or the product of some leaves the range."""
    least = 2 * at.smallest * at.roundoff
    known = (at.x != 0).all() and np.isfinite(at.x).all()
    beyond = (at.factors > at.largest) | (at.factors < least)
    return bool(not known or beyond.any())


def _uneven_tangents(at: _At) -> bool:
    """A number of a tangent is less than a 16th of another tangent's there."""
    if len(at.problem.tangents) != 2:
        return False
    a, b = map(np.abs, at.problem.tangents.values())
    return bool(((a * 16 < b) | (b * 16 < a)).any())


#: By name, whether a problem has a property; of an array, whether some element has it.
PROPERTIES: dict[str, Callable[[_At], Any]] = {
    "an empty tensor": lambda at: not all(a.size for a in at.problem.inputs.values()),
    "an infinity": lambda at: at.some(np.isinf),
    "a nan": lambda at: at.some(np.isnan),
    "finite": lambda at: not at.some(lambda a: ~np.isfinite(a)),
    "a zero": lambda at: at.some(lambda a: a == 0),
    "a negative number": lambda at: at.some(lambda a: a < 0),
    "a number near 0": lambda at: at.some(lambda a: (a != 0) & (abs(a) < 0.01)),
    "a subnormal number": _is_subnormal,
    "a subnormal square": lambda at: at.some(
        lambda a: ~np.isfinite(a) | ((a != 0) & (a * a < at.smallest))
    ),
    "a zero or a subnormal number": lambda at: abs(at.x) < at.smallest,
    "exp(x) overflows": lambda at: np.isfinite(at.x) & (at.x > at.most),
    "exp(x) is infinite": lambda at: at.x > at.most,
    "cosh(x) overflows": lambda at: abs(at.x) > at.most,
    "exp(x) is lost beside 1": lambda at: _exp_is_lost(at, 1),
    "exp(-x) is lost beside 1": lambda at: _exp_is_lost(at, -1),
    "every logit saturated at its target": lambda at: (
        at.x.size and _saturated(at).all()
    ),
    "an infinite weight": lambda at: np.isinf(at.problem.inputs["weight"]),
    "a tangent far below another": _uneven_tangents,
    "a row of zeros": lambda at: at.x.size and (at.x == 0).all(at.axis),
    "a constant batch": lambda at: at.x.ndim and (at.x == at.x[:1]).all(),
    "a padding index": lambda at: at.problem.attributes.get("padding") is not None,
    "x dy overflows": _product_overflows,
    "factors that prod cannot divide by": _divided_factors,
    "a product of factors that is not finite": lambda at: ~(at.factors <= at.largest),
}
