"""What `gradwatch init` writes, and what it makes of a function that it is given."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import json
import platform
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from gradwatch.harness.project.documents import replace_file

_TEMPLATES = Path(__file__).parent / "_templates"
_PACKAGES = ("numpy", "torch")  # whose versions a history belongs to


class NotUsable(Exception):
    """`module:name` names nothing that can be judged; the message says why."""


@dataclass(frozen=True)
class Subject:
    """What the first page is about.

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
    """A page to start from: SiLU, with a backward by hand."""
    return Subject(
        "silu",
        "SiLU of each element: y = x s(x), where s is the logistic function.",
        ("x",),
        "    return x * xp.sigmoid(x)",
        _text("example.txt"),
        "from torch.nn.functional import silu",
        "silu",
    )


def subject(wanted: str, root: Path) -> Subject:
    """The subject that `module:name` is: a function, or an autograd.Function.

    Raises:
        NotUsable: It cannot be imported, or its inputs have no names.
    """
    module, _, attribute = wanted.partition(":")
    thing = _found(module, attribute, root)
    forward = getattr(thing, "forward", None) if inspect.isclass(thing) else None
    call = f"{attribute}.apply" if forward else attribute
    inputs = _inputs(forward or thing, skip=1 if forward else 0)
    if not inputs:
        raise NotUsable(f"{wanted} takes no tensor by position")
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", attribute).lower().replace(".", "_")
    own = Template(_text("own.txt")).substitute(
        module=module, attribute=attribute, call=call, arguments=", ".join(inputs)
    )
    import_line = f"from {module} import {attribute}"
    formula = _formula(forward or thing, attribute)
    title = f"What {attribute} of {module} computes, and whether its gradient is right."
    measures = _place(sys.modules[module], root)
    return Subject(name, title, inputs, formula, own, import_line, call, measures)


def _found(module: str, attribute: str, root: Path) -> Any:
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
    """Parameters without a default: those of a forward come after ctx."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[skip:]
    except (ValueError, TypeError):
        return ("x",)  # a builtin that does not tell
    needed = (p for p in parameters if p.default is p.empty and p.kind <= 1)
    return tuple(p.name for p in needed)


def _place(module: Any, root: Path) -> str:
    """The file or the package of a module, as seen from the root; "" outside of it."""
    file = Path(getattr(module, "__file__", None) or "/").resolve()
    package = file.parent
    while (package.parent / "__init__.py").exists():
        package = package.parent
    place = package if (package / "__init__.py").exists() else file
    return str(place.relative_to(root)) if place.is_relative_to(root) else ""


# The formula ----------------------------------------------------------------------


def _formula(function: Any, name: str) -> str:
    """The function's own text in array-API names, else a place to write it."""
    unknown = f'raise NotImplementedError("write here what {name} computes, with xp")'
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
        assert isinstance(node, ast.FunctionDef)
        body = [_Renamed().visit(line) for line in node.body if not _is_aside(line)]
        text = ast.unparse(ast.Module(body, []))
    except (OSError, TypeError, ValueError, SyntaxError, AssertionError):
        text = ""
    said = "# Taken from your forward: is this what it should compute?\n"
    return textwrap.indent(said + text if text else unknown, "    ")


def _is_aside(line: ast.stmt) -> bool:
    """A docstring, and what a forward keeps on ctx."""
    names = {n.id for n in ast.walk(line) if isinstance(n, ast.Name)}
    quoted = isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant)
    return quoted or "ctx" in names


class _Renamed(ast.NodeTransformer):
    """torch.exp(x) is xp.exp(x)."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name("xp", node.ctx) if node.id in ("torch", "F") else node


# Files ----------------------------------------------------------------------------


def files(about: Subject, root: Path) -> Iterator[tuple[str, str]]:
    """Names and contents of all files that a project starts with, as seen from it."""
    tests = "tests/" if (root / "tests").is_dir() else ""
    yield f"gradwatch_ops/{about.name}.py", _page(about)
    yield f"{tests}test_gradient_of_{about.name}.py", _test(about)
    yield ".github/workflows/gradients.yml", _text("workflow.txt")
    yield "asv.conf.json", _asv(root)


def _page(about: Subject) -> str:
    shapes = {"small": "(7,)", "middle": "(3, 8)", "large": "(64, 1000)"}
    given = {
        size: ", ".join(f"{name}={shape}" for name in about.inputs)
        for size, shape in shapes.items()
    }
    return Template(_text("page.txt")).substitute(
        title=about.title,
        name=about.name,
        inputs=" ".join(about.inputs),
        arguments=", ".join(about.inputs),
        formula=about.formula,
        implementation=about.implementation.rstrip(),
        **given,
    )


def _test(about: Subject) -> str:
    return Template(_text("test.txt")).substitute(
        name=about.name, import_line=about.import_line, call=about.call
    )


def _asv(root: Path) -> str:
    major, minor, _ = platform.python_version_tuple()
    versions = {name: _version(name) for name in _PACKAGES}
    pairs = [f'"{name}": ["{v}"]' for name, v in versions.items() if v]
    return Template(_text("asv.txt")).substitute(
        project=json.dumps(root.name),
        python=json.dumps(f"{major}.{minor}"),
        requirements=", ".join(pairs),
    )


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return ""


def write(about: Subject, root: Path) -> Iterator[tuple[str, str]]:
    """Write what is not there yet: each name, and "written", "added to" or "kept"."""
    for name, content in files(about, root):
        if (root / name).exists():
            yield name, "kept"
        else:
            replace_file(root / name, content)
            yield name, "written"
    measures = json.dumps(about.measures) if about.measures else ""
    table = Template(_text("table.txt")).substitute(measures=measures)
    yield (
        "pyproject.toml",
        _appended(root / "pyproject.toml", table, "[tool.gradwatch]"),
    )
    yield ".gitignore", _appended(root / ".gitignore", _text("ignored.txt"), "/.asv/")


def _appended(file: Path, text: str, sign: str) -> str:
    before = file.read_text(encoding="utf-8") if file.exists() else ""
    if sign in before.splitlines():
        return "kept"
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    replace_file(file, f"{before}{gap}{text}")
    return "added to" if before else "written"


def _text(name: str) -> str:
    return (_TEMPLATES / name).read_text(encoding="utf-8")
