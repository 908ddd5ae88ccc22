"""Runs one problem in this interpreter, in the ways that catch kernels.

Forward and backward run once; then the backward runs again on the same graph; then both
run again from the start. Comparing the three shows whether a backward overwrites its
saved tensors or is not deterministic. Under stress there are also two graphs alive at
once, whose buffers must not be one; a second backward with another cotangent; and
inputs that need no gradient, one by one.

On a GPU the results need not have the same bits: kernels that add with atomic
operations, such as those of an index, add in another order each time (PyTorch,
"Reproducibility"). There each of them has to be right.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.workers.arrays import Packed, legible, pack, pack_all, unpack
from gradwatch.impls import catalogue
from gradwatch.impls.contract import (
    Array,
    Backend,
    Op,
    Problem,
    Step,
    Unsupported,
)

Request = Mapping[str, Any]
#: Gradients by name, as they travel; None where there is none.
Gradients = Mapping[str, Packed | None]
Way = tuple[str, Gradients]  # what was done, and the gradients that came out
FROZEN = 4  # inputs that are frozen alone: each costs a forward and a backward


class Missing(Exception):
    """This interpreter or machine does not have the framework or device."""


@dataclass(frozen=True)
class PartlyFrozen(Problem):
    """A problem in which some inputs need no gradient."""

    frozen: tuple[str, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        """Those of the problem that are not frozen."""
        return tuple(name for name in super().wanted if name not in self.frozen)


def evaluate(request: Request) -> dict[str, Any]:
    """Outputs, gradients and state of a backend, packed; see `messages.Outcome`.

    Raises:
        Missing: The framework or the device is missing.
        impls.contract.Unsupported: The page or the framework does not support it.
    """
    backend = load_backend(request["backend"])
    if why := backend.missing(request["device"]):
        raise Missing(why)
    problem = problem_of(request)
    step, read = _run(backend, problem)
    first, why = read["gradients"], "overwritten by the forward or the backward pass"
    faults = [(name, f"{name}: {why}") for name in _mutated(problem, request)]
    vjp, atomic = "order" not in request, request["device"] != "cpu"
    again = _backward_again(step, problem, request) if vjp else first
    _, fresh = _run(backend, problem_of(request))
    repeatable = _same(read, fresh)
    if isinstance(again, Exception):
        # torch counts writes to saved tensors and raises this message.
        intact = "inplace operation" not in str(again)
    else:
        intact = not repeatable or atomic or _same(first, again)
    if not intact:
        why = "a saved tensor was overwritten: the second backward differs"
        faults.append(("saved", why))
    ways = list[Way]()
    if vjp and atomic:
        swept = {} if isinstance(again, Exception) else again
        ways = [("second backward", swept), ("second run", fresh["gradients"])]
    if (repeatable or atomic) and request.get("options", {}).get("stress"):
        more, reused = stressed(backend, request)
        ways += more
        why = "a later backward wrote over the gradient handed out"
        faults += [(name, f"{name}: {why}") for name in reused]
    return {
        **read,
        "faults": faults,
        "repeatable": repeatable,
        "others": [(how, g) for how, way in ways if (g := _differing(way, first))],
    }


def _run(backend: Backend, problem: Problem) -> tuple[Step, dict[str, Any]]:
    """Run forward and backward once, or another order: the step, and the results.

    These are packed at once: a later backward may write into the same memory.
    """
    step, order = backend.prepare(problem), getattr(problem, "order", "vjp")
    if not hasattr(step, order) and order != "vjp":
        raise Unsupported(f"{backend.framework} has no {order} here")
    try:
        if order == "vjp":
            step.forward()
            step.backward()
            result = step.read()  # as a consumer: it waits for the current stream
        else:
            result = getattr(step, order)()
        return step, {
            "outputs": pack_all(result.outputs),
            "gradients": pack_all(result.gradients),
            "state": pack_all(result.state),
            "dtypes": dict(result.dtypes),
        }
    finally:
        step.wait()  # what is computed later must crash within its own task


def problem_of(request: Request) -> Problem:
    """The problem that a request describes; an older commit's has no order."""
    second: dict[str, Any] = {}
    if "order" in request:
        along = {name: unpack(packed) for name, packed in request["tangents"].items()}
        second = {"order": request["order"], "tangents": along}
    return Problem(
        op=load_op(request["op"]),
        inputs={name: unpack(packed) for name, packed in request["inputs"].items()},
        cotangents=[
            None if packed is None else unpack(packed)
            for packed in request["cotangents"]
        ],
        attributes=request["attributes"],
        aliases=request["aliases"],
        dtype=request["dtype"],
        device=request["device"],
        **second,
    )


def load_op(name: str) -> Op:
    """The op of a page; the page is read again after its file has changed."""
    page = Path(name) if name.endswith(".py") else None
    changed = page.stat().st_mtime_ns if page and page.is_file() else 0
    return _load_op(name, changed)


