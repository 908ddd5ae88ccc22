"""A check in a process of its own: the caller's code may exit, hang or die there."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from gradwatch.harness.check.choice import Choice
from gradwatch.harness.check.entry import Session
from gradwatch.harness.check.frameworks import are_of_jax
from gradwatch.harness.check.report import Report
from gradwatch.harness.console.streams import ticking
from gradwatch.harness.tracing import Untraceable
from gradwatch.harness.workers.process import Link
from gradwatch.impls.catalogue import UnknownName, known, op_names

#: The key of an error in place of a report: the call cannot be judged.
REFUSED = "refused"


def check(content: bytes, link: Link) -> None:
    """Run the check of a request, and send its report."""
    sys.path.insert(0, os.getcwd())
    asked, at = msgspec.msgpack.decode(content), ""

    def announce(place: str) -> None:
        nonlocal at
        at = f" {place}"
        link.alive(place)

    with link.at("", fails=False), ticking(lambda: f"checking{at}"):
        found = answered(asked, announce)
    link.tell(found)


def answered(
    asked: Mapping[str, Any], announce: Callable[[str], object] = str
) -> dict[str, Any]:
    """The report of a request, as text and document, or why it cannot be judged."""
    judged = _kernelbench if asked["kernelbench"] else _named
    try:
        with contextlib.ExitStack() as stack:
            report = judged({**asked, "announce": announce}, stack)
            return {
                "text": report.text(asked.get("width", 0)),
                "document": report.document(),
                "kept": report.kept(),
                "passes": report.passes,
                "script": report.repro() if asked["repro"] else "",
            }
    except Exception as error:  # noqa: BLE001  # a call that cannot be judged, in a line
        ours = isinstance(error, (UnknownName, Untraceable, ValueError))
        lines = str(error).strip().splitlines() or [""]
        return {REFUSED: lines[0] if ours else f"{type(error).__name__}: {lines[0]}"}


def _named(asked: Mapping[str, Any], stack: contextlib.ExitStack) -> Report:
    reference, name = target(asked["reference"]), asked["candidate"]
    file, colon, rest = (name or "").partition(":")
    apart = str(Path.cwd()), name
    if file.endswith(".py"):
        path = Path(file).resolve()
        apart = str(path.parent), f"{path}{colon}{rest}"
    load = (lambda: target(name)) if name else lambda: None
    candidate, options = _loaded(asked, apart, load, stack)
    options["of_jax"] = are_of_jax(reference, candidate, None)
    return Session(reference, candidate, **options).run(
        shapes=asked["shapes"] or None,
        kwargs=asked["kwargs"],
        dtypes=asked["dtypes"] or None,
    )


def _loaded(
    asked: Mapping[str, Any],
    apart: Sequence[Any],
    load: Callable[[], Any],
    stack: contextlib.ExitStack,
) -> tuple[Any, dict[str, Any]]:
    """The candidate, and the session's options; a seed that no code can guess."""
    if asked.get("untrusted"):
        from gradwatch.harness.check.subjects.apart import Apart

        named = Apart(asked["timeout"], *apart)
        candidate = stack.enter_context(contextlib.closing(named))
    else:
        candidate = load()
    seed = asked.get("seed")
    drawn = random.SystemRandom().randrange(1 << 31) if seed is None else seed
    names = ("device", "compute", "order", "name", "announce")
    options = {name: asked[name] for name in names if name in asked}
    options |= {"seed": drawn, "choice": Choice(**asked.get("choice", {}))}
    if seed is None or asked.get("untrusted"):
        options["notes"] = [f"the numbers are those of --seed {drawn}"]
    return candidate, options


def _kernelbench(asked: Mapping[str, Any], stack: contextlib.ExitStack) -> Report:
    """Check at the problem's own inputs of two seeds: some kernels pass at one only."""
    problem, solution = map(Path, asked["kernelbench"])
    reference, load, inputs, source = kernelbench(problem, solution)
    candidate, options = _loaded(asked, load.args, load, stack)
    seeds = (options["seed"], options["seed"] + 1)
    return Session(reference, candidate, source=source, **options).run(
        inputs={f"seed {seed}": inputs(seed) for seed in seeds},
        dtypes=asked["dtypes"] or None,
    )


