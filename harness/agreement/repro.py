"""A finding as a plain script: the framework's own call, and the exact answer.

Inputs, exact values and allowed errors are literals in the script, which needs NumPy
and the framework alone. It exits with 1 while the defect is there.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.agreement.calls import WIDTH, Unwritten, calls
from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.reference import Reference, Truth
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.project.verdicts import DEATHS
from gradwatch.harness.workers.arrays import numbers_in, values_of
from gradwatch.impls.catalogue import framework_of
from gradwatch.impls.contract import Problem

Array = NDArray[Any]
Way = dict[str, tuple[Array, Array]]  # exact value and allowed error, by tensor


@dataclass(frozen=True)
class Idiom:
    """How a framework is written.

    `tensor` makes one of {values} in {dtype}, `variable` ends one that is
    differentiated; `backward` gives the gradients of the {call}, `array` reads one.
    """

    imports: str
    dtype: str
    tensor: str
    variable: str
    backward: str
    array: str


FUNCTION = "\ndef call({xs}):\n{indented}\n    return {ys}\n\n"
COMPILED = """\
@torch.compile(fullgraph=True, dynamic=False)
def call({inputs}):
{indented}
    return {outputs}

{outputs} = call({inputs})"""
TORCH = Idiom(
    "import numpy as np\nimport torch",
    "torch.{}",
    "torch.tensor({values}, dtype={dtype})",
    ", requires_grad=True)",
    "{call}\n[{dxs}] = torch.autograd.grad([{ys}], [{xs}], [{dys}])",
    "{}.detach().numpy()",
)
JAX = """\
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_enable_x64", True)"""
TENSORFLOW_NUMPY = """
import tensorflow.experimental.numpy as tnp

tnp.experimental_enable_numpy_behavior(dtype_conversion_mode="all")"""
IDIOMS = {
    "torch": TORCH,
    "oneflow": Idiom(*(s.replace("torch", "oneflow") for s in vars(TORCH).values())),
    "paddle": Idiom(
        "import numpy as np\nimport paddle",
        '"{}"',
        "paddle.to_tensor({values}, {dtype})",
        ", stop_gradient=False)",
        "{call}\n[{dxs}] = paddle.grad([{ys}], [{xs}], [{dys}], allow_unused=True)",
        "{}.numpy()",
    ),
    "tensorflow": Idiom(
        "import numpy as np\nimport tensorflow as tf" + TENSORFLOW_NUMPY,
        '"{}"',
        "tf.constant({values}, {dtype})",
        ")",
        "with tf.GradientTape() as tape:\n    tape.watch([{xs}])\n{indented}\n"
        "[{dxs}] = tape.gradient([{ys}], [{xs}], output_gradients=[{dys}])",
        "np.array({})",
    ),
    "jax": Idiom(
        JAX,
        '"{}"',
        "jnp.array({values}, {dtype})",
        ")",
        FUNCTION + "{y}, pull = jax.vjp(call, {xs})\n[{dxs}] = pull({dy})",
        "np.array({})",
    ),
    "autograd": Idiom(
        "import autograd.numpy as np\nfrom autograd import make_vjp",
        '"{}"',
        "np.array({values}, {dtype})",
        ")",
        FUNCTION + "pull, {y} = make_vjp(call, {places})({xs})\n[{dxs}] = pull({dy})",
        "{}",
    ),
    "mlx": Idiom(
        "import mlx.core as mx\nimport numpy as np\n\nmx.set_default_device(mx.cpu)",
        "mx.{}",
        "mx.array({values}, {dtype})",
        ")",
        FUNCTION + "[{ys}], [{dxs}] = mx.vjp(call, [{xs}], [{dys}])",
        "np.array({})",
    ),
}

#: The code of a page that is no plain call of a framework: the project's own.
OWN = """\
import numpy as np
from gradwatch.impls.catalogue import load_backend, load_op
from gradwatch.impls.contract import Problem"""

#: Other names that a call may use.
IMPORTS = {
    "special": "from autograd.scipy import special",
    "getval": "from autograd.tracer import getval",
    "inf": "from math import inf",
}

#: What kills a process is run in another one.
CHILD = """\
if len(sys.argv) == 1:  # the rest would kill this process: run it in a child
    child = subprocess.run([sys.executable, __file__, "child"], timeout=120)
    print("exit code:", child.returncode)  # negative: killed by that signal
    sys.exit(child.returncode < 0 or 2 * child.returncode)"""

