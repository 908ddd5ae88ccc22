"""A failure, as small as it gets, as a script that needs PyTorch and NumPy alone."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from gradwatch.harness.agreement.repro import values_of
from gradwatch.harness.check.choice import Trial
from gradwatch.harness.check.examine import Bench, Function, examined
from gradwatch.harness.check.frameworks import Bound, Elsewhere, observation, runs
from gradwatch.harness.check.frameworks.pytorch import (
    array_of,
    filled,
    mapped,
    tensors,
)
from gradwatch.harness.check.frameworks.runs import Tensor, floating
from gradwatch.harness.check.origin import origin
from gradwatch.harness.check.report import Row
from gradwatch.harness.judging.cases import REGIMES
from gradwatch.harness.judging.reference import Reference
from gradwatch.harness.judging.verdict import allowed
from gradwatch.harness.project.descent import Cut, cuts, descend, plainer
from gradwatch.harness.tracing import held

SECONDS = 10.0  # a person waits for the script: dozens of steps of a tenth of a second

IMPORTS = """\
from __future__ import annotations

import contextlib
import sys

import numpy as np
from torch.utils._pytree import tree_leaves


def in_short(error):
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]"""

TEMPLATE = '''\
"""{headline}

{story}

Needs PyTorch, NumPy and the candidate. Exits 1 while it is wrong, 0 when it is right.
"""

{runs}

# The candidate --------------------------------------------------------------------

{origin}


def holding(t):
    return {held}


def function(*t):
    {seeded}with holding(t):
        out = {call}
    return [v for v in tree_leaves(out) if isinstance(v, torch.Tensor)]


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
        got = numbers(named[name]).double().cpu().numpy()
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
        constant = tensor is None and not answers[0][name][0].any()
        yield name, torch.zeros(answers[0][name][0].shape) if constant else tensor


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
        for how, frozen, gradients in [("", (), seen.gradients), *seen.others]:
            label = "frozen: " + ", ".join(names[i] for i in frozen) if frozen else how
            found = enumerate(zip(names, wanted, gradients, strict=True))
            kept = {{f"d{{n}}": g for i, (n, w, g) in found if w and i not in frozen}}
            runs.append((label, kept))
        runs[0][1].update(zip(results, seen.outputs))
    for label, named in runs:
        for name, what in min((list(wrong(named, r)) for r in answers), key=len):
            yield name, f"{{what}} {{f'({{label}})' if label else ''}}"


tangents = [
{tangents}]
try:
    found = list(failures())
except Exception as error:
    found = [("the candidate", f"raised {{type(error).__name__}}: {{error}}")]
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
    if row is None:  # it has failed in training alone
        return ""
    trial = tried[row.dtype, row.trial]
    trial, row = _shrunk(subject, candidate, trial, row)
    bench = Bench(subject, candidate, trial)
    bound, call, cotangents = bench.bound, bench.call, bench.cotangents()
    right = bench.truth(cotangents).right
    second = trial.order != "vjp"
    return TEMPLATE.format(
        headline=f"Reproduces: {row.where}, {row.dtype}.",
        story=row.judgement.message.replace("\\", "\\\\"),
        runs=f"{text_of(observation, runs)}\n\n{inspect.getsource(held)}",
        origin=source or origin(call.function),
        call=_call(call, bound),
        held=_held(call, bound),
        seeded=_seeded(bound),
        names=list(bound.names),
        results=list(bound.results),
        tensors="".join(f"    {_tensor(t)},  # {n}\n" for n, t in _named(bound)),
        wanted=list(bound.wanted),
        cotangents="".join(f"    {_tensor(dy)},\n" for dy in cotangents),
        answers="".join(_answer(right, way) for way in right.graphs),
        order=trial.order,
        asked=list(bench.second_names(cotangents)) if second else [],
        tangents="".join(f"    {_tensor(v)},\n" for v in bench.tangents if second),
        frozen=list(bench.frozen()) if trial.thorough else [],
        thorough=trial.thorough,
    )


def text_of(*modules: Any) -> str:
    """The text of modules of ours as one that needs PyTorch and NumPy alone."""
    return "\n\n".join([IMPORTS, *map(_body, modules)])


def _body(module: Any) -> str:
    """The text of a module without what it imports of ours, and no docstring."""
    body = inspect.getsource(module).partition("\nfrom __future__ import annotations\n")
    lines = body[2].strip().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("from gradwatch"))


def _named(bound: Bound) -> list[tuple[str, Tensor]]:
    return list(zip(bound.names, bound.tensors, strict=True))


def _call(call: Any, bound: Bound) -> str:
    """The call as an expression of the tensors t[0], t[1], ..."""
    places = iter(range(len(bound.tensors)))

    def shown(value: Any) -> Any:
        return _Verbatim(
            f"t[{next(places)}]" if isinstance(value, Tensor) else repr(value)
        )

    args, kwargs = tree_map(shown, (call.args, dict(call.kwargs)))
    given = [repr(a) for a in args]
    if not isinstance(call.function, torch.nn.Module):
        given += [f"t[{i}]" for i in places]
    given += [f"{k}={v!r}" for k, v in kwargs.items()]
    return f"candidate({', '.join(given)})"


def _held(call: Any, bound: Bound) -> str:
    """What a module has for its own tensors, as an expression."""
    if not isinstance(call.function, torch.nn.Module):
        return "nullcontext()"
    first = len(bound.tensors) - len(call.state)
    named = (f"{n!r}: t[{first + i}]" for i, n in enumerate(call.state))
    return f"held(candidate, {{{', '.join(named)}}})"


def _seeded(bound: Bound) -> str:
    """The line before a call that draws."""
    if None not in bound.call.draws:
        return ""
    generator = torch.Generator()
    generator.set_state(bound.call.draws[None])
    return f"torch.manual_seed({generator.initial_seed()})\n    "


class _Verbatim(str):
    """Code that stands for itself in a container's repr."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _tensor(tensor: Tensor | None) -> str:
    """An expression that makes the tensor again, strides included."""
    if tensor is None:
        return "None"
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    whole.set_(tensor.detach().untyped_storage())
    plain = tensor.is_contiguous() and whole.numel() == tensor.numel()
    values = values_of(array_of(tensor if plain else whole))
    made = f"torch.tensor({values}, dtype={tensor.real.dtype})"
    made = f"torch.view_as_complex({made})" if tensor.is_complex() else made
    if not plain:
        places = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        made += f".as_strided{places}"
    return made if tensor.device.type == "cpu" else f'{made}.to("{tensor.device}")'


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
) -> tuple[Trial, Row]:
    """A trial with fewer elements and plainer numbers, and what fails there.

    The same tensor has to fail with the same verdict.
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
    for steps in (_shorter, _plainer):
        best = descend(best, steps, failing, end)
    return best


def _shorter(trial: Trial) -> Iterator[Trial]:
    """Shorter inputs."""
    for cut in cuts(t.shape for t in tensors(trial.args)):

        def short(value: Tensor, cut: Cut = cut) -> Tensor:
            part = value.detach()[cut(value.shape)].clone()
            return part.requires_grad_(value.requires_grad)

        yield replace(trial, args=mapped(short, trial.args))


def _plainer(trial: Trial) -> Iterator[Trial]:
    """A cotangent of ones; each input in turn all ones, or of one or two digits."""
    if trial.regime.cotangent != "ones":
        yield replace(trial, regime=REGIMES["dy_ones"])
    leaves, spec = tree_flatten(trial.args)
    for i, value in enumerate(leaves):
        for plain in plainer(array_of(value)) if floating(value) else ():
            held = filled(plain, value).requires_grad_(value.requires_grad)
            args = tree_unflatten([*leaves[:i], held, *leaves[i + 1 :]], spec)
            yield replace(trial, args=args)
