"""A minimal failure as a script that needs NumPy and its framework alone."""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import pkgutil
import re
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch.harness.agreement.store import template
from gradwatch.harness.check.choice import Trial
from gradwatch.harness.check.examine import Bench, Function, examined
from gradwatch.harness.check.frameworks import Bound, Elsewhere, framework
from gradwatch.harness.check.report import Row
from gradwatch.harness.judging.cases import REGIMES
from gradwatch.harness.judging.spread import WHOLE
from gradwatch.harness.judging.verdict import allowed
from gradwatch.harness.project.descent import cuts, descend, plainer
from gradwatch.harness.workers.arrays import values_of
from gradwatch.impls.contract import Array

SECONDS = 10.0  # a person waits for the script: dozens of steps of a tenth of a second

IMPORTS = """\
from __future__ import annotations

import contextlib
import sys

import numpy as np


def in_short(error):
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]"""


def script(
    subject: Any,
    candidate: Function | Elsewhere | None,
    trials: Sequence[Trial],
    rows: Sequence[Row],
    source: str = "",
) -> str:
    """The text of the script of the first failure, with the smallest inputs found.

    `source` are lines that define `candidate`, where the caller knows them.
    """
    tried = {(trial.dtype, trial.name): trial for trial in trials}
    wrong = (row for row in rows if not row.judgement.passes)
    row = next((row for row in wrong if (row.dtype, row.trial) in tried), None)
    if row is None:
        return ""
    trial = tried[row.dtype, row.trial]

    def kind(row: Row) -> tuple[str, str, bool]:
        judged = row.judgement
        return judged.tensor, judged.verdict, judged.radius_kind in WHOLE

    wanted = kind(row)

    def failing(attempt: Trial) -> Row | None:
        try:
            rows = examined(Bench(subject, candidate, attempt))
        except Exception:  # noqa: BLE001  # the reference takes no such input
            return None
        return next((r for r in rows if kind(r) == wanted), None)

    with trial.framework.precision(trial.dtype):
        if trial.state is not None and failing(trial) is None:
            return ""  # it is wrong after other steps of a training alone
        end = time.monotonic() + SECONDS
        trial, last = descend((trial, row), _simpler, failing, end)
        return _written(Bench(subject, candidate, trial), last, source)


def _written(bench: Bench, row: Row, source: str) -> str:
    bound, call, cotangents = bench.bound, bench.call, bench.cotangents()
    trial, second = bench.trial, bench.trial.order != "vjp"
    if not second:
        bench.rows(cotangents, "", False)  # to know the values that it keeps
    right = (bench.kept or bench.truth(cotangents)).right
    used, function = trial.framework, call.function
    held: Any = None
    if inner := getattr(function, "of_jax", None):  # its arrays are the same numbers
        from gradwatch.harness.check.frameworks.bridge import array_of

        used, function, held = framework("jax"), inner, array_of

    def listed(tensors: Sequence[Any]) -> list[str | None]:
        return [
            None if t is None else used.written(held(t) if held else t) for t in tensors
        ]

    seed = None
    if None in bound.draws:  # of the generator that a function draws from
        import torch

        generator = torch.Generator()
        generator.set_state(call.draws[None])
        seed = generator.initial_seed()
    is_module = hasattr(call.function, "named_parameters")
    answers = [
        [
            (name, *(values_of(np.asarray(a, np.float64)) for a in both))
            for name, node in nodes.items()
            for both in [(node.value, allowed(right, way, name))]
        ]
        for way, nodes in right.rivals(row.judgement.convention).items()
    ]
    text: str = template("failure.py.j2").render(
        bound=bound,
        call=call,
        trial=trial,
        used=used,
        headline=f"Reproduces: {row.where}, {row.dtype}.",
        whole=row.judgement.radius_kind in WHOLE,
        story=row.judgement.message.replace("\\", "\\\\"),
        runs=text_of(used, *used.HELD),
        wide=trial.dtype == "float64" if used.TITLE == "JAX" else None,
        origin=source or origin(function),
        called=_called(call, bound, trial.framework),
        own=len(call.state) if is_module else 0,
        seed=seed,
        tensors=listed(bound.tensors),
        cotangents=listed(cotangents),
        answers=answers,
        asked=list(bench.second_names(cotangents)) if second else [],
        tangents=listed(bench.tangents) if second else [],
        frozen=list(bench.frozen()) if trial.thorough else [],
    )
    return text


def text_of(used: Any, *parts: Any) -> str:
    """The source of modules and functions, joined; needs NumPy and a framework."""
    return "\n\n".join([IMPORTS, used.IMPORTS, *map(_text, parts)])


def _text(part: Any) -> str:
    """The source of a function, or of a module without docstring and our imports."""
    text = inspect.getsource(part)
    body = text.partition("\nfrom __future__ import annotations\n")[2] or text
    lines = body.strip().splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("from gradwatch"))


def _called(call: Any, bound: Bound, used: Any) -> str:
    """The call as an expression of the tensors t[0], t[1], ..."""
    places = iter(range(len(bound.tensors)))
    tree = call.args, dict(call.kwargs)
    args, kwargs = used.mapped(lambda _: f"t[{next(places)}]", tree)
    given = [repr(a) for a in args]
    if not hasattr(call.function, "named_parameters"):
        given += [f"t[{i}]" for i in places]
    given += [f"{k}={v!r}" for k, v in kwargs.items()]
    return re.sub(r"'(t\[\d+\])'", r"\1", f"candidate({', '.join(given)})")


