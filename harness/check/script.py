"""A failure, as small as it gets, as a script that needs no more than its framework."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gradwatch.harness.check.choice import Trial
from gradwatch.harness.check.examine import Bench, Function, examined
from gradwatch.harness.check.frameworks import Bound, Elsewhere, framework
from gradwatch.harness.check.origin import origin
from gradwatch.harness.check.report import Row
from gradwatch.harness.judging.cases import REGIMES
from gradwatch.harness.judging.reference import Reference
from gradwatch.harness.judging.verdict import allowed
from gradwatch.harness.project.descent import Cut, cuts, descend, plainer
from gradwatch.harness.workers.arrays import values_of

SECONDS = 10.0  # a person waits for the script: dozens of steps of a tenth of a second

IMPORTS = """\
from __future__ import annotations

import contextlib
import sys

import numpy as np


def in_short(error):
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]"""

TEMPLATE = '''\
"""{headline}

{story}

Needs {title}, NumPy and the candidate. Exits 1 while it is wrong, 0 when it is right.
"""

{runs}


# The candidate --------------------------------------------------------------------

{settings}{origin}


def holding(t):
    return {held}


def function(*t):
    {seeded}with holding(t):
        out = {call}
    return [v for v in tree_leaves(out) if hasattr(v, "dtype")]


function.holding = holding


# Its inputs, and the right answers ------------------------------------------------

names = {names}
results = {results}
tensors = [
{tensors}]
wanted = {wanted}
cotangents = [
{cotangents}]
# For each way of breaking ties: the exact value, and how far rounding may lead from it.
answers = [
{answers}]


def wrong(named, right):
    """Tensors that are not what they must be, and how far off the worst element is."""
    for name in filter(named.__contains__, right):
        exact, allowed = right[name]
        if named[name] is None:
            yield name, "is None"
            continue
        got = np.asarray(array_of(named[name]), float)
        if got.shape != exact.shape:
            yield name, f"has shape {{got.shape}}, expected {{exact.shape}}"
            continue
        judged = np.isfinite(exact) & np.isfinite(allowed)
        error = np.where(judged, np.abs(got - exact), 0.0)
        if not np.all(error <= np.where(judged, allowed, 0.0)):
            bad = int(np.argmax(np.where(np.isnan(error), np.inf, error - allowed)))
            yield name, (
                f"element {{bad}}: got {{got.flat[bad]:.9g}}, expected"
                f" {{exact.flat[bad]:.9g}}, allowed error {{allowed.flat[bad]:.3g}}"
            )


def second():
    got = differentiated({order!r}, function, tensors, wanted, cotangents, tangents)
    for name, tensor in zip({asked}, got, strict=True):
        if tensor is not None or answers[0][name][0].any():
            yield name, tensor


def failures():
    if {order!r} != "vjp":
        runs = [("", dict(second()))]
    else:
        seen = observe(function, tensors, wanted, cotangents, {frozen}, {thorough})
        for kind, place, message in seen.faults:
            yield f"{{kind}} {{place}}", message
        for how, _, message in seen.raised:
            yield how, f"raised {{message}}"
        runs = []
        first = [*seen.gradients, *seen.outputs]
        for how, frozen, got in [("", (), first), *seen.others]:
            label = "frozen: " + ", ".join(names[i] for i in frozen) if frozen else how
            found = enumerate(zip(names, wanted, got[: len(names)], strict=True))
            kept = {{f"d{{n}}": g for i, (n, w, g) in found if w and i not in frozen}}
            runs.append((label, kept | dict(zip(results, got[len(names) :]))))
    for label, named in runs:
        for name, what in min((list(wrong(named, r)) for r in answers), key=len):
            yield name, f"{{what}} {{f'({{label}})' if label else ''}}"


tangents = [
{tangents}]
try:
    found = list(failures())
except Exception as error:
    found = [("the candidate", f"raised {{in_short(error)}}")]
for name, what in found:
    print(f"{{name}}: {{what}}")
print("wrong" if found else "right")
sys.exit(1 if found else 0)
'''


def script(
    subject: Any,
    candidate: Function | Elsewhere | None,
    trials: Sequence[Trial],
    rows: Sequence[Row],
    source: str = "",
) -> str:
    """The text of the script for the first failure, as small as it gets.

    Args:
        subject: The reference.
        candidate: None for the reference itself.
        trials: Those of the check.
        rows: Their judgements, one of which fails.
        source: Lines that define `candidate`, where it is known how it was loaded.
    """
    tried = {(trial.dtype, trial.name): trial for trial in trials}
    wrong = (row for row in rows if not row.judgement.passes)
    row = next((row for row in wrong if (row.dtype, row.trial) in tried), None)
    if row is None:
        return ""
    trial = tried[row.dtype, row.trial]
    with trial.framework.precision(trial.dtype):
        found = _shrunk(subject, candidate, trial, row)
        if found is None:  # it is wrong after other steps of a training alone
            return ""
        trial, row = found
        return _written(Bench(subject, candidate, trial), row, source)


def _written(bench: Bench, row: Row, source: str) -> str:
    bound, call, cotangents = bench.bound, bench.call, bench.cotangents()
    trial, right = bench.trial, bench.truth(cotangents).right
    second = trial.order != "vjp"
    used, function = trial.framework, call.function
    held: Any = list
    if inner := getattr(function, "of_jax", None):  # its arrays are the same numbers
        from gradwatch.harness.check.frameworks.bridge import with_arrays

        used, function, held = framework("jax"), inner, with_arrays

    def listed(tensors: Sequence[Any]) -> str:
        return "".join(
            f"    {None if t is None else used.written(t)},\n" for t in held(tensors)
        )

    return TEMPLATE.format(
        headline=f"Reproduces: {row.where}, {row.dtype}.",
        story=row.judgement.message.replace("\\", "\\\\"),
        title=used.TITLE,
        runs=text_of(used, *used.HELD),
        settings=used.SETTINGS.format(wide=trial.dtype == "float64"),
        origin=source or origin(function),
        call=_call(call, bound, trial.framework),
        held=_held(call, bound),
        seeded=_seeded(bound),
        names=list(bound.names),
        results=list(bound.results),
        tensors=listed(bound.tensors),
        wanted=list(bound.wanted),
        cotangents=listed(cotangents),
        answers="".join(_answer(right, way) for way in right.graphs),
        order=trial.order,
        asked=list(bench.second_names(cotangents)) if second else [],
        tangents=listed(bench.tangents) if second else "",
        frozen=list(bench.frozen()) if trial.thorough else [],
        thorough=trial.thorough,
    )


def text_of(used: Any, *parts: Any) -> str:
    """The text of parts of ours as one that needs NumPy and a framework alone."""
    return "\n\n".join([IMPORTS, used.IMPORTS, *map(_text, parts)])


def _text(part: Any) -> str:
    """The text of a function, or of a module without docstring and our imports."""
    text = inspect.getsource(part)
    body = text.partition("\nfrom __future__ import annotations\n")[2] or text
    lines = body.strip().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("from gradwatch"))


def _call(call: Any, bound: Bound, used: Any) -> str:
    """The call as an expression of the tensors t[0], t[1], ..."""
    places = iter(range(len(bound.tensors)))

    def shown(_: Any) -> Any:
        return _Verbatim(f"t[{next(places)}]")

    args, kwargs = used.mapped(shown, (call.args, dict(call.kwargs)))
    given = [repr(a) for a in args]
    if not hasattr(call.function, "named_parameters"):
        given += [f"t[{i}]" for i in places]
    given += [f"{k}={v!r}" for k, v in kwargs.items()]
    return f"candidate({', '.join(given)})"


def _held(call: Any, bound: Bound) -> str:
    """What a module has for its own tensors, as an expression."""
    if not hasattr(call.function, "named_parameters"):
        return "nullcontext()"
    first = len(bound.tensors) - len(call.state)
    named = (f"{n!r}: t[{first + i}]" for i, n in enumerate(call.state))
    return f"held(candidate, {{{', '.join(named)}}})"


def _seeded(bound: Bound) -> str:
    """The line before a call that draws."""
    if None not in bound.draws:
        return ""
    import torch

    generator = torch.Generator()
    generator.set_state(bound.call.draws[None])
    return f"torch.manual_seed({generator.initial_seed()})\n    "


class _Verbatim(str):
    """Code that stands for itself in a container's repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _answer(right: Reference, way: str) -> str:
    lines = ""
    for name, node in right.graphs[way].items():
        exact, most = map(_array, (node.value, allowed(right, way, name)))
        lines += f"        {name!r}: ({exact}, {most}),\n"
    return f"    {{\n{lines}    }},\n"


