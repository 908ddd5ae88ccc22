"""Files of `gradwatch init`, about an example or a function of the caller's own."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.metadata
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from gradwatch.harness.project.documents import replace_file

_PACKAGES = ("numpy", "torch")  # whose versions a history belongs to
_SIZES = ("small", "middle", "large")


class NotUsable(Exception):
    """`module:name` names nothing that can be judged; the message says why."""


@dataclass(frozen=True)
class Subject:
    """The operation of the first page.

    `import_line` and `call` are how a test calls it on tensors; `formula` is the body
    of the page's formula, and `measures` the project's file or folder that holds it.
    """

    name: str
    title: str
    inputs: tuple[str, ...]
    formula: str
    implementation: str
    import_line: str
    call: str
    measures: str = ""


def example() -> Subject:
    """Return a page to start from: SiLU, with a backward by hand."""
    return Subject(
        "silu",
        "SiLU of each element: y = x s(x), where s is the logistic function.",
        ("x",),
        "    return x * xp.sigmoid(x)",
        _filled("example.txt"),
        "from torch.nn.functional import silu",
        "silu",
    )


def subject(wanted: str, root: Path) -> Subject:
    """Return the subject that `module:name` is: a function, or an autograd.Function.

    Raises:
        NotUsable: It cannot be imported, or its inputs have no names.
    """
    module, _, attribute = wanted.partition(":")
    thing = _import(module, attribute, root)
    forward = getattr(thing, "forward", None) if inspect.isclass(thing) else None
    call = f"{attribute}.apply" if forward else attribute
    inputs = _inputs(forward or thing, skip=1 if forward else 0)
    if not inputs:
        raise NotUsable(f"{wanted} takes no tensor by position")
    own = {"module": module, "attribute": attribute, "call": call}
    return Subject(
        name=re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", attribute).lower(),
        title=f"{attribute} of {module}, and whether its gradient is right.",
        inputs=inputs,
        formula=_formula(forward or thing, attribute),
        implementation=_filled("own.txt", arguments=", ".join(inputs), **own),
        import_line=f"from {module} import {attribute}",
        call=call,
        measures=_place(sys.modules[module], root),
    )


def _import(module: str, attribute: str, root: Path) -> Any:
    if not module or not attribute.isidentifier():
        raise NotUsable(f"write it as module:name, not {module}:{attribute}")
    sys.path[:0] = [str(root), str(root / "src")]
    try:
        thing = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise NotUsable(f"{module} cannot be imported: {error}") from None
    except AttributeError:
        raise NotUsable(f"{module} has no {attribute}") from None
    if not callable(thing):
        raise NotUsable(f"{module}:{attribute} cannot be called")
    return thing


def _inputs(function: Any, skip: int) -> tuple[str, ...]:
    """Return the parameters without a default: those of a forward come after ctx."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[skip:]
    except (ValueError, TypeError):
        return ("x",)  # a builtin that does not tell
    needed = (p for p in parameters if p.default is p.empty and p.kind <= 1)
    return tuple(p.name for p in needed)


def _place(module: Any, root: Path) -> str:
    """Return the file or package of a module, seen from the root; "" outside of it."""
    place = Path(getattr(module, "__file__", None) or "/").resolve()
    while (place.parent / "__init__.py").exists():
        place = place.parent
    return str(place.relative_to(root)) if place.is_relative_to(root) else ""


# The formula ----------------------------------------------------------------------


def _formula(function: Any, name: str) -> str:
    """Return the function's own text in array-API names, else a place to write it."""
    unknown = f'raise NotImplementedError("write here what {name} computes, with xp")'
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        assert isinstance(node, ast.FunctionDef)
    except (OSError, TypeError, ValueError, SyntaxError, AssertionError):
        return textwrap.indent(unknown, "    ")
    body = [_Renamed().visit(line) for line in node.body if not _is_aside(line)]
    said = ["# Taken from your forward: is this what it should compute?"]
    for name in sorted({n.id for n in ast.walk(node) if isinstance(n, ast.Name)}):
        value = getattr(function, "__globals__", {}).get(name)
        if isinstance(value, (bool, int, float)):  # a constant of the module
            said.append(f"{name} = {value!r}")
    return textwrap.indent("\n".join([*said, *map(ast.unparse, body)]), "    ")


def _is_aside(line: ast.stmt) -> bool:
    """Return whether a line is a docstring, or keeps something on ctx."""
    names = {n.id for n in ast.walk(line) if isinstance(n, ast.Name)}
    quoted = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
    return quoted or "ctx" in names


class _Renamed(ast.NodeTransformer):
    """torch.exp(x) is xp.exp(x)."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("xp", node.ctx) if node.id in ("torch", "F") else node


# Files ----------------------------------------------------------------------------


def files(about: Subject, root: Path) -> Iterator[tuple[str, str]]:
    """Yield names and contents of all files that a project starts with."""
    arguments = ", ".join(about.inputs)
    fields = {**vars(about), "inputs": " ".join(about.inputs), "arguments": arguments}
    fields["implementation"] = about.implementation.rstrip()
    for size, shape in zip(_SIZES, ("(7,)", "(3, 8)", "(64, 1000)"), strict=True):
        fields[size] = ", ".join(f"{name}={shape}" for name in about.inputs)
    tests = "tests/" if (root / "tests").is_dir() else ""
    yield f"gradwatch_ops/{about.name}.py", _filled("page.txt", **fields)
    yield f"{tests}test_gradient_of_{about.name}.py", _filled("test.txt", **fields)
    yield ".github/workflows/gradients.yml", _filled("workflow.txt")
    versions = {name: _version(name) for name in _PACKAGES}
    pairs = (
        f'"{name}": ["{version}"]' for name, version in versions.items() if version
    )
    python = json.dumps("{}.{}".format(*sys.version_info))
    about_asv = {"python": python, "requirements": ", ".join(pairs)}
    text = _filled("asv.txt", project=json.dumps(root.name), **about_asv)
    yield "asv.conf.json", text


def _version(package: str) -> str:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package).partition("+")[0]
    return ""


def write(about: Subject, root: Path) -> Iterator[tuple[str, str]]:
    """Write each file that is not there: its name; "written", "added to" or "kept"."""
    for name, content in files(about, root):
        if (root / name).exists():
            yield name, "kept"
        else:
            replace_file(root / name, content)
            yield name, "written"
    measures = json.dumps(about.measures) if about.measures else ""
    table = _filled("table.txt", measures=measures)
    for name, text, sign in (
        ("pyproject.toml", table, "[tool.gradwatch]"),
        (".gitignore", _filled("ignored.txt"), "/.asv/"),
    ):
        yield name, _append(root / name, text, sign)


def _append(file: Path, text: str, sign: str) -> str:
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    if sign in before.splitlines():
        return "kept"
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    replace_file(file, f"{before}{gap}{text}")
    return "added to" if before else "written"


def _filled(template: str, /, **fields: Any) -> str:
    """Return a template's text with the fields in it; other signs stay as they are."""
    text = (Path(__file__).parent / "_templates" / template).read_text("utf-8")
    return Template(text).safe_substitute(fields)