#: Fresh memory may happen to hold the zeros that are due.
USED = """\
for size in range(1, 65):  # leave numbers in memory that is used again
    oneflow.ones(size).mul(3.0).numpy()"""


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

    Args:
        trial: The input.
        backend: The one that fails.
        record: How it fails.
        headline: The first line of the docstring.
        right: The exact answers; None if the op's formula refuses the input.
        about: More for the docstring.
    """
    problem, idiom = trial.problem, IDIOMS.get(framework_of(backend))
    dialect = dialect_of(backend)
    whole = record.tensor not in problem.op.outputs or dialect == "custom"
    ways = _ways(right, record)
    try:
        if idiom is None:
            raise Unwritten("NumPy is called by this project")
        lines = _call(problem, backend, dialect, whole, idiom)
        used = [USED] if problem.empty and ways and "oneflow" in backend else []
        body = [*_tensors(trial, idiom, whole), *used, *lines]
        imports, array = idiom.imports, idiom.array
        if record.tensor == "all":  # some frameworks compute what is read alone
            names = (*problem.op.outputs, *problem.derivatives)
            body.append(f"print([{array.format('t')} for t in ({', '.join(names)})])")
    except Unwritten:
        body, imports, array = _own(trial, backend), OWN, 'tensors["{}"]'
    if ways:
        body += _verdict(array, record, ways)
    parts = [_docstring(headline, about), "import sys", imports, "\n".join(body)]
    if record.verdict in DEATHS:
        parts[1] = "import subprocess\nimport sys"
        parts.insert(3, CHILD)
    return _with_imports("\n\n".join(parts) + "\n", imports)


def _with_imports(text: str, imports: str) -> str:
    """The script with the other imports that it needs, and no more."""
    for name, line in IMPORTS.items():
        if re.search(rf"(?<!\.)\b{name}\b", text.replace(imports, "")):
            text = text.replace(imports, f"{line}\n{imports}")
    for name, unused in (("np", "import numpy as np\n"), ("tnp", TENSORFLOW_NUMPY)):
        if not re.search(rf"(?<![.\w]){name}\.", text.replace(imports, "")):
            text = text.replace(unused, "")
    return text


def dialect_of(backend: str) -> str:
    """The dialect of a backend, from its name: torch_autograd."""
    flavour = backend.partition("_")[2]
    spoken = {"graph": "formula", "jit": "formula", "compile": "autograd"}
    return spoken.get(flavour, flavour)


def _docstring(headline: str, about: str) -> str:
    paragraphs = [textwrap.fill(p, 88) for p in about.splitlines()]
    text = "\n".join([textwrap.fill(f"{headline}.", 85), "", *paragraphs]).strip()
    quotes = '\n"""' if "\n" in text else '"""'
    return '"""' + text.replace("\\", "\\\\") + quotes


# The call -------------------------------------------------------------------------


def _call(
    problem: Problem, backend: str, dialect: str, whole: bool, idiom: Idiom
) -> list[str]:
    """The call in the framework's names, with its gradients if `whole`."""
    op, framework = problem.op, framework_of(backend)
    lines = calls(problem, framework, dialect)
    if dialect == "custom":  # forward and backward are written out
        return lines
    call, floating = "\n".join(lines), problem.differentiated
    names = {
        "call": call,
        "indented": textwrap.indent(call, "    "),
        "inputs": ", ".join(problem.inputs),
        "outputs": ", ".join(op.outputs),
        "xs": ", ".join(problem.wanted),
        "dxs": ", ".join(f"d{n}" for n in problem.wanted),
        "ys": ", ".join(floating),
        "dys": ", ".join(f"d{n}" for n in floating),
        "places": str(tuple(range(len(problem.wanted)))),
    }
    for one, several in (("y", "ys"), ("dy", "dys")):
        names[one] = names[several] if len(floating) == 1 else f"({names[several]})"
    backward = idiom.backward
    if backend.endswith("_jit"):
        backward = backward.replace("def", "@jax.jit\ndef", 1)
    if backend.endswith("_compile"):
        names["call"] = COMPILED.format(**names)
    text = (backward if whole else "{call}").format(**names)
    text = re.sub(r"(\w+) = (.*\n *)return \1$", r"return \2", text, flags=re.M)
    return re.sub(r"(return .*)\n\s+\n", r"\1\n\n", text).split("\n")


def _tensors(trial: Trial, idiom: Idiom, whole: bool) -> Iterator[str]:
    problem = trial.problem
    dys = zip(problem.op.outputs, problem.cotangents, strict=True)
    named = {f"d{n}": dy for n, dy in dys if dy is not None and whole}
    for name, array in {**problem.inputs, **named}.items():
        laid = trial.cotangent_layout if name in named else trial.layout
        own = array.dtype.name + "_" * ("mx" in idiom.dtype and array.dtype.kind == "b")
        kind = problem.dtype if array.dtype.kind == "f" else own
        dtype = idiom.dtype.format(kind)
        text = idiom.tensor.format(values=values_of(array, laid), dtype=dtype)
        wanted = whole and name in problem.wanted
        yield f"{name} = {text[:-1]}{idiom.variable if wanted else ')'}"


