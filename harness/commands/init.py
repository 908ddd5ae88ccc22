"""`gradwatch init`: make a repository of your own ready, and judge its first op."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.metadata
import inspect
import itertools
import json
import os
import re
import subprocess
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import click

from gradwatch.harness.project.documents import replace_file
from gradwatch.harness.project.paths import VARIABLE
from gradwatch.harness.workers.lifetime import with_this_process
from gradwatch.impls.graph.hints import WRITTEN_AS


@click.command()
@click.argument("wanted", metavar="[MODULE:NAME]...", nargs=-1)
def command(wanted: tuple[str, ...]) -> int:
    r"""Make a repository of your own ready, and judge its first op.

    Writes a table into pyproject.toml, one op page, one test, one benchmark, a workflow
    for the night, asv.conf.json and lines of .gitignore; says what was written, and
    never overwrites. With MODULE:NAME of a function or an autograd.Function of yours
    the page and the test are about that; its formula is taken from its own text where
    that can be read, and is yours to check. Ends with the first verdict. Without a
    name, in a repository with several kernels, it lists them.

    \b
    Examples:
      gradwatch init
      gradwatch init mykernels:FastSilu
    """
    # The nearest folder upwards with a pyproject.toml or a git repository, or this.
    here, marks = Path.cwd(), ("pyproject.toml", ".git")
    places = (here, *here.parents)
    root = next((p for p in places if any((p / m).exists() for m in marks)), here)
    there = [] if wanted else kernels(root)
    if len(there) > 1:
        listed = "\n".join(f"  gradwatch init {name}" for name in there)
        raise click.UsageError(f"which of {len(there)} kernels, or several?\n{listed}")
    chosen = [subject(name, root) for name in wanted or there] or [example()]
    done = dict[str, str]()
    for name, how in (one for about in chosen for one in write(about, root)):
        done.setdefault(name, how)  # one kernel's files are kept for the next
    for name, how in done.items():
        click.echo(f"{how:>8}  {name}")
    troubles = {about.name: trouble(about, root) for about in chosen}
    for why in filter(None, troubles.values()):
        click.echo(f"✗ {why}", err=True)
    names = ",".join(name for name, why in troubles.items() if not why)
    if not names:
        return 1
    click.echo(f"\n$ gradwatch agree --op {names}")
    # In a process of its own, which finds the table that has just been written.
    env = {k: v for k, v in os.environ.items() if k != VARIABLE}
    call = [sys.executable, "-m", "gradwatch", "agree", "--op", names]
    call += ["--next", "pytest; git add . && git commit; asv run 'HEAD^!'"]
    ended = subprocess.run(call, cwd=root, env=env, preexec_fn=with_this_process())
    return ended.returncode or int(any(troubles.values()))


# The subject ----------------------------------------------------------------------

_PACKAGES = ("numpy", "torch")  # a history belongs to versions of these
_SIZES = {"small": (7,), "middle": (3, 8), "large": (64, 1000)}

#: Shapes of an input from that of the first: the same, its last axis, a square matrix.
Kind = Callable[[tuple[int, ...]], tuple[int, ...]]
_KINDS: tuple[Kind, ...] = (lambda s: s, lambda s: s[-1:], lambda s: (s[-1], s[-1]))


@dataclass(frozen=True)
class Subject:
    """The operation of the first page.

    `call` is the callable of a test, and `attribute` the name that it imports from the
    `module`; `formula` is the body of the page's formula, and `measures` the project's
    file or folder with the code. `kinds` give the shape of each input.
    """

    name: str
    title: str
    module: str
    attribute: str
    call: str
    inputs: tuple[str, ...]
    formula: str
    implementation: str
    measures: str = ""
    kinds: tuple[Kind, ...] = _KINDS[:1]


def example() -> Subject:
    """Return the example, SiLU with a backward by hand."""
    title = "SiLU of each element: y = x s(x), where s is the logistic function."
    place = ("torch.nn.functional", "silu", "silu")
    formula, by_hand = "    return x * xp.sigmoid(x)", _filled("example.txt")
    return Subject("silu", title, *place, ("x",), formula, by_hand)


def subject(wanted: str, root: Path) -> Subject:
    """Return the subject of `module:name`, a function or an autograd.Function.

    Raises:
        click.UsageError: It cannot be imported, or its inputs have no names.
    """
    module, _, attribute = wanted.partition(":")
    thing = _import(module, attribute, root)
    forward = getattr(thing, "forward", None) if inspect.isclass(thing) else None
    place = (module, attribute, f"{attribute}.apply" if forward else attribute)
    inputs = _inputs(forward or thing, skip=1 if forward else 0)
    if not inputs:
        raise click.UsageError(f"{wanted} takes no tensor by position")
    own = dict(zip(("module", "attribute", "call"), place, strict=True))
    return Subject(
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", attribute).lower(),
        f"{attribute} of {module}, and whether its gradient is right.",
        *place,
        inputs,
        _formula(forward or thing, attribute),
        _filled("own.txt", arguments=", ".join(inputs), **own),
        _place(sys.modules[module], root),
        _fitting(getattr(thing, "apply", thing), len(inputs)),
    )


def _fitting(call: Any, count: int) -> tuple[Kind, ...]:
    """Return the first shapes at which the call's own forward and backward run."""
    for others in itertools.product(_KINDS, repeat=count - 1):
        kinds = (*_KINDS[:1], *others)
        with contextlib.suppress(Exception):  # whatever the caller's code raises
            import torch  # noqa: TID251  # absent: the shapes are equal

            inputs = [torch.rand(kind((3, 8)), requires_grad=True) for kind in kinds]
            outputs = call(*inputs)
            for y in outputs if isinstance(outputs, tuple) else (outputs,):
                y.sum().backward(retain_graph=True)
            return kinds
    return _KINDS[:1] * count