# Names and files ------------------------------------------------------------------

#: Lines that construct a solution in a script.
SOURCE = """\
import runpy

init = runpy.run_path({problem!r})["get_init_inputs"]()
candidate = runpy.run_path({solution!r})["ModelNew"](*init)"""


def target(text: str) -> Any:
    """The object of a name: "torch.nn.functional.silu", "mykernels:Silu", an op page.

    A class derived from `torch.autograd.Function` stands for its `apply`; one derived
    from `torch.nn.Module` is constructed without arguments.

    Raises:
        UnknownName: Nothing bears the name; the nearest that exists is suggested.
    """
    # None where JAX alone is installed.
    torch: Any = importlib.util.find_spec("torch") and importlib.import_module("torch")
    name = text.isidentifier() and text not in dir(torch)
    if name and (text in op_names() or not importlib.util.find_spec(text)):
        return known("op page", text, op_names())
    module, _, path = text.partition(":")
    first, *parts = [module, *path.split(".")] if path else text.split(".")
    try:
        is_file = first.endswith(".py")
        held: Any = loaded(Path(first)) if is_file else importlib.import_module(first)
    except ModuleNotFoundError as error:
        raise UnknownName(f"no module is called {error.name!r}") from None
    for part in parts:
        if isinstance(held, ModuleType) and not hasattr(held, part):
            with contextlib.suppress(ModuleNotFoundError):  # it may be a module
                importlib.import_module(f"{held.__name__}.{part}")
        if not hasattr(held, part):
            names = [n for n in dir(held) if n[0] != "_" and callable(getattr(held, n))]
            known(f"function of {held.__name__}", part, names)
        held = getattr(held, part)
    is_class = torch is not None and isinstance(held, type)
    if is_class and issubclass(held, torch.autograd.Function):
        return held.apply
    if is_class and issubclass(held, torch.nn.Module):
        try:
            return held()
        except TypeError as error:
            raise UnknownName(
                f"{error}: make an instance in a file of yours and name that,"
                " file.py:name"
            ) from error
    if not callable(held):
        raise UnknownName(f"{text} is a {type(held).__name__}: write MODULE:FUNCTION")
    return held


def loaded(path: Path) -> ModuleType:
    """A file as a module; UnknownName where there is none."""
    found = path.is_file() and path.suffix == ".py"
    spec = importlib.util.spec_from_file_location(path.stem, path) if found else None
    if spec is None or spec.loader is None:
        raise UnknownName(f"no file at {path} that Python can import")
    module = importlib.util.module_from_spec(spec)
    other = getattr(sys.modules.get(path.stem), "__file__", module.__file__)
    if other == module.__file__ and path.stem not in sys.stdlib_module_names:
        sys.modules[path.stem] = module  # a script imports from it by its name
    spec.loader.exec_module(module)
    return module


def kernelbench(
    problem: Path, solution: Path
) -> tuple[Any, partial[Any], Callable[[int], Sequence[Any]], str]:
    """`Model`, constructors of `ModelNew` and of a seed's inputs, and source.

    Both modules are constructed after the same seed, as KernelBench does it; the source
    constructs the candidate in a script. UnknownName where a file or a name is missing.
    """
    import torch

    from gradwatch.harness.check.frameworks import loop

    asked = loaded(problem)
    for name in ("Model", "get_inputs"):
        known(f"name in {problem}", name, vars(asked))
    torch.manual_seed(0)
    given: Any = getattr(asked, "get_init_inputs", list)()
    init = {"kwargs" if isinstance(given, Mapping) else "args": given}
    torch.manual_seed(0)
    reference = asked.Model(*init.get("args", ()), **init.get("kwargs", {}))

    def inputs(seed: int) -> Sequence[Any]:
        torch.manual_seed(seed)
        return list(asked.get_inputs())

    if not isinstance(reference, torch.nn.Module):
        raise UnknownName(f"Model of {problem} is no torch.nn.Module")
    name = f"{solution.resolve()}:ModelNew"
    candidate = partial(loop.loaded, str(solution.resolve().parent), name, init)
    files = {"problem": str(problem.resolve()), "solution": str(solution.resolve())}
    return reference, candidate, inputs, SOURCE.format(**files)
