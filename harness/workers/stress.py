"""The ways of running a backward that catch kernels, beside the plain one.

Two graphs alive at once, whose buffers must not be one; a second backward with another
cotangent; inputs that need no gradient, one by one. Runs in the worker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.workers.arrays import Packed, pack, unpack
from gradwatch.impls.contract import Array, Backend, Problem, Step

#: Gradients by name, as they travel; None where there is none.
Gradients = Mapping[str, Packed | None]
FROZEN = 4  # inputs that are frozen alone: each costs a forward and a backward


@dataclass(frozen=True)
class PartlyFrozen(Problem):
    """A problem in which some inputs need no gradient."""

    frozen: tuple[str, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        """Those of the problem that are not frozen."""
        return tuple(name for name in super().wanted if name not in self.frozen)


def stressed(
    backend: Backend, problem: Problem, first: Gradients, shared: bool
) -> dict[str, Any]:
    """What differs from the first run, bit by bit.

    Args:
        backend: Runs it.
        problem: As the first run had it; copies are made of its arrays.
        first: The gradients of the first run.
        shared: Whether the backend works on the cotangents' own memory.

    Returns:
        `others`: pairs of what was done and the gradients that came out, where they
        are not the first ones; `reused`: names of gradients whose memory was used
        again while the caller still held them.
    """
    copy = _copied(problem)
    step, other = backend.prepare(copy), backend.prepare(_rolled(problem))
    for each in (step, other):
        each.forward()
    ways = [("another graph alive", _swept(step))]
    _swept(other)
    held = _read(step)  # once more: what was handed out has to be what it was
    reused = [name for name, g in ways[0][1].items() if held[name] != g]
    if shared:
        ways += _again(step, copy)
    ways += _frozen(backend, problem)
    return {"others": others(ways, first), "reused": reused}


def packed(gradients: Mapping[str, Array | None]) -> dict[str, Packed | None]:
    """Gradients as they travel."""
    return {name: None if g is None else pack(g) for name, g in gradients.items()}


def _copied(problem: Problem) -> Problem:
    return replace(
        problem,
        inputs={name: array.copy() for name, array in problem.inputs.items()},
        cotangents=[None if a is None else a.copy() for a in problem.cotangents],
    )


def _rolled(problem: Problem) -> Problem:
    """The same numbers in other places; state and whole numbers stay."""
    kept = problem.op.state

    def moved(array: Array) -> Array:
        return np.roll(array, 1 + array.size // 3) if array.dtype.kind == "f" else array

    return replace(
        problem,
        inputs={
            name: array.copy() if name in kept else moved(array).copy()
            for name, array in problem.inputs.items()
        },
        cotangents=[None if a is None else moved(a).copy() for a in problem.cotangents],
    )


def _swept(step: Step) -> Gradients:
    step.backward()
    return _read(step)


def _read(step: Step) -> Gradients:
    return packed(step.read().gradients)


def _again(step: Step, copy: Problem) -> Iterator[tuple[str, Gradients]]:
    """A second backward, its cotangent -1/2 times the first; scaled back exactly."""
    for cotangent in copy.cotangents:
        if cotangent is not None:
            cotangent *= -0.5
    try:
        swept = _swept(step)
    except Exception:  # noqa: BLE001  # not every graph can be swept twice
        return
    scaled = {n: None if g is None else pack(unpack(g) * -2) for n, g in swept.items()}
    yield "second backward, another cotangent", scaled


def _frozen(backend: Backend, problem: Problem) -> Iterator[tuple[str, Gradients]]:
    """Each input in turn without a gradient, where a backward can learn of it."""
    names = problem.wanted
    if not traits_of(backend.framework).learns_wanted or len(names) < 2:
        return
    fields = {name: getattr(problem, name) for name in Problem.__dataclass_fields__}
    for name in names[:FROZEN]:
        step = backend.prepare(_copied(PartlyFrozen(**fields, frozen=(name,))))
        step.forward()
        yield f"{name} needs no gradient", _swept(step)


def others(
    ways: Iterable[tuple[str, Gradients]], first: Gradients
) -> list[tuple[str, Gradients]]:
    """What was done, and of its gradients those without the bits of the first run."""
    differing = (
        (how, {n: g for n, g in swept.items() if not _same(g, first.get(n))})
        for how, swept in ways
    )
    return [(how, gradients) for how, gradients in differing if gradients]


def _same(one: Packed | None, other: Packed | None) -> bool:
    """Bitwise, but that NaN is NaN and a zero may have either sign."""
    if one is None or other is None or one == other:
        return one == other
    a, b = unpack(one), unpack(other)
    return a.dtype == b.dtype and np.array_equal(a, b, equal_nan=a.dtype.kind == "f")
