"""Two versions of a framework: where each runs, and how accurate it is.

"torch==1.12.1" names the version, and the environment of the checkout that has it. So
`gradwatch compare torch==1.12.1 torch==2.13.0` tells what an upgrade would change.
"""

from __future__ import annotations

import functools
from pathlib import Path

from gradwatch.harness.history.environments import (
    WrongCall,
    environments_with,
    parsed,
)
from gradwatch.harness.history.measure import (
    Figures,
    MeasurementTarget,
    measure,
    worst_of,
)
from gradwatch.harness.judging.cases import trials
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers.pythons.interpreters import Interpreter
from gradwatch.impls.contract import Op

#: The error of one version over that of the other that counts as a change: that of
#: track_gradient_ratio in asv.conf.json. No noise is in it: both get the same numbers.
CHANGED = 1.5


def interpreter_with(requirement: str, root: Path = ROOT) -> Interpreter:
    """The Python of the environment that has exactly this version.

    Raises:
        WrongCall: The version is not exact, or no environment of the checkout has it.
    """
    name, version = parsed(requirement)
    for folder in environments_with({name: version}, root):
        return Interpreter(name, folder / "bin" / "python", f"{folder.name}/bin/python")
    raise WrongCall(
        f"no environment of the checkout has {requirement}; `make framework` or"
        f' `make version WITH="{requirement}"` makes one'
    )


@functools.cache
def worst_error(op: Op, backend: str, dtype: str, interpreter: Interpreter) -> Figures:
    """The largest ratio of a gradient in all cases of an op, and what is wrong in them.

    Raises:
        NotMeasured: The interpreter or its framework does not start.
    """
    target = MeasurementTarget(ROOT, [interpreter.framework], interpreter.python)
    asked = trials(op, regimes=["normal"], dtypes=[dtype])
    found = measure(asked, [backend], ["cpu"], target, processes=0, seconds=0)
    return worst_of(list(found.values()))


def accuracy(a: Figures, b: Figures) -> str:
    """The change of the accuracy from a to b, in words."""
    wrong = [f"{name} is wrong" for name, one in (("A", a), ("B", b)) if one.why]
    if wrong or a.ratio is None or b.ratio is None:
        return ", ".join(wrong) or "not measured"
    if b.ratio > CHANGED * a.ratio:
        return "less accurate"
    return "more accurate" if a.ratio > CHANGED * b.ratio else "as accurate"