# As small as it gets --------------------------------------------------------------


def _simpler(trial: Trial) -> Iterator[Trial]:
    """Shorter inputs, with cotangents of their own; then ones, or one or two digits."""
    used = trial.framework
    if trial.cotangents:
        yield replace(trial, cotangents=())

    def changed(made: Mapping[int, Array]) -> Trial:
        def other(t: Any) -> Any:
            if id(t) not in made:
                return t
            held = used.filled(made[id(t)], t, trial.regime.layout)
            return held.requires_grad_() if getattr(t, "requires_grad", 0) else held

        return replace(trial, args=used.mapped(other, trial.args))

    arrays = [(t, used.array_of(t)) for t in used.tensors(trial.args)]
    for cut in cuts(t.shape for t, _ in arrays):
        yield changed({id(t): a[cut(t.shape)].copy() for t, a in arrays})
    if trial.regime.cotangent != "ones":
        yield replace(trial, regime=REGIMES["dy_ones"])
    for tensor, array in arrays:
        for plain in plainer(array) if array.dtype.kind == "f" else ():
            yield changed({id(tensor): plain})


# How a script loads the candidate ----------------------------------------------------

MISSING = """\
candidate = None  # its source was not found: put it here
if candidate is None:
    print("put the source of the candidate into this script")
    raise SystemExit(2)"""


def origin(function: Any) -> str:
    """Lines that define `candidate`."""
    if isinstance(function, functools.partial):
        head, _, last = origin(function.func).rpartition("candidate = ")
        given = [repr(a) for a in function.args]
        given += [f"{k}={v!r}" for k, v in function.keywords.items()]
        bound = ", ".join([last, *given])
        return f"import functools\n{head}candidate = functools.partial({bound})"
    # The owner has a name in a module; the suffix makes the function from it.
    owner, suffix = getattr(function, "__self__", None), ""
    if inspect.isclass(owner):  # Function.apply is bound to its class
        suffix = f".{function.__name__}"
    elif hasattr(function, "named_parameters"):
        owner, suffix = type(function), "()"
        try:
            inspect.signature(owner).bind()
        except TypeError:  # it is not constructed without arguments
            return MISSING
    else:
        owner = function
    return _imported(owner, suffix) or _quoted(owner, suffix) or MISSING


def _imported(owner: Any, suffix: str) -> str:
    """An import, if the module can be imported and the name leads there."""
    module = getattr(owner, "__module__", None) or ""
    name = getattr(owner, "__qualname__", None) or ""
    module = {"torch._C._nn": "torch.nn.functional", "": "torch"}.get(module, module)
    if module == "__main__" or not name or "<" in name:
        return ""
    try:
        if pkgutil.resolve_name(f"{module}:{name}") is not owner:
            return ""
    except (ImportError, AttributeError, ValueError):
        return ""
    first = name.partition(".")[0]
    lines = [f"from {module} import {first}", f"candidate = {name}{suffix}"]
    file = getattr(sys.modules[module], "__file__", None)
    if file and "site-packages" not in file and module.partition(".")[0] != "torch":
        folder = Path(file).resolve().parents[module.count(".")]
        lines.insert(0, f"sys.path.insert(0, {str(folder)!r})")
    return "\n".join(lines)


def _quoted(owner: Any, suffix: str) -> str:
    """The source itself, after all that it uses of the module it stands in."""
    if not (inspect.isclass(owner) or inspect.isfunction(owner)):
        return ""  # a function with a backward, of JAX's, is more than its source
    parts = [owner, *vars(owner).values()] if inspect.isclass(owner) else [owner]
    plain = (getattr(part, "__func__", part) for part in parts)  # of a staticmethod
    if any(getattr(part, "__closure__", None) for part in plain):
        return ""
    known, name = dict[str, str](), owner.__name__
    _define(name, owner, known)
    text = "\n\n".join(filter(None, known.values()))
    return f"{text}\n\ncandidate = {name}{suffix}" if known[name] else ""


def _define(name: str, value: Any, known: dict[str, str]) -> None:
    """Add the definition of a name to those known, after those that it uses."""
    known[name] = said = ""
    with contextlib.suppress(Exception):  # of no value but these is there a definition
        if inspect.ismodule(value):
            said = f"import {value.__name__} as {name}"
        elif imported := _imported(value, ""):
            said = imported.replace("candidate =", f"{name} =")
        elif inspect.isclass(value) or inspect.isfunction(value):
            source = textwrap.dedent(inspect.getsource(value))
            home = vars(sys.modules[value.__module__])
            for one in re.findall(r"[^\W\d]\w*", source):
                if one in home and one not in known:
                    _define(one, home[one], known)
            starts = ("class", "def", "@") if value.__name__.isidentifier() else name
            said = source if source.startswith(starts) else ""
        else:
            said = f"{name} = {ast.literal_eval(repr(value))!r}"
    del known[name]
    known[name] = said
