"""Runs one problem in this interpreter, in the ways in which kernels fail.

Forward and backward run once, then the backward again on the same graph, then both from
the start. On a GPU the bits may differ, as kernels add in another order each time
(PyTorch, "Reproducibility"): there each result has to be right.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.workers.arrays import lay_out, legible
from gradwatch.impls import catalogue
from gradwatch.impls.contract import Array, Backend, Problem, Step, Unsupported

Request = Mapping[str, Any]
Gradients = Mapping[str, Array | None]
Cotangents = Sequence[Array | None]
Way = tuple[str, Gradients]  # how the backward was run, and its gradients
FROZEN = 4  # inputs that are frozen alone: each costs a forward and a backward


class Missing(Exception):
    """This interpreter or machine does not have the framework or device."""


@dataclass(frozen=True)
class PartlyFrozen(Problem):
    """A problem in which some inputs need no gradient."""

    frozen: tuple[str, ...] = ()

    @property
    def wanted(self) -> tuple[str, ...]:
        """The inputs with a gradient, without the frozen ones."""
        return tuple(name for name in super().wanted if name not in self.frozen)


def evaluate(request: Request) -> dict[str, Any]:
    """Outputs, gradients and state of a backend; see `pool.Outcome`.

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
    again: Gradients | Exception = first
    if vjp:
        try:  # the cotangents as given: only what the graph has saved can differ
            again = _swept(step, problem.cotangents, request["cotangents"])
        except Exception as error:  # noqa: BLE001  # not every graph can be swept twice
            again = error
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
        "others": [
            (how, other)
            for how, way in ways
            if (other := {n: g for n, g in way.items() if not _same(g, first.get(n))})
        ],
    }


def _run(backend: Backend, problem: Problem) -> tuple[Step, dict[str, Any]]:
    """Run forward and backward once, or another order; return the step and results.

    These are copied at once: a later backward may write into the same memory.
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
        parts = ("outputs", "gradients", "state")
        read: dict[str, Any] = {name: copied(getattr(result, name)) for name in parts}
        return step, {**read, "dtypes": dict(result.dtypes)}
    finally:
        step.wait()  # asynchronous work has to crash within its own task


def copied(arrays: Mapping[str, Array | None]) -> dict[str, Array | None]:
    """Copies of arrays by name."""
    return {name: None if a is None else np.array(a) for name, a in arrays.items()}


def problem_of(request: Request) -> Problem:
    """The problem that a request describes; an older commit's has no order."""
    second, layouts = dict[str, Any](), request["layouts"]
    if "order" in request:
        along = copied(request["tangents"])
        second = {"order": request["order"], "tangents": along}
    return Problem(
        op=load_op(request["op"]),
        inputs={n: lay_out(a, layouts[n]) for n, a in request["inputs"].items()},
        cotangents=[
            None if array is None else lay_out(array, request["cotangent_layout"])
            for array in request["cotangents"]
        ],
        **{n: request[n] for n in ("attributes", "aliases", "dtype", "device")},
        **second,
    )


#: The op of a page; each page is read once.
load_op = functools.cache(catalogue.load_op)


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
    """The inputs, but for state, and the cotangents that were overwritten."""
    given: list[tuple[str, Array | None, Any]] = [
        (name, array, request["inputs"][name])
        for name, array in problem.inputs.items()
        if name not in problem.op.state
    ]
    names = (f"d{name}" for name in problem.op.outputs)
    given += zip(names, problem.cotangents, request["cotangents"], strict=True)
    along = request.get("tangents", {}).items()
    given += [(f"v{name}", problem.tangents[name], raw) for name, raw in along]
    return [n for n, a, raw in given if a is not None and a.tobytes() != raw.tobytes()]


def _swept(step: Step, given: Cotangents = (), numbers: Cotangents = ()) -> Gradients:
    """Run a backward with `numbers` in the cotangents `given`; return its gradients."""
    for array, its in zip(given, numbers, strict=True):
        if array is not None:
            array[...] = its
    step.backward()
    return copied(step.read().gradients)


# Under stress ---------------------------------------------------------------------


def stressed(backend: Backend, request: Request) -> tuple[list[Way], list[str]]:
    """Gradients under stress, and the names of those whose memory was used again.

    A later backward overwrote these while the caller still held them.
    """
    problem, rolled = problem_of(request), problem_of(request)
    moved = [a for n, a in rolled.inputs.items() if n not in rolled.op.state]
    for array in (*moved, *rolled.cotangents):  # the same numbers in other places
        if array is not None and array.dtype.kind == "f":
            array[...] = np.roll(array, 1 + array.size // 3)
    step, other = backend.prepare(problem), backend.prepare(rolled)
    for each in (step, other):
        each.forward()
    ways = [("another graph alive", _swept(step))]
    _swept(other)
    held = copied(step.read().gradients)  # these have to be the same as before
    reused = [n for n, g in ways[0][1].items() if not _same(held[n], g)]
    # Where a backend works on the cotangents' own memory, they can be others.
    narrow = request["device"] != "cpu" or problem.dtype not in ("float32", "float64")
    if traits_of(backend.framework).shares_memory and not narrow:
        turned = [None if dy is None else -dy for dy in problem.cotangents]
        with contextlib.suppress(Exception):  # not every graph can be swept twice
            swept = _swept(step, problem.cotangents, turned).items()
            back = {n: None if g is None else np.asarray(-g) for n, g in swept}
            ways.append(("second backward, another cotangent", back))
    if traits_of(backend.framework).learns_wanted and len(problem.wanted) > 1:
        for name in problem.wanted[:FROZEN]:
            given = vars(problem_of(request))
            step = backend.prepare(PartlyFrozen(**given, frozen=(name,)))
            step.forward()
            ways.append((f"{name} needs no gradient", _swept(step)))
    return ways, reused


def _same(a: Any, b: Any) -> bool:
    """Whether two results are bitwise equal; all NaNs count as equal."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            return False
        there = ~np.isnan(a), ~np.isnan(b)
        bits = a[there[0]].tobytes() == b[there[1]].tobytes()
        return bits and np.array_equal(*there)
    return not isinstance(a, np.ndarray) and not isinstance(b, np.ndarray) and a == b
