"""Runs one problem in this interpreter, and detects arrays that it overwrites.

Forward and backward run once; then the backward runs again on the same graph; then both
run again from the start. Comparing the three shows whether a backward overwrites its
saved tensors or is not deterministic. On a GPU the three need not have the same bits:
kernels that add with atomic operations, such as those of an index, add in another order
each time (PyTorch, "Reproducibility"). There each of them has to be right.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.workers.arrays import Packed, legible, pack, unpack
from gradwatch.harness.workers.stress import others, packed, stressed
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


class Missing(Exception):
    """This interpreter or machine does not have the framework or device."""


@dataclass(frozen=True)
class Given:
    """An array that a backend was given, and the bytes from which it was made."""

    name: str  # of an input, or "d" and the name of an output
    array: Array
    packed: Packed

    @property
    def changed(self) -> bool:
        """Whether any bit of it has changed."""
        return self.array.tobytes() != self.packed[-1]


@dataclass(frozen=True)
class Evaluation:
    """A problem after its forward and backward, with the arrays that it was given."""

    step: Step
    inputs: Sequence[Given]
    cotangents: Sequence[Given]
    read: dict[str, Any]

    @property
    def mutated(self) -> list[str]:
        """The names of the given arrays that were overwritten."""
        return [g.name for g in (*self.inputs, *self.cotangents) if g.changed]


def evaluate(request: Request) -> dict[str, Any]:
    """Outputs, gradients and state of a backend, packed; see `harness.workers.pool`.

    Raises:
        Missing: The framework or the device is missing.
        impls.contract.Unsupported: The page or the framework does not support it.
    """
    backend = _usable(request["backend"], request["device"])
    if "order" in request:
        return _second_order(backend, request)
    first = run(backend, request)
    mutated = first.mutated
    again = _backward_again(first)
    fresh = run(backend, request)
    repeatable = _same(first.read, fresh.read)
    extra: dict[str, Any] = {}
    atomic = request["device"] != "cpu"
    if (repeatable or atomic) and request.get("options", {}).get("stress"):
        shared = request["dtype"] in ("float32", "float64") and (
            request["device"] == "cpu" and traits_of(backend.framework).shares_memory
        )
        problem = problem_of(request)
        extra = stressed(backend, problem, first.read["gradients"], shared)
    if atomic:
        swept = {} if isinstance(again, Exception) else again
        ways = [("second backward", swept), ("second run", fresh.read["gradients"])]
        repeated = others(ways, first.read["gradients"])
        extra["others"] = [*repeated, *extra.get("others", ())]
    return {
        **first.read,
        **extra,
        "mutated": mutated,
        "repeatable": repeatable,
        "saved_intact": _saved_intact(
            first.read["gradients"], again, repeatable and not atomic
        ),
    }


def _second_order(backend: Backend, request: Request) -> dict[str, Any]:
    """The tensors of a second order, twice; see `impls.contract.SecondOrderStep`."""
    reads, mutated = [], list[str]()
    for _ in range(2):
        problem = problem_of(request)
        step, order = backend.prepare(problem), request["order"]
        differentiate = getattr(step, order, None)
        if differentiate is None:
            raise Unsupported(f"{backend.framework} has no {order} here")
        try:
            result = differentiate()
        finally:
            step.wait()  # a crash must happen within its own task
        given = [one for group in _given(problem, request) for one in group]
        mutated = [one.name for one in given if one.changed]
        gradients = packed(result.gradients)
        reads.append({"gradients": gradients, "dtypes": dict(result.dtypes)})
    first, again = reads
    return {
        "outputs": {},
        "state": {},
        **first,
        "mutated": mutated,
        "repeatable": _same(first, again),
    }


def run(backend: Backend, request: Request) -> Evaluation:
    """Run forward and backward once, on new arrays in the requested layouts."""
    problem = problem_of(request)
    step = backend.prepare(problem)
    try:
        step.forward()
        step.backward()
        read = _read(step)  # as a consumer would: it waits for the current stream alone
    finally:
        step.wait()  # what is computed later must crash within its own task
    return Evaluation(step, *_given(problem, request), read)


def problem_of(request: Request) -> Problem:
    """The problem that a request describes."""
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
        **_order(request),
    )


def _order(request: Request) -> dict[str, Any]:
    """The problem of an older commit has no order."""
    if "order" not in request:
        return {}
    tangents = {name: unpack(packed) for name, packed in request["tangents"].items()}
    return {"order": request["order"], "tangents": tangents}


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


def _usable(name: str, device: str) -> Backend:
    backend = load_backend(name)
    why = backend.missing(device)
    if why:
        raise Missing(why)
    return backend


def _given(problem: Problem, request: Request) -> tuple[list[Given], list[Given]]:
    """The inputs, without the state that the op updates, and the cotangents."""
    inputs = [
        Given(name, array, request["inputs"][name])
        for name, array in problem.inputs.items()
        if name not in problem.op.state
    ]
    names = (f"d{name}" for name in problem.op.outputs)
    trios = zip(names, problem.cotangents, request["cotangents"], strict=True)
    cotangents = [Given(n, dy, raw) for n, dy, raw in trios if dy is not None]
    along = request.get("tangents", {}).items()
    tangents = (Given(f"v{n}", problem.tangents[n], raw) for n, raw in along)
    return inputs, [*cotangents, *tangents]


def _read(step: Step) -> dict[str, Any]:
    """The results, packed at once: a later backward may write into the same memory."""
    result = step.read()
    return {
        "outputs": {name: pack(array) for name, array in result.outputs.items()},
        "gradients": packed(result.gradients),
        "state": {name: pack(array) for name, array in result.state.items()},
        "dtypes": dict(result.dtypes),
    }


def _backward_again(first: Evaluation) -> dict[str, Packed | None] | Exception:
    """The gradients of a second backward on the same graph, or why it failed.

    Changed cotangents are restored first, so that a difference can only come from
    tensors that the graph has saved.
    """
    for given in first.cotangents:
        if given.changed:
            given.array[...] = unpack(given.packed)
    try:
        first.step.backward()
        return packed(first.step.read().gradients)
    except Exception as error:  # noqa: BLE001  # not every graph can be swept twice
        return error


def _saved_intact(
    gradients: object, again: dict[str, Packed | None] | Exception, same_bits: bool
) -> bool:
    """Whether the saved tensors are unchanged, as far as a second backward shows.

    `same_bits`: whether a second backward of unchanged tensors has those of the first.
    """
    if isinstance(again, Exception):
        # torch counts writes to saved tensors and raises this message.
        return "inplace operation" not in str(again)
    return not same_bits or _same(gradients, again)


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