def _own(trial: Trial, backend: str) -> list[str]:
    """The calls of the project's own code, where a page does more than call."""
    problem = trial.problem
    inputs = [
        f"    {n!r}: np.array({values_of(a, trial.layout)}, {a.dtype.name!r}),"
        for n, a in problem.inputs.items()
    ]
    dys = (
        "None" if dy is None else f"np.array({values_of(dy)}, {dy.dtype.name!r})"
        for dy in problem.cotangents
    )
    rest = (dict(problem.attributes), dict(problem.aliases), problem.dtype)
    return [
        *("inputs = {", *inputs, "}"),
        f"cotangents = [{', '.join(dys)}]",
        f"rest = {rest!r}",
        f"problem = Problem(load_op({trial.op!r}), inputs, cotangents, *rest)",
        f"step = load_backend({backend!r}).prepare(problem)",
        *("step.forward()", "step.backward()", "tensors = step.read().tensors"),
    ]


# The verdict ----------------------------------------------------------------------


def _ways(right: Reference | None, record: AgreeRecord) -> list[Way]:
    """Exact value and allowed error of each tensor, for each way of breaking ties.

    All tensors that depend on the tie are included: a maximum that passes its cotangent
    on to both inputs is wrong, although each gradient is right by one convention.
    """
    tensor, ways = record.tensor, list(right.truths.values()) if right else [{}]
    if right is None or tensor not in ways[0]:  # "all", of a crash or an error
        return []
    names = [n for n in ways[0] if n == tensor or right.depends_on_ties(n)]
    limit = record.limit if record.limit is not None else right.limit
    found = [{n: _answer(truths[n], limit) for n in names} for truths in ways]
    return list({str(way): way for way in found}.values())


def _answer(truth: Truth, limit: float) -> tuple[Array, Array]:
    """Where an infinity is due, it is exact; where nothing is known, all is right."""
    if truth.value.dtype.kind in "biu":
        return truth.value, limit * truth.radius
    with np.errstate(all="ignore"):  # of extended precision
        exact = truth.value.astype(np.float64)
        exact = np.where(truth.infinite, np.copysign(np.inf, exact), exact)
        allowed = np.where(truth.infinite, 0.0, limit * truth.radius)
    known = ~np.isnan(exact)
    return np.where(known, exact, 0.0), np.where(known, allowed, np.inf)


def _verdict(array: str, record: AgreeRecord, ways: list[Way]) -> list[str]:
    """The lines that compare with the exact values, and end the script."""
    tensor = record.tensor
    if record.verdict == "malformed":
        shape = ways[0][tensor][0].shape
        lines = [f"got = {tensor} if {tensor} is None else tuple({tensor}.shape)"]
        lines.append(f'print("shape of {tensor}:", got, "exact:", {shape})')
        return [*lines, f"sys.exit(got != {shape})"]
    if len(ways) == len(ways[0]) == 1:
        exact, allowed = ways[0][tensor]
        names = ["got", "exact", "allowed"]
        values = [
            array.format(tensor),
            f"np.array({values_of(exact)})",
            _short(allowed),
        ]
        line = f"{', '.join(names)} = {', '.join(values)}"
        apart = [f"{n} = {v}" for n, v in zip(names, values, strict=True)]
        lines = [line] if len(line) <= WIDTH else apart
        lines.append(f'print(f"{tensor} = {{got}}, exact {{exact}}")')
        right = "(got == exact) | (abs(got - exact) <= allowed)"
        if np.isfinite(allowed).all():
            return [*lines, f"sys.exit(not np.all({right}))"]
        lines.append(f"right = {right} | (allowed == np.inf)")
        return [*lines, "sys.exit(not np.all(right))"]
    rows = []
    for way in ways:
        pairs = (
            f'"{n}": (np.array({values_of(e)}), {_short(a)})'
            for n, (e, a) in way.items()
        )
        rows.append(f"    {{{', '.join(pairs)}}},")
    got = ", ".join(f'"{n}": {array.format(n)}' for n in ways[0])
    return [
        f"got = {{{got}}}",
        "ways = [  # to break ties, each with exact values and allowed errors",
        *(*rows, "]", 'print(f"got {got}, exact and allowed {ways}")', "right = ["),
        "    all(np.all((got[n] == e) | (abs(got[n] - e) <= a)) for n, (e, a) in w)",
        *("    for w in map(dict.items, ways)", "]", "sys.exit(not any(right))"),
    ]


# Numbers --------------------------------------------------------------------------


def _short(allowed: Array) -> str:
    """Allowed errors to three digits; one number where they are the same."""
    short = np.array([float(f"{a:.3g}") for a in allowed.flat] or [0.0])
    one = len(set(short.tolist())) == 1
    return (
        numbers_in(short[0])
        if one
        else f"np.array({values_of(short.reshape(allowed.shape))})"
    )