def _array(values: Any) -> str:
    return f"np.array({values_of(np.asarray(values, np.float64))})"


# As small as it gets --------------------------------------------------------------


def _shrunk(
    subject: Any, candidate: Function | Elsewhere | None, trial: Trial, row: Row
) -> tuple[Trial, Row] | None:
    """A trial with fewer elements and plainer numbers, and what fails there.

    The same tensor has to fail with the same verdict. None for a step of a training
    that is right alone.
    """

    def failing(attempt: Trial) -> Row | None:
        try:
            rows = examined(subject, candidate, attempt)
        except Exception:  # noqa: BLE001  # the reference takes no such input
            return None
        wanted = (row.judgement.tensor, row.judgement.verdict)
        return next(
            (r for r in rows if (r.judgement.tensor, r.judgement.verdict) == wanted),
            None,
        )

    end = time.monotonic() + SECONDS
    best = trial, row
    if trial.state is not None and failing(trial) is None:
        return None
    for steps in (_shorter, _plainer):
        best = descend(best, steps, failing, end)
    return best


def _shorter(trial: Trial) -> Iterator[Trial]:
    """Shorter inputs, with cotangents of their own."""
    used = trial.framework
    if trial.cotangents:
        yield replace(trial, cotangents=())
    for cut in cuts(t.shape for t in used.tensors(trial.args)):

        def short(tensor: Any, cut: Cut = cut) -> Any:
            return used.array_of(tensor)[cut(tensor.shape)].copy()

        yield _changed(trial, short)


def _plainer(trial: Trial) -> Iterator[Trial]:
    """A cotangent of ones; each input in turn all ones, or of one or two digits."""
    if trial.regime.cotangent != "ones":
        yield replace(trial, regime=REGIMES["dy_ones"])
    used = trial.framework
    for value in used.tensors(trial.args):
        array = used.array_of(value)
        for plain in plainer(array) if array.dtype.kind == "f" else ():

            def instead(tensor: Any, value: Any = value, plain: Any = plain) -> Any:
                return plain if tensor is value else None

            yield _changed(trial, instead)


def _changed(trial: Trial, values: Callable[[Any], Any]) -> Trial:
    """The trial with other numbers in its tensors, where there are any."""

    def other(tensor: Any) -> Any:
        if (made := values(tensor)) is None:
            return tensor
        held = trial.framework.filled(made, tensor, trial.regime.layout)
        return held.requires_grad_() if getattr(tensor, "requires_grad", 0) else held

    return replace(trial, args=trial.framework.mapped(other, trial.args))
