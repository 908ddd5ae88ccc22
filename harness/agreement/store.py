"""Writes findings as plain scripts, saves them with an index, replays and names them.

A script has the framework's own call, the exact answer and the allowed errors as
literals, and exits with 1 while the defect is there. A folder of findings holds a
script for each defect and `index.json`, with a line for each site that it reproduces.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from msgspec import structs

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.radii import Truth
from gradwatch.harness.judging.reference import Reference
from gradwatch.harness.project import documents
from gradwatch.harness.project.paths import INSTALLED, PROJECT, ROOT, SOURCE, alone
from gradwatch.harness.project.records import (
    FUZZ,
    AgreeRecord,
    Environment,
    FindingRecord,
    FuzzSummary,
)
from gradwatch.harness.project.requested import dialect_of
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.project.verdicts import DEATHS
from gradwatch.harness.workers.arrays import numbers_in, values_of
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.harness.workers.lifetime import with_this_process
from gradwatch.impls import graph
from gradwatch.impls.backends._functional import COMPOSED
from gradwatch.impls.backends._torchlike_names import ArrayNames
from gradwatch.impls.catalogue import framework_of
from gradwatch.impls.contract import Problem, Unsupported, as_tuple

TORCH_LIKE = ("torch", "oneflow")
WIDTH = 88  # characters of a line: up to here a call used once is nested in another


class Unwritten(Exception):
    """The function needs more than shapes: it is no straight line of calls."""


class Tape:
    """The calls so far, each with the name of its result."""

    def __init__(self) -> None:
        self.lines: dict[str, str] = {}

    def add(self, code: str, value: Any = None) -> Noted:
        """Note a call."""
        name = f"t{len(self.lines) + 1}"
        self.lines[name] = code
        return Noted(self, name, value)

    def written(self, results: Mapping[str, Any]) -> list[str]:
        """The code that assigns the results; a value used once is written in place."""
        lines = dict(self.lines)
        for target, result in results.items():
            lines[target] = _code(result)
        for name in self.lines:
            used = re.compile(rf"\b{name}\b")
            users = [n for n in lines if used.search(lines[n])]
            if len(users) == 1 and len(used.findall(lines[users[0]])) == 1:
                inner = f"({lines[name]})".replace("\\", r"\\")
                whole = used.sub(inner, lines[users[0]])
                whole = ast.unparse(ast.parse(whole))
                if len(f"    {users[0]} = {whole}") <= WIDTH or whole == lines[name]:
                    lines[users[0]] = whole
                    del lines[name]
            elif not users:
                del lines[name]
        return [f"{n} = {ast.unparse(ast.parse(code))}" for n, code in lines.items()]


class Noted:
    """A stand-in for a tensor or a name of the framework: code, and a known value."""

    def __init__(self, tape: Tape, code: str, value: Any = None) -> None:
        self._tape, self._code, self._value = tape, code, value

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("shape", "ndim", "size", "numel"):
            if self._value is None:
                raise Unwritten(f"{self._code}.{name}")
            known = getattr(self._value, "size" if name == "numel" else name)
            return (lambda: known) if name == "numel" else known
        value = getattr(self._value, name, None)
        return Noted(self._tape, f"{self._code}.{name}", value)

    def __call__(self, *args: Any, **options: Any) -> Noted:
        """Note the call."""
        given = [*map(_code, args), *(f"{k}={_code(v)}" for k, v in options.items())]
        value = _computed(self._value, args, options) if self._value else None
        return self._tape.add(f"{self._code}({', '.join(given)})", value)

    def __getitem__(self, index: Any) -> Noted:
        shown = ", ".join(map(_code, index if isinstance(index, tuple) else (index,)))
        value = _computed(lambda v, i: v[i], (self, index))
        return self._tape.add(f"{self._code}[{shown}]", value)

    def __iter__(self) -> Iterator[Any]:
        raise Unwritten(f"the parts of {self._code}")

    def __bool__(self) -> bool:
        raise Unwritten(f"whether {self._code}")

    def __len__(self) -> int:
        return int(self.shape[0])

    __hash__ = None  # type: ignore[assignment]  # a comparison is a call, too


def _operator(method: str, form: str) -> Callable[..., Noted]:
    def note(self: Noted, *others: Any) -> Noted:
        code = form.format(f"({self._code})", *(f"({_code(o)})" for o in others))
        value = _computed(lambda v, *o: getattr(v, method)(*o), (self, *others))
        return self._tape.add(code, value)

    return note


_TWO = "add + sub - mul * truediv / pow ** matmul @ floordiv // mod % and & or |"
_COMPARED = "lt < le <= gt > ge >= eq == ne !="
for _signs, _forms in (
    (_TWO, {"__{}__": "{{}} {} {{}}", "__r{}__": "{{1}} {} {{0}}"}),
    (_COMPARED, {"__{}__": "{{}} {} {{}}"}),
    ("neg - invert ~", {"__{}__": "{}{{}}"}),
):
    for _name, _sign in zip(_signs.split()[::2], _signs.split()[1::2], strict=True):
        for _method, _form in _forms.items():
            _named = _method.format(_name)
            setattr(Noted, _named, _operator(_named, _form.format(_sign)))


def _code(value: Any) -> str:
    """An argument as an expression."""
    if isinstance(value, Noted):
        return value._code
    if isinstance(value, (tuple, list)):
        inner = "".join(f"{_code(item)}, " for item in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if isinstance(value, slice):
        ends = ("" if e is None else _code(e) for e in (value.start, value.stop))
        return ":".join(ends) + (f":{value.step}" if value.step else "")
    if isinstance(value, np.ndarray):
        return f"np.array({value.tolist()})"
    if isinstance(value, np.generic):
        value = value.item()
    return "..." if value is Ellipsis else repr(value)


def _computed(function: Any, args: Any, options: Any = None) -> Any:
    """The value of a call by the graph engine; None where it cannot compute one."""
    try:
        return function(*_plain(args), **_plain(options or {}))
    except (Unwritten, AttributeError, TypeError, NotImplementedError):
        return None


def _plain(value: Any) -> Any:
    if isinstance(value, Noted):
        if value._value is None:
            raise Unwritten(value._code)
        return value._value
    if isinstance(value, (tuple, list)):
        return type(value)(map(_plain, value))
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


class Names:
    """The functions of a formula: noted in a framework's names, computed by graph's."""

    def __init__(self, tape: Tape, framework: str) -> None:
        self._tape, self._framework = tape, framework
        if framework in TORCH_LIKE:
            self._torch = ArrayNames(Noted(tape, framework))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            noted = self._noted(name, args, options)
            if isinstance(noted, Noted) and noted._value is None:
                if name == "pad":  # NumPy's name for the graph's "value"
                    options = {"value": options.get("constant_values", 0.0)}
                noted._value = _computed(getattr(graph, name, None), args, options)
            return noted

        return call

    def _noted(self, name: str, args: Any, options: Any) -> Any:
        if self._framework in TORCH_LIKE:
            if name == "where" and self._framework == "torch":
                return self._torch.F.where(*args)
            return getattr(self._torch, name)(*args, **options)
        names = traits_of(self._framework).names
        if name in COMPOSED and name not in names:
            return COMPOSED[name](self, *args, **options)
        if self._framework == "paddle":
            args, options = _for_paddle(self._tape, name, args, options)
            if name == "stop_gradient":
                return args[0].detach()
            if name == "pad":
                name = "nn.functional.pad"
        full = names.get(name, f"{names['']}.{name}")
        return Noted(self._tape, full)(*args, **options)


def _for_paddle(tape: Tape, name: str, args: Any, options: Any) -> Any:
    """The arguments of the array API as Paddle takes them."""
    if "keepdims" in options:
        options = dict(options)
        options["keepdim"] = options.pop("keepdims")
    if isinstance(options.get("axis"), tuple):
        options = {**options, "axis": list(options["axis"])}
    if name in ("maximum", "where"):
        *condition, a, b = args
        like = next(x for x in (a, b) if isinstance(x, Noted))
        full = Noted(tape, "paddle.to_tensor")
        a, b = (x if isinstance(x, Noted) else full(x, like.dtype) for x in (a, b))
        args = (*condition, a, b)
    if name == "pad":
        x, widths, how = args
        return (x, list(sum(widths, ())), how, options["constant_values"]), {}
    return args, options


def calls(problem: Problem, framework: str, dialect: str) -> list[str]:
    """The lines of code that compute the outputs of a problem.

    For the dialect "custom", the gradients as well.

    Raises:
        Unwritten: The page needs more than shapes, or is no call of the framework's.
    """
    op, tape = problem.op, Tape()
    formula = dialect == "formula"
    known = {n: graph.variable(a) if formula else a for n, a in problem.inputs.items()}
    tensors = {name: Noted(tape, name, value) for name, value in known.items()}
    arguments = problem.arguments(tensors)
    try:
        said = op.said(dialect, framework)
        if dialect not in ("formula", "autograd") and framework not in TORCH_LIKE:
            raise Unwritten(f"{dialect} of {framework} is the project's own code")
        if dialect == "custom":
            context = SimpleNamespace(saved_tensors=())
            context.mark_non_differentiable = lambda *tensors: None
            context.save_for_backward = lambda *tensors: setattr(
                context, "saved_tensors", tensors
            )
            y = as_tuple(said.forward(context, *arguments, **problem.attributes))
            dys = (
                None if dy is None else Noted(tape, f"d{name}", dy)
                for name, dy in zip(op.outputs, problem.cotangents, strict=True)
            )
            dx = as_tuple(said.backward(context, *dys, **problem.attributes))
            gradients = zip((f"d{name}" for name in op.inputs), dx, strict=False)
            named = dict(zip(op.outputs, y, strict=False))
            named |= {name: g for name, g in gradients if g is not None}
            return tape.written(named)
        module = Noted(tape, {"tensorflow": "tf"}.get(framework, framework))
        first = Names(tape, framework) if formula else module
        result = said(first, *arguments, **problem.attributes)
    except (TypeError, ValueError, LookupError, AttributeError, Unsupported) as error:
        raise Unwritten(str(error)) from error
    names = (*op.outputs, *op.state) if formula else op.outputs
    if isinstance(result, Noted):
        result = {", ".join(names): result}
    else:
        result = dict(zip(names, result, strict=False))
    lines = tape.written(result)
    if framework == "mlx":  # it takes no indices of NumPy's
        lines = [line.replace("np.array(", "mx.array(") for line in lines]
    return lines


FOLDER = ROOT / "results" / "findings"

LATEST = ROOT / "results" / "latest" / "findings"  # where new ones are written
INDEX = "index.json"
WAIT = 60.0  # seconds for another run that is writing its findings


def save(finding: FindingRecord, text: str, folder: Path = FOLDER) -> Path:
    """Write a finding's script and its line in the index; return the script's file.

    It replaces a finding of the same site, unless that one is smaller.
    """
    with alone(folder / ".lock", "writing findings", WAIT):
        by_id = {one.id: one for one in load(folder)[0]}
        before = by_id.pop(finding.id, None)
        if before and before.elements < finding.elements:
            return folder / before.script
        record = finding.record
        framework, _, flavour = record.backend.partition("_")
        parts = record.op, framework, record.verdict, finding.place, flavour
        script = f"{'-'.join(filter(None, parts))}.py"
        if before and before.script not in {f.script for f in by_id.values()}:
            script = before.script
        documents.replace_file(folder / script, text)
        by_id[finding.id] = structs.replace(finding, script=script)
        records = [by_id[name] for name in sorted(by_id)]
        summary = FuzzSummary(findings=len(records))
        content = documents.document(records, summary, Environment())
        documents.replace_file(folder / INDEX, documents.dumps(content) + "\n")
    return folder / script


def load(folder: Path = FOLDER) -> tuple[list[FindingRecord], list[str]]:
    """All findings of a folder, by id; none, and why, if its index cannot be read."""
    records, troubles = documents.kept(folder / INDEX, FUZZ)
    return records, [*map(str, troubles)]


def replay(finding: FindingRecord, folder: Path = FOLDER) -> tuple[str, str]:
    """Run a finding's script: "holds", "gone" or "not run", and what it printed."""
    interpreter = interpreter_of(finding.record.framework)
    if interpreter.why_missing:
        return "not run", interpreter.why_missing
    paths = [*([] if INSTALLED else [SOURCE]), *PROJECT.paths(ROOT)]
    done = subprocess.run(
        [str(interpreter.python), str(folder / finding.script)],
        capture_output=True,
        text=True,
        timeout=300,
        preexec_fn=with_this_process(),
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "GLOG_minloglevel": "2",
        },
    )
    raised = "Traceback" in done.stderr and finding.record.verdict not in DEATHS
    state = {0: "gone", 1: "holds"}.get(done.returncode, "not run")
    lacks = "ModuleNotFoundError" in done.stderr
    if raised and (lacks or finding.record.verdict != "error"):
        state = "not run"  # the script itself has failed
    output = (done.stderr if raised else done.stdout).strip().splitlines()
    return state, output[-1] if output else ""


