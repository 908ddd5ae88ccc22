"""The peculiarities of a framework or a backend, as its own file declares them.

impls/backends/<backend>.py, or _<framework>.py beside it, has `TRAITS = {...}`: a
literal, read without importing the framework; the backend's overrides. Today's files
apply to an older commit, too. Standard library only: workers import this.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from gradwatch.impls import catalogue

_BACKENDS = Path(__file__).parents[2] / "impls" / "backends"


@dataclass(frozen=True)
class Traits:
    """The facts that the harness needs on a framework or a backend, with defaults."""

    title: str = ""  # its name in prose
    on_request: str = ""  # its cost, if it runs only where it is named
    #: It compiles each shape and precision, which takes seconds; `agree` judges a
    #: sample of it unless more is named.
    compiles: bool = False
    #: The variable that names its folder for compiled code, where each process needs
    #: its own, so that the user's folder does not grow.
    compiles_into: str = ""
    sampled: tuple[str, ...] = ("float32",)  # precisions of that sample
    crashes: bool = False  # legal inputs crash it often, so it runs last
    polls: bool = False  # its threads poll for work and so are never idle
    flushes: str = ""  # why it takes subnormal numbers on the CPU for zero, if so
    shares_memory: bool = False  # its tensors on the CPU use that of NumPy's arrays
    #: Its backward learns which gradients are wanted. (False for a compiler, for which
    #: each choice would be another program.)
    learns_wanted: bool = True
    replaces: tuple[str, ...] = ()  # its own functions; no gradient depends on them
    settings: tuple[str, ...] = ()  # global ones that change results, by dotted names
    #: A fork of a process that has imported it, and computed on the CPU, can use it:
    #: each page gets one. (No thread of its own runs.)
    forks: bool = False
    finishes_importing: bool = False  # imports further modules at its first backward
    numpy_below: int = 0  # first major version of NumPy it cannot be imported with
    second_order: bool = True  # it has forward mode or a double backward
    half: bool = True  # it has kernels in 16 bits on the CPU
    second_order_listed: bool = False  # all its defects there are known outcomes
    #: Its own call for a name of the array API, as a script writes it; for "" the
    #: module that has all others.
    names: dict[str, str] = field(default_factory=dict)


@cache
def traits_of(name: str) -> Traits:
    """The traits of a backend, or of a framework by its name."""
    framework = catalogue.framework_of(name)
    own = catalogue.backend_file(name) if name != framework else Path()
    folders = dict.fromkeys((_BACKENDS, own.parent))
    declared = dict[str, Any]()
    stems = dict.fromkeys((f"_{framework}", name))
    for file in (folder / f"{stem}.py" for stem in stems for folder in folders):
        if file.is_file():
            for statement in ast.parse(file.read_text(encoding="utf-8")).body:
                match statement:
                    case ast.Assign(targets=[ast.Name(id="TRAITS")], value=literal):
                        declared |= ast.literal_eval(literal)
    return Traits(**declared)
