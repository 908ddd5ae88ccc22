"""Where a known outcome shows: Python expressions about a trial.

Each is true, or is true of some element: "isinf(weight)", "dtype == 'float16'",
"like(case, '*tanh*')". Their names are NumPy's functions, the inputs and attributes of
the op, and those of `names_in`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from types import CodeType
from typing import Any

import numpy as np

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.precisions import PRECISIONS, Array


def holds(clauses: Sequence[str], trial: Trial) -> bool:
    """Whether all clauses hold in a trial.

    Raises:
        ValueError: One uses a name that the trial does not have.
    """
    if not clauses:
        return True
    names = names_in(trial)
    try:
        with np.errstate(all="ignore"):
            return all(np.any(eval(compiled(one), names)) for one in clauses)
    except NameError as error:
        raise ValueError(f"known outcome of {trial.op}: {error}") from None


@functools.cache
def compiled(clause: str) -> CodeType:
    """The code of a clause.

    Raises:
        ValueError: It is no expression.
    """
    try:
        return compile(clause, "where", "eval")
    except (SyntaxError, ValueError):
        raise ValueError(f"no expression: {clause!r}") from None


def names_in(trial: Trial) -> dict[str, Any]:
    """What clauses may name: numbers in float64; `x` is the first floating input."""
    problem, precision = trial.problem, PRECISIONS[trial.problem.dtype]
    given = {
        name: a.astype(np.float64) if a.dtype.kind == "f" else a
        for name, a in problem.inputs.items()
    }
    floating = [given[n] for n, a in problem.inputs.items() if a.dtype.kind == "f"]
    x = floating[0]
    dys, tangents = (
        [a.astype(np.float64) for a in arrays if a is not None]
        for arrays in (problem.cotangents, problem.tangents.values())
    )

    def some(condition: Callable[[Array], Array]) -> bool:
        """Whether some element of a floating input is so."""
        return any(condition(a).any() for a in floating)

    def products(*others: Array) -> list[Array]:
        """Products of x with arrays of its shape, or of none."""
        return [x * a for a in others if a.shape in (x.shape, ())]

    return {
        **_FUNCTIONS,
        **problem.attributes,
        **given,
        "x": x,
        "dys": dys,
        "tangents": tangents,
        "empty": problem.empty,
        "regime": trial.regime,
        "case": trial.case,
        "dtype": problem.dtype,
        "name": trial.name,
        "some": some,
        "products": products,
        "smallest": precision.smallest,
        "largest": precision.largest,
        "roundoff": precision.roundoff,
    }


def like(name: str, *patterns: str) -> bool:
    """Whether a name has a pattern, whose brackets are no character class."""
    return any(fnmatchcase(_literal(name), _literal(one)) for one in patterns)


def _literal(text: str) -> str:
    return text.replace("[", "(").replace("]", ")")


_FUNCTIONS = {**vars(np), "like": like, "__builtins__": {}}