def _import(module: str, attribute: str, root: Path) -> Any:
    if not module or not attribute.isidentifier():
        of_it = [name for name in kernels(root) if name.startswith(f"{module}:")]
        there = ", ".join(of_it) or f"{module or 'mykernels'}:NAME"
        raise click.UsageError(f"write it as module:name: {there}")
    sys.path[:0] = [str(root), str(root / "src")]
    try:
        thing = getattr(importlib.import_module(module), attribute)
    except ImportError as error:
        raise click.UsageError(f"{module} cannot be imported: {error}") from None
    except AttributeError:
        raise click.UsageError(f"{module} has no {attribute}") from None
    if not callable(thing):
        raise click.UsageError(f"{module}:{attribute} cannot be called")
    return thing


def _inputs(function: Any, skip: int) -> tuple[str, ...]:
    """Return the parameters without a default: those of a forward come after ctx."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[skip:]
    except (ValueError, TypeError):
        return ("x",)  # a builtin without a signature
    needed = (p for p in parameters if p.default is p.empty and p.kind <= 1)
    return tuple(p.name for p in needed)


def _place(module: Any, root: Path) -> str:
    """Return the path of a module's file or package from the root; "" outside of it."""
    place = Path(getattr(module, "__file__", None) or "/").resolve()
    while (place.parent / "__init__.py").exists():
        place = place.parent
    return str(place.relative_to(root)) if place.is_relative_to(root) else ""


# The formula ----------------------------------------------------------------------


def _formula(function: Any, name: str) -> str:
    """Return the function's own code in array-API names, or a placeholder for it."""
    unknown = f'raise NotImplementedError("write here what {name} computes, with xp")'
    read = _read(function, set())
    if read is None:
        return textwrap.indent(unknown, "    ")
    said = ["# Taken from your forward: is this what it should compute?"]
    spec = inspect.signature(function).parameters.values()
    plain = (bool, int, float, type(None))
    said += [f"{p.name} = {p.default!r}" for p in spec if isinstance(p.default, plain)]
    return textwrap.indent("\n".join([*said, *read[1]]), "    ")


def _read(function: Any, within: set[str]) -> tuple[str, list[str]] | None:
    """Return a function's parameters, and its body in the names of the array API.

    The page runs without the module, so the constants, imports and helpers that the
    body uses come first, except helpers that the function is `within`.
    """
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
    except (OSError, TypeError, ValueError, SyntaxError):
        return None
    if not isinstance(node, ast.FunctionDef):
        return None
    module, lines = getattr(function, "__globals__", {}), list[str]()
    theirs = {"torch", *{"F"} - {*module}}  # names of modules with functions of xp
    used = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    for name in sorted(used & {*module} - within):
        value = module[name]
        place = "__name__" if inspect.ismodule(value) else "__module__"
        source = str(getattr(value, place, ""))
        if source.partition(".")[0] == "torch":
            theirs.add(name)
        elif isinstance(value, (bool, int, float)):
            lines.append(f"{name} = {value!r}")
        elif inspect.ismodule(value):
            lines.append(f"import {source} as {name}")
        elif inspect.isfunction(value) and (helper := _read(value, within | {name})):
            body = textwrap.indent("\n".join(helper[1]), "    ")
            lines.append(f"def {name}({helper[0]}):\n{body}")
        elif source.partition(".")[0] in sys.stdlib_module_names:
            own = getattr(value, "__name__", name)
            lines.append(f"from {source} import {own} as {name}")
    # Neither its docstring, nor lines that save tensors for a backward.
    kept = map(ast.unparse, node.body[bool(ast.get_docstring(node)) :])
    aside = re.compile(r"\bctx\b|^(import|from) torch\b")
    text = "\n".join(line for line in kept if not aside.search(line))
    return ast.unparse(node.args), [*lines, *_renamed(text, theirs)]