# As text --------------------------------------------------------------------------


def headline(finding: FindingRecord) -> str:
    """A title such as "OneFlow 0.9.0: batch_norm gives wrong y in float32"."""
    record = finding.record
    version = record.framework_version.partition("+")[0]
    title = traits_of(record.framework).title or record.framework
    return f"{title} {version}: {defect(finding)}"


def defect(finding: FindingRecord) -> str:
    """The defect in a phrase, such as "batch_norm gives wrong y in float32"."""
    record = finding.record
    op, tensor, dtype = record.op, record.tensor, record.dtype
    what = {
        "crash": f"{op} kills the process",
        "timeout": f"{op} does not return",
        "error": f"{op} raises on a legal input",
        "malformed": f"{op} gives malformed {tensor}",
        "nonfinite": f"{op} gives {tensor} that is not finite, in {dtype}",
    }.get(record.verdict, f"{op} gives wrong {tensor}")
    if record.radius and record.verdict == "disagree":
        what += f" in {dtype}"
    return what


def details(record: AgreeRecord) -> str:
    """A line of a docstring: exact value and error, or the exception."""
    if record.verdict in (*DEATHS, "error", "malformed") or record.tensor == "all":
        return record.message
    error = f"{record.tensor}{list(record.worst_index)}: exact {record.expected!r}"
    if record.got is not None and record.radius and record.ratio is not None:
        error += f", {record.ratio:.3g} rounding radii off"
        error += f" ({record.limit:.3g} are allowed)"
    return error


