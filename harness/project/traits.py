"""What is peculiar about a framework or a backend, as its own file declares it.

impls/backends/<backend>.py, or _<framework>.py beside it, says `TRAITS = {...}`: a
literal, read without importing the framework; the backend's overrides. Today's files
count, also for an older commit. Standard library only: workers ask, too.
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
    """What the harness has to know of a framework or a backend; most need nothing.

    Attributes:
        title: Its name in prose.
        on_request: What it costs, if it runs only where it is named; else "".
        compiles: It compiles each shape and precision, which takes seconds; `agree`
            judges a sample of it unless more is named.
        compiles_into: The variable that names the folder for what it compiles, where
            a process needs its own: what the user has compiled does not grow.
        sampled: Precisions of that sample.
        crashes: Legal inputs crash it again and again, so it runs last.
        polls: Its threads poll for work and so are never idle.
        flushes: Why it takes subnormal numbers on the CPU for zero; "" if it does not.
        shares_memory: Its tensors on the CPU use the memory of NumPy's arrays.
        learns_wanted: Its backward learns which gradients are wanted. (Each choice is
            another program for what compiles: declare that it does not.)
        replaces: Functions of its own that it replaces itself; no gradient depends on
            them.
        settings: Attributes that change what others compute, by their dotted names.
        forks: A fork of a process that has imported it, and computed on the CPU, can
            use it: each page gets one. (No thread of its own runs.)
        finishes_importing: It imports the rest of itself at its first backward.
        numpy_below: First major version of NumPy that it cannot be imported with.
        second_order: It has forward mode or a double backward.
        half: It has kernels in 16 bits on the CPU.
        second_order_listed: Its defects of second order are all known outcomes.
        names: Its own call for a name of the array API, as a script writes it; for ""
            the module that has all others.
    """

    title: str = ""
    on_request: str = ""
    compiles: bool = False
    compiles_into: str = ""
    sampled: tuple[str, ...] = ("float32",)
    crashes: bool = False
    polls: bool = False
    flushes: str = ""
    shares_memory: bool = False
    learns_wanted: bool = True
    replaces: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    forks: bool = False
    finishes_importing: bool = False
    numpy_below: int = 0
    second_order: bool = True
    half: bool = True
    second_order_listed: bool = False
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
