"""Functions as the command line names them, and files in KernelBench's form."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from gradwatch.impls.catalogue import UnknownName, known, op_names

#: None where JAX alone is installed.
torch: Any = importlib.util.find_spec("torch") and importlib.import_module("torch")
#: Lines that construct a solution in a script.
SOURCE = """\
import runpy

init = runpy.run_path({problem!r})["get_init_inputs"]()
candidate = runpy.run_path({solution!r})["ModelNew"](*init)"""


def target(text: str) -> Any:
    """What a name means: "torch.nn.functional.silu", "mykernels:Silu", an op page.

    A class derived from `torch.autograd.Function` stands for its `apply`; one derived
    from `torch.nn.Module` is constructed without arguments.

    Raises:
        UnknownName: Nothing bears the name; the nearest that exists is suggested.
    """
    if text.isidentifier() and text not in dir(torch):
        known("op page", text, op_names())
        return text
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
    return _callable(held, text)


def _callable(held: Any, text: str) -> Any:
    of_torch = torch is not None and isinstance(held, type)
    if of_torch and issubclass(held, torch.autograd.Function):
        return held.apply
    if of_torch and issubclass(held, torch.nn.Module):
        try:
            return held()
        except TypeError as error:
            raise UnknownName(
                f"{error}: make an instance in a file of yours and name that,"
                " file.py:name"
            ) from error
    if not callable(held):
        raise UnknownName(f"{text} is no function: {type(held).__name__}")
    return held


def loaded(path: Path) -> ModuleType:
    """A file as a module.

    Raises:
        UnknownName: There is no such file.
    """
    if not path.is_file():
        raise UnknownName(f"no file at {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UnknownName(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    known = getattr(sys.modules.get(path.stem), "__file__", module.__file__)
    if known == module.__file__ and path.stem not in sys.stdlib_module_names:
        sys.modules[path.stem] = module  # a script imports from it by its name
    spec.loader.exec_module(module)
    return module


def kernelbench(
    problem: Path, solution: Path
) -> tuple[Any, partial[Any], Callable[[int], Sequence[Any]], str]:
    """`Model`, what makes `ModelNew`, what makes inputs at a seed, and source.

    Of a problem and a solution in KernelBench's form. Both modules are constructed
    after the same seed, as KernelBench does it; the candidate is then run with the
    reference's parameters and buffers. The source constructs it in a script.

    Raises:
        UnknownName: A file or a name in it is missing.
    """
    from gradwatch.harness.check.frameworks import loop

    asked = loaded(problem)
    model = _member(asked, "Model", problem)
    get_inputs = _member(asked, "get_inputs", problem)
    torch.manual_seed(0)
    given: Any = getattr(asked, "get_init_inputs", list)()
    init = {"kwargs" if isinstance(given, Mapping) else "args": given}
    torch.manual_seed(0)
    reference = model(*init.get("args", ()), **init.get("kwargs", {}))

    def inputs(seed: int) -> Sequence[Any]:
        torch.manual_seed(seed)
        return list(get_inputs())

    if not isinstance(reference, torch.nn.Module):
        raise UnknownName(f"Model of {problem} is no torch.nn.Module")
    name = f"{solution.resolve()}:ModelNew"
    candidate = partial(loop.loaded, str(solution.resolve().parent), name, init)
    files = {"problem": str(problem.resolve()), "solution": str(solution.resolve())}
    return reference, candidate, inputs, SOURCE.format(**files)


def _member(module: ModuleType, name: str, path: Path) -> Any:
    if not hasattr(module, name):
        raise UnknownName(f"{path} defines no {name}")
    return getattr(module, name)