# Scripts ----------------------------------------------------------------------------


@cache
def template(name: str) -> Any:
    """The template of a script, from the folder `templates`."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader(str(__package__)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["repr"] = repr
    return environment.get_template(name)


def repro(
    trial: Trial,
    backend: str,
    record: AgreeRecord,
    headline: str,
    right: Reference | None = None,
    *,
    about: str = "",
) -> str:
    """The text of a script that exits 1 while the defect is there, 0 when it is gone.

    `right` are the exact answers, None if the op's formula refuses the input; `about`
    follows the headline in the docstring.
    """
    problem, op, lines = trial.problem, trial.problem.op, list[str]()
    framework, dialect = framework_of(backend), dialect_of(backend)
    with suppress(Unwritten):  # else the project's own code is called
        lines = calls(problem, framework, dialect) if framework != "numpy" else []
    whole = record.tensor not in op.outputs or dialect == "custom"
    dys = zip(op.outputs, problem.cotangents, strict=True)
    given = {**problem.inputs, **{f"d{n}": dy for n, dy in dys if dy is not None}}
    tensors = []
    for name, array in given.items():
        is_input = name in problem.inputs
        laid = trial.layout if is_input else trial.cotangent_layout
        kind = problem.dtype if lines and array.dtype.kind == "f" else array.dtype.name
        if whole or is_input:
            wanted = whole and name in problem.wanted
            tensors.append((name, values_of(array, laid), kind, wanted))
    ways = _ways(right, record)
    paragraphs = [textwrap.fill(p, 88) for p in about.splitlines()]
    docstring = "\n".join([textwrap.fill(f"{headline}.", 85), "", *paragraphs]).strip()
    quotes = '\n"""' if "\n" in docstring else '"""'
    docstring = '"""' + docstring.replace("\\", "\\\\") + quotes
    text: str = template("finding.py.j2").render(
        trial=trial,
        problem=problem,
        record=record,
        docstring=docstring,
        framework=framework,
        flavour=backend.partition("_")[2],
        backend=backend,
        lines=lines,
        tensors=tensors,
        cotangents=", ".join(
            "None" if a is None else f"np.array({values_of(a)}, {a.dtype.name!r})"
            for a in problem.cotangents
        ),
        whole=whole,
        custom=dialect == "custom",
        fresh=problem.empty and ways and framework == "oneflow",
        dies=record.verdict in DEATHS,
        ways=ways,
        uses=lambda name, code: re.search(rf"(?<![.\w]){name}\b", code),
    )
    return text


