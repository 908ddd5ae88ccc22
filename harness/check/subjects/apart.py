"""A candidate that nobody trusts: observed in a process of its own, judged here."""

from __future__ import annotations

import pickle
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct
from torch.utils._pytree import tree_leaves, tree_map

from gradwatch.harness.check.runs import (
    Observation,
    Tensor,
    floating,
    in_short,
    observe,
)
from gradwatch.harness.check.subjects.binding import Bound, bind
from gradwatch.harness.workers.confinement import confine
from gradwatch.harness.workers.formulas.fork import Ended, Fork
from gradwatch.harness.workers.process import how_ended

#: Calls before a few more trials at the end, and the most seconds for those of each:
#: what counts its calls, or is right when it is called slowly, shows.
CALLS, AFTER, CALLING = 1500, 3, 1.0


class Sent(Struct):
    """A tensor as it travels."""

    dtype: str
    shape: list[int]
    content: bytes


Tensors = list[Sent | None]


class Seen(Struct):
    """An `Observation`, or what was raised in its place."""

    raised: str = ""
    outputs: Tensors = []
    gradients: Tensors = []
    leaves: Tensors = []
    others: list[tuple[str, list[int], Tensors]] = []
    faults: list[tuple[str, int, str]] = []
    refused: list[tuple[str, list[int], str]] = []
    repeatable: bool = True
    notes: list[str] = []


class Raised(Exception):
    """What the candidate has raised, or how it has ended its process."""


class Apart:
    """The candidate that `load` returns, in a confined fork of this process.

    What is sent to it are tensors; what it answers are tensors and texts. It never
    learns which of its calls are judged, and nothing that it changes is here.

    Raises:
        ValueError: It cannot be loaded.
    """

    def __init__(
        self, name: str, load: Callable[[], Any], read: Sequence[Path], seconds: float
    ) -> None:
        self.name = name
        self._load, self._read, self._seconds = load, read, seconds
        self._scratch = tempfile.TemporaryDirectory(prefix="gradwatch-")
        self._candidate: Any = None
        self.calls = 0
        self._fork = Fork(self._answer, lambda: None)
        loaded = self._asked(None)
        self.missing = loaded.notes
        if loaded.raised:
            self.close()
            raise ValueError(f"the candidate cannot be loaded: {loaded.raised}")

    def observe(
        self,
        bound: Bound,
        cotangents: Sequence[Tensor | None],
        frozen: Sequence[tuple[int, ...]],
        thorough: bool,
    ) -> Observation:
        """See `runs.observe`; the candidate is called `calls` times before.

        Raises:
            Raised: By the candidate.
        """
        sent = replace(bound, traced=None, call=replace(bound.call, function=bool))
        seen = self._asked((sent, cotangents, frozen, thorough, self.calls))
        self.calls = 0
        if seen.raised:
            raise Raised(seen.raised)
        return Observation(
            [t for t in _received(seen.outputs) if t is not None],
            _received(seen.gradients),
            [t for t in _received(seen.leaves) if t is not None],
            [(how, tuple(at), _received(found)) for how, at, found in seen.others],
            seen.faults,
            [(how, tuple(at), words) for how, at, words in seen.refused],
            seen.repeatable,
        )

    def close(self) -> None:
        """End it, and remove what it has written."""
        self._fork.end()
        self._scratch.cleanup()

    def _asked(self, request: Any) -> Seen:
        try:
            answer = self._fork.ask(pickle.dumps(request))
            return msgspec.msgpack.decode(answer, type=Seen)
        except Ended as how:
            return Seen(f"ended the process: {how_ended(how.code)}")
        except msgspec.MsgspecError:
            return Seen("wrote into the pipe of its process")

    # --- in the fork ------------------------------------------------------------------

    def _answer(self, content: bytes) -> bytes:
        """Answer the judge, which alone has sent this."""
        request, notes = pickle.loads(content), list[str]()
        try:
            if self._candidate is None:
                notes = confine(Path(self._scratch.name), self._read, self._seconds)
                self._candidate = self._load()
            seen = self._observed(*request) if request else Seen(notes=notes)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises
            seen = Seen(in_short(error), notes=notes)
        return msgspec.msgpack.encode(seen)

    def _observed(
        self, bound: Bound, cotangents: Any, frozen: Any, thorough: bool, calls: int
    ) -> Seen:
        call = bind(self._candidate, bound)
        end = time.monotonic() + CALLING
        for _ in range(calls):
            if time.monotonic() > end:
                break
            self._train(bound)
        seen = observe(call, bound.tensors, bound.wanted, cotangents, frozen, thorough)
        return Seen(
            "",
            _sent(seen.outputs),
            _sent(seen.gradients),
            _sent(seen.leaves),
            [(how, list(at), _sent(found)) for how, at, found in seen.others],
            seen.faults,
            [(how, list(at), words) for how, at, words in seen.raised],
            seen.repeatable,
        )

    def _train(self, bound: Bound) -> None:
        """Call it as a training loop does: itself, with what it has kept."""
        given = tree_map(_leaf, (bound.call.args, dict(bound.call.kwargs)))
        function = self._candidate
        state = () if isinstance(function, torch.nn.Module) else bound.tensors
        state = state[len(state) - len(bound.call.state) :]
        found = tree_leaves(function(*given[0], *state, **given[1]))
        outputs = [y for y in found if floating(y) and y.requires_grad]
        if outputs:
            torch.autograd.backward(outputs, [y.detach() / y.numel() for y in outputs])


def _leaf(value: Any) -> Any:
    """A tensor that no earlier call has seen."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def _sent(tensors: Sequence[Tensor | None]) -> Tensors:
    return [None if t is None else _packed(t.detach().cpu()) for t in tensors]


def _packed(tensor: Tensor) -> Sent:
    content = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return Sent(str(tensor.dtype), list(tensor.shape), content)


def _received(tensors: Tensors) -> list[Tensor | None]:
    return [None if sent is None else _tensor(sent) for sent in tensors]


def _tensor(sent: Sent) -> Tensor:
    dtype = getattr(torch, sent.dtype.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise Raised(f"returned a tensor of type {sent.dtype[:40]!r}")
    flat = torch.frombuffer(bytearray(sent.content or bytes(8)), dtype=dtype)
    return flat[: len(sent.content)].reshape(sent.shape)
