"""A finding as a script that needs only NumPy and the framework.

The code of the page is copied into it, with everything of the project that it calls.
The inputs, the exact answer and its rounding radii are literals in the script.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.reference import Reference, Truth
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.workers import arrays
from gradwatch.impls import catalogue, contract

Array = NDArray[Any]
Answer = tuple[str, str]  # exact value and rounding radius, as expressions

_HERE = Path(__file__).parent
_OURS = Path(contract.__file__).parent
_PACKAGE = f"{contract.__package__}."
_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(_HERE),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    undefined=jinja2.StrictUndefined,
)


def repro(
    trial: Trial,
    backend: str,
    record: AgreeRecord,
    headline: str,
    right: Reference | None = None,
) -> str:
    """The text of repro.py; it exits 1 while the defect is there, 0 when it is gone.

    `right` holds the exact answers; None if the op's formula refuses the input.
    """
    problem, framework = trial.problem, catalogue.framework_of(backend)
    dialect = _dialect(backend)
    said = problem.op.said(dialect, framework)
    helpers = list(_helpers(trial, backend, dialect, said.__name__))
    text = _ENVIRONMENT.get_template("repro.py.j2").render(
        headline=headline,
        functional=_functional(backend),
        impls=contract.__package__,
        framework=framework,
        dialect=dialect,
        compiled=backend.endswith("_compile"),
        said=said.__name__,
        imports=sorted({line for h in helpers for line in h.imports}, key=_order),
        helpers=list(dict.fromkeys(part for h in helpers for part in h.parts)),
        op=problem.op,
        inputs={n: literal(a, 8 + len(n)) for n, a in problem.inputs.items()},
        cotangents=["None" if a is None else literal(a, 4) for a in problem.cotangents],
        arguments=[problem.aliases.get(n, n) for n in problem.op.inputs],
        wanted=problem.wanted,
        attributes=dict(problem.attributes),
        dtype=problem.dtype,
        layouts=[_maker(name) for name in (trial.layout, trial.cotangent_layout)],
        empty=problem.empty,
        death=record.verdict in ("crash", "timeout"),
        answers=[] if right is None else list(_answers(right, record)),
        limit=record.limit,
    )
    return re.sub(r"\n{4,}", "\n\n\n", text)


def _order(line: str) -> tuple[bool, bool, str]:
    """The order of import lines: NumPy last, and `from` after `import`."""
    return "numpy" in line, line.startswith("from"), line


def _answers(right: Reference, record: AgreeRecord) -> Iterator[dict[str, Answer]]:
    """Exact value and radius of each tensor, for each right way of breaking ties.

    All tensors that depend on the tie are included: a maximum that passes its cotangent
    on to both inputs is wrong, although each gradient is right by one convention.
    """
    tensor, ways = record.tensor, list(right.truths.values())
    if tensor not in ways[0]:
        return
    names = [n for n in ways[0] if n == tensor or right.depends_on_ties(n)]
    if record.verdict == "convention":  # the finding is that it differs from "first"
        ways, names = ways[:1], [tensor]
    for truths in ways:
        yield {n: _answer(truths[n]) for n in names}


def _answer(truth: Truth) -> Answer:
    """Where an infinity is due, it is exact; where it is not known, all is right."""
    if truth.value.dtype.kind == "i":
        return literal(truth.value, 8), literal(truth.radius, 8)
    with np.errstate(over="ignore"):  # of extended precision
        exact = truth.value.astype(np.float64)
    exact = np.where(truth.infinite, np.copysign(np.inf, exact), exact)
    radius = np.where(np.isfinite(exact), truth.radius, np.inf)
    return literal(exact, 8), literal(np.where(truth.infinite, 0.0, radius), 8)


def _dialect(backend: str) -> str:
    """The dialect of a backend, from its name: torch_autograd."""
    flavour = backend.partition("_")[2]
    spoken = {"graph": "formula", "jit": "formula", "compile": "autograd"}
    return spoken.get(flavour, flavour)


# Numbers --------------------------------------------------------------------------


def literal(array: Array, indent: int = 0) -> str:
    """An expression that gives the same array, bit for bit."""
    shown = np.array2string(
        array,
        separator=", ",
        threshold=array.size + 1,
        max_line_width=80 - indent,
        prefix=" " * (indent + 9),
        formatter={"float_kind": str},  # the shortest that is read back the same,
    )
    if array.size == 0:
        return f"np.zeros({array.shape}, {array.dtype.name!r})"
    shown = re.sub(r"\n\s*\n", "\n", shown)
    return f"np.array({shown}, {json.dumps(array.dtype.name)})"


# Code -----------------------------------------------------------------------------


class Lifted:
    """The source texts of definitions, and the imports that they need."""

    def __init__(self, parts: Sequence[str], imports: Sequence[str]) -> None:
        self.parts, self.imports = parts, imports


def _functional(backend: str) -> bool:
    """Whether it differentiates functions: its adapter is then part of the script."""
    file = catalogue.backend_file(backend)
    door = re.search(r"backends\.(_\w+) import", file.read_text(encoding="utf-8"))
    if not door:
        return False
    text = (_OURS / "backends" / f"{door[1]}.py").read_text(encoding="utf-8")
    return "_functional" in text


def _helpers(trial: Trial, backend: str, dialect: str, said: str) -> Iterator[Lifted]:
    backends, framework = _OURS / "backends", catalogue.framework_of(backend)
    if framework == "oneflow":
        yield lifted(backends / "_oneflow.py", "preload_cuda_libraries")
    if _functional(backend):
        yield lifted(catalogue.backend_file(backend), "backend")
    elif framework != "numpy" and dialect in ("custom", "formula"):
        if dialect == "custom":
            yield lifted(backends / "_torchlike.py", "as_function")
        else:
            yield lifted(backends / "_torchlike_names.py", "ArrayNames")
    for name in dict.fromkeys((trial.layout, trial.cotangent_layout)):
        if name != "contiguous":
            yield lifted(Path(arrays.__file__), _maker(name))
    yield lifted(catalogue.op_page(trial.op), said)


def _maker(layout: str) -> str:
    """The name of the function that makes a memory layout."""
    return "np.array" if layout == "contiguous" else arrays.LAYOUTS[layout].__name__


def lifted(file: Path, name: str) -> Lifted:
    """A definition without the page's decorators, and all of the project that it calls.

    Raises:
        LookupError: The file does not define the name.
    """
    source = file.read_text(encoding="utf-8")
    top = list(_defined(ast.parse(source)))
    wanted = _needed(top, name)
    if not wanted:
        raise LookupError(f"{file.name} does not define {name}")
    parts = list[str]()
    imports = ["import numpy as np"]
    for key, node in top:
        if key not in wanted:
            continue
        module = getattr(node, "module", "") or ""
        if isinstance(node, ast.ImportFrom) and module.startswith(_PACKAGE):
            path = module.removeprefix(_PACKAGE).replace(".", "/")
            inner = lifted(_OURS / f"{path}.py", key)
            parts += inner.parts
            imports += inner.imports
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            imports.append(ast.unparse(node))
        else:
            parts.append(_without_page(source, node))
    return Lifted(parts, imports)


def _needed(top: Sequence[tuple[str, ast.stmt]], name: str) -> set[str]:
    """The names that a definition needs, its own included; empty if there is none."""
    uses: dict[str, list[str]] = {}
    for key, node in top:
        uses.setdefault(key, []).extend(_names(node))
    wanted, waiting = set[str](), [name]
    while waiting:
        current = waiting.pop()
        if current in uses and current not in wanted:
            wanted.add(current)
            waiting += uses[current]
    return wanted


def _defined(module: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """The names at the top of a module, and the statements that define them.

    A name has several where it is added to: NAMES |= {...}.
    """
    for node in module.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.name, node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign)) and isinstance(
            node.target, ast.Name
        ):
            yield node.target.id, node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                yield (alias.asname or alias.name).partition(".")[0], node


def _names(node: ast.AST) -> list[str]:
    """The names that the code uses; annotations do not count, since they never run."""
    if isinstance(node, ast.arg):
        return []
    names = [node.id] if isinstance(node, ast.Name) else []
    for key, value in ast.iter_fields(node):
        if key not in ("returns", "annotation"):
            for child in value if isinstance(value, list) else [value]:
                wanted = isinstance(child, ast.AST) and not _registers(child)
                names += _names(child) if wanted else []
    return names


def _registers(node: ast.AST) -> bool:
    """Whether it is a page's decorator, which enters a dialect in the page's op."""
    call = node.func if isinstance(node, ast.Call) else node
    owner = call.value if isinstance(call, ast.Attribute) else None
    return isinstance(owner, ast.Name) and owner.id == "op"


def _without_page(source: str, node: ast.stmt) -> str:
    """The text of a definition, without the decorators that belong to the page."""
    lines = source.splitlines()
    kept = [d for d in getattr(node, "decorator_list", []) if not _registers(d)]
    text = [f"@{ast.unparse(decorator)}" for decorator in kept]
    return "\n".join([*text, *lines[node.lineno - 1 : node.end_lineno]])