@functools.cache
def _load_op(name: str, changed: int) -> Op:
    return catalogue.load_op(name)


def load_backend(name: str) -> Backend:
    """Import a backend, and its framework with it.

    Raises:
        Missing: The import fails; the message says how.
    """
    try:
        return catalogue.load_backend(name)
    except catalogue.UnknownName:
        raise
    except Exception as error:  # a broken installation can raise anything
        raise Missing(in_short(error)) from error


def in_short(error: BaseException) -> str:
    """An exception in one line: its class and the first line of its message."""
    lines = list[str]()
    with contextlib.suppress(Exception):  # of a page: it need not have a message
        lines = legible(str(error)).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def _mutated(problem: Problem, request: Request) -> list[str]:
    """The inputs and cotangents that were overwritten; an op updates its state."""
    given: list[tuple[str, Array | None, Any]] = [
        (name, array, request["inputs"][name])
        for name, array in problem.inputs.items()
        if name not in problem.op.state
    ]
    names = (f"d{name}" for name in problem.op.outputs)
    given += zip(names, problem.cotangents, request["cotangents"], strict=True)
    along = request.get("tangents", {}).items()
    given += [(f"v{name}", problem.tangents[name], raw) for name, raw in along]
    return [n for n, a, raw in given if a is not None and a.tobytes() != raw[-1]]


def _swept(step: Step) -> Gradients:
    step.backward()
    return pack_all(step.read().gradients)


def _backward_again(
    step: Step, problem: Problem, request: Request
) -> Gradients | Exception:
    """The gradients of a second backward on the same graph, or why it failed.

    The cotangents are restored first, so that a difference can only come from tensors
    that the graph has saved.
    """
    for given, raw in zip(problem.cotangents, request["cotangents"], strict=True):
        if given is not None:
            given[...] = unpack(raw)
    try:
        return _swept(step)
    except Exception as error:  # noqa: BLE001  # not every graph can be swept twice
        return error


# Under stress ---------------------------------------------------------------------


def stressed(backend: Backend, request: Request) -> tuple[list[Way], list[str]]:
    """What came out under stress, and gradients whose memory was used again.

    The caller still held these when a later backward wrote over them.
    """
    problem = problem_of(request)
    step, other = backend.prepare(problem), backend.prepare(_rolled(request))
    for each in (step, other):
        each.forward()
    ways = [("another graph alive", _swept(step))]
    _swept(other)
    held = pack_all(step.read().gradients)  # what was handed out has to be what it was
    reused = [name for name, g in ways[0][1].items() if held[name] != g]
    # Where a backend works on the cotangents' own memory, they can be others.
    narrow = request["device"] != "cpu" or problem.dtype not in ("float32", "float64")
    if traits_of(backend.framework).shares_memory and not narrow:
        ways += _with_another_cotangent(step, problem)
    ways += _frozen(backend, request)
    return ways, reused


def _rolled(request: Request) -> Problem:
    """The same numbers in other places; state and whole numbers stay."""
    problem = problem_of(request)

    def moved(array: Array) -> Array:
        return np.roll(array, 1 + array.size // 3) if array.dtype.kind == "f" else array

    inputs = {
        name: array if name in problem.op.state else moved(array)
        for name, array in problem.inputs.items()
    }
    dys = [None if a is None else moved(a) for a in problem.cotangents]
    return replace(problem, inputs=inputs, cotangents=dys)


def _with_another_cotangent(step: Step, problem: Problem) -> Iterator[Way]:
    """A second backward, its cotangent the negative of the first; turned back."""
    for cotangent in problem.cotangents:
        if cotangent is not None:
            cotangent[...] = -cotangent
    try:
        swept = _swept(step)
    except Exception:  # noqa: BLE001  # not every graph can be swept twice
        return
    turned = {n: None if g is None else pack(-unpack(g)) for n, g in swept.items()}
    yield "second backward, another cotangent", turned


def _frozen(backend: Backend, request: Request) -> Iterator[Way]:
    """Each input in turn without a gradient, where a backward can learn of it."""
    names = problem_of(request).wanted
    if not traits_of(backend.framework).learns_wanted or len(names) < 2:
        return
    for name in names[:FROZEN]:
        step = backend.prepare(
            PartlyFrozen(**vars(problem_of(request)), frozen=(name,))
        )
        step.forward()
        yield f"{name} needs no gradient", _swept(step)


def _differing(gradients: Gradients, first: Gradients) -> Gradients:
    """Those that have not the bits of the first run."""
    return {n: g for n, g in gradients.items() if not _same(g, first.get(n))}


def _same(a: Any, b: Any) -> bool:
    """Whether two results are bitwise equal; all NaNs count as equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if not (isinstance(a, tuple) and isinstance(b, tuple)):
        return bool(a == b)
    return a == b or (a[:2] == b[:2] and _canonical(a) == _canonical(b))


def _canonical(packed: Packed) -> bytes:
    array = unpack(packed)
    array[np.isnan(array)] = np.nan
    return array.tobytes()