def _ways(right: Reference | None, record: AgreeRecord) -> list[dict[str, Any]]:
    """The exact value and allowed error of tensors, for each way of breaking ties.

    All tensors that depend on the tie are included: a maximum that passes its cotangent
    on to both inputs is wrong, although each gradient is right by one convention.
    """
    tensor = record.tensor
    if right is None or tensor not in right.graphs["first"]:  # "all", of a crash
        return []
    ways = [right.radii(way).bounds for way in right.rivals(record.convention)]
    names = [n for n in ways[0] if n == tensor or n in right.tied]
    limit = record.limit if record.limit is not None else right.limit
    found = [{n: _right(truths[n], limit) for n in names} for truths in ways]
    return list({str(way): way for way in found}.values())


def _right(truth: Truth, limit: float) -> dict[str, Any]:
    """The exact value of a tensor, the allowed error, and whether all is `known`.

    An expected infinity has to be exact; where nothing is known, any value is right.
    Allowed errors have three digits, and are one number where they are the same.
    """
    exact, allowed = truth.value, limit * truth.radius
    if exact.dtype.kind not in "biu":
        with np.errstate(all="ignore"):  # of extended precision
            exact = exact.astype(np.float64)
            exact = np.where(truth.infinite, np.copysign(np.inf, exact), exact)
            allowed = np.where(truth.infinite, 0.0, allowed)
        known = ~np.isnan(exact)
        exact, allowed = np.where(known, exact, 0.0), np.where(known, allowed, np.inf)
    short = np.array([float(f"{a:.3g}") for a in allowed.flat] or [0.0])
    shown = f"np.array({values_of(short.reshape(allowed.shape))})"
    if len(set(short.tolist())) == 1:
        shown = numbers_in(short[0])
    return {
        "exact": f"np.array({values_of(exact)})",
        "allowed": shown,
        "shape": exact.shape,
        "known": bool(np.isfinite(allowed).all()),
    }