def _renamed(text: str, theirs: set[str]) -> list[str]:
    """Return torch.exp(x, dim=0) as xp.exp(x, axis=0), after functions that xp lacks.

    `theirs` are PyTorch, its modules and its functions, under the names they have here.
    """
    named = rf"(?<![\w.])(?:{'|'.join(theirs)})\b(?:\.\w+)*"
    text = re.sub(named, lambda found: f"xp.{found[0].rpartition('.')[2]}", text)
    text = re.sub(r"\bdim=", "axis=", re.sub(r"\bkeepdim=", "keepdims=", text))
    lines = list[str]()
    for name in dict.fromkeys(re.findall(r"\bxp\.(\w+)\(", text)):
        written = WRITTEN_AS.get(name, "")
        if written and {*re.findall(r"(?<![\w.])[a-z]\w*", written)} <= {"xp", "x"}:
            lines.append(f"def {name}(x):\n    return {written}")
            text = text.replace(f"xp.{name}(", f"{name}(")
    return [*lines, text]


def trouble(about: Subject, root: Path) -> str:
    """Return where the formula of a page cannot be run, and why; "" where it can."""
    from gradwatch.harness.judging.cases import trials
    from gradwatch.harness.judging.reference import reference
    from gradwatch.impls.catalogue import load_op

    page = root / "gradwatch_ops" / f"{about.name}.py"
    try:
        op = load_op(str(page))
        reference(next(trials(op, regimes=["normal"], dtypes=["float64"])).problem)
    except Exception as error:  # noqa: BLE001  # of the page, which is the caller's
        frames = traceback.extract_tb(error.__traceback__)
        lines = [f.lineno for f in frames if Path(f.filename) == page]
        place = f"{page.relative_to(root)}:{lines[-1] if lines else 1}"
        lack = " ".join(str(error).split())
        what = "" if "write" in lack else f"; write there what {about.name} computes"
        return f"{place}: {lack}{what}"
    return ""


def kernels(root: Path) -> list[str]:
    """Return every autograd.Function in the modules of a repository: module:name."""
    found = list[str]()
    for folder in (root, root / "src"):
        for file in sorted([*folder.glob("*.py"), *folder.glob("[!.]*/*.py")]):
            parts = file.relative_to(folder).with_suffix("").parts
            if parts[0] in ("src", "tests", "gradwatch_ops"):
                continue
            with contextlib.suppress(OSError, SyntaxError, ValueError):
                found += [
                    f"{'.'.join(parts)}:{node.name}"
                    for node in ast.parse(file.read_text("utf-8")).body
                    if isinstance(node, ast.ClassDef)
                    and any(
                        ast.unparse(b).endswith("autograd.Function") for b in node.bases
                    )
                ]
    return found


# Files ----------------------------------------------------------------------------


def write(about: Subject, root: Path) -> Iterator[tuple[str, str]]:
    """Write missing files; yield names, and "written", "added to" or "kept".

    A text with a sign is added to an existing file that lacks the sign.
    """
    fields, tests = _fields(about, root), "tests/" if (root / "tests").is_dir() else ""
    for name, template, sign in (
        (f"gradwatch_ops/{about.name}.py", "page", ""),
        (f"{tests}test_gradient_of_{about.name}.py", "test", ""),
        (f"{tests}test_speed_of_{about.name}.py", "speed", ""),
        (".github/workflows/gradients.yml", "workflow", ""),
        ("asv.conf.json", "asv", ""),
        ("pyproject.toml", "table", "[tool.gradwatch]"),
        (".gitignore", "ignored", "/.asv/"),
    ):
        file = root / name
        before = file.read_text("utf-8") if sign and file.exists() else ""
        if sign in before.splitlines() if sign else file.exists():
            yield name, "kept"
            continue
        gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
        text = _filled(f"{template}.txt", **fields)
        replace_file(file, f"{before}{gap}{text}")
        yield name, "added to" if before else "written"


def _fields(about: Subject, root: Path) -> dict[str, str]:
    """Return the fields of the templates."""
    named, packages = [*zip(about.inputs, about.kinds, strict=True)], list[str]()
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            version = importlib.metadata.version(name).partition("+")[0]
            packages.append(f'"{name}": ["{version}"]')
    known = dict[str, Any]()  # pip's source of gradwatch: it is on no index
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        installed = importlib.metadata.distribution("gradwatch")
        known = json.loads(installed.read_text("direct_url.json") or "{}")
    commit = known.get("vcs_info", {}).get("commit_id")
    return {
        **vars(about),
        **{
            size: ", ".join(f"{name}={kind(shape)}" for name, kind in named)
            for size, shape in _SIZES.items()
        },
        "shapes": str([kind(_SIZES["large"]) for kind in about.kinds]),
        "inputs": " ".join(about.inputs),
        "arguments": ", ".join(about.inputs),
        "implementation": about.implementation.rstrip(),
        "python": json.dumps("{}.{}".format(*sys.version_info)),
        "requirements": ", ".join(packages),
        "project": json.dumps(root.name),
        "source": f"git+{known['url']}@{commit}" if commit else "git+URL",
        "measures": json.dumps(about.measures) if about.measures else "",
    }


def _filled(template: str, /, **fields: Any) -> str:
    """Return a template's text with its fields filled in; other $ signs stay."""
    text = (Path(__file__).parent / "_templates" / template).read_text("utf-8")
    return Template(text).safe_substitute(fields)
