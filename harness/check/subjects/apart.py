"""A candidate that nobody trusts: observed in a process of its own, judged here."""

from __future__ import annotations

import contextlib
import pickle
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from msgspec import Struct
from torch.utils._pytree import tree_leaves, tree_map

from gradwatch.harness.check.frameworks import Bound, Elsewhere, Raised
from gradwatch.harness.check.frameworks.binding import bind
from gradwatch.harness.check.frameworks.observation import Observation
from gradwatch.harness.check.frameworks.runs import Tensor, floating, in_short, observe
from gradwatch.harness.project.lock import scratch
from gradwatch.harness.workers.confinement import confine
from gradwatch.harness.workers.formulas.fork import Ended, Fork

#: Calls before each of some more trials at the end, and the most seconds for them: what
#: counts its calls, or is right when it is called slowly, shows. What is wrong in every
#: seventh call is missed by thirty with a chance of 1 %.
CALLS, AFTER, CALLING = 150, 30, 0.1
#: Seconds after which three are enough: a reference may take one.
ENOUGH = 10.0


class Answer(Struct):
    """What was observed, or raised in its place; tensors travel as bytes."""

    raised: str = ""
    seen: Observation[Tensor] | None = None
    missing: list[str] = []


class Apart(Elsewhere):
    """The candidate that `load` returns, in a confined fork of this process.

    What is sent to it are tensors; what it answers are tensors and texts. It never
    learns which of its calls are judged, and nothing that it changes is here. It is
    called `calls` times before it is observed the next time.

    Raises:
        ValueError: It cannot be loaded.
    """

    def __init__(
        self, name: str, load: Callable[[], Any], read: Sequence[Path], seconds: float
    ) -> None:
        self.__qualname__, self.calls = name, 0  # for who names it
        self._load, self._read, self._seconds = load, read, seconds
        self._open = contextlib.ExitStack()
        self._scratch = self._open.enter_context(scratch("check")) / "own"
        self._scratch.mkdir()
        self._candidate: Any = None
        self._fork = Fork(self._answer, lambda: None)
        loaded = self._asked(None)
        self.missing = loaded.missing
        if loaded.raised:
            self.close()
            raise ValueError(f"the candidate cannot be loaded: {loaded.raised}")

    def observe(self, bound: Bound, *how: Any) -> Observation[Tensor]:
        """See `runs.observe`; `how` are its arguments after the tensors.

        Raises:
            Raised: By the candidate.
        """
        sent = replace(bound, traced=None, call=replace(bound.call, function=bool))
        answer, self.calls = self._asked((sent, how, self.calls)), 0
        if answer.seen is None:
            raise Raised(answer.raised)
        return answer.seen

    def close(self) -> None:
        """End it, and remove what it has written."""
        self._fork.end()
        self._open.close()

    def _asked(self, request: Any) -> Answer:
        try:
            content = self._fork.ask(pickle.dumps(request))
            return msgspec.msgpack.decode(content, type=Answer, dec_hook=_received)
        except Ended as how:
            return Answer(f"ended the process: {how}")
        except (msgspec.MsgspecError, RuntimeError):
            return Answer("wrote into the pipe of its process")

    # --- in the fork ------------------------------------------------------------------

    def _answer(self, content: bytes) -> bytes:
        """Answer the judge, which alone has sent this."""
        request, answer = pickle.loads(content), Answer()
        try:
            if self._candidate is None:
                answer.missing = confine(self._scratch, self._read, self._seconds)
                self._candidate = self._load()
            if request:
                bound, how, calls = request
                self._train(bound, calls)
                call = bind(self._candidate, bound)
                answer.seen = observe(call, bound.tensors, bound.wanted, *how)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises
            answer.raised = in_short(error)
        return msgspec.msgpack.encode(answer, enc_hook=_sent)

    def _train(self, bound: Bound, calls: int) -> None:
        """Call it as a training loop does: itself, with what it has kept."""
        function, end = self._candidate, time.monotonic() + CALLING
        state = () if isinstance(function, torch.nn.Module) else bound.tensors
        state = state[len(state) - len(bound.call.state) :]
        for _ in range(calls):
            if time.monotonic() > end:
                return
            given = tree_map(_leaf, (bound.call.args, dict(bound.call.kwargs)))
            found = tree_leaves(function(*given[0], *state, **given[1]))
            outputs = [y for y in found if floating(y) and y.requires_grad]
            if outputs:
                dys = [y.detach() / max(1, y.numel()) for y in outputs]
                torch.autograd.backward(outputs, dys)


def _leaf(value: Any) -> Any:
    """A tensor that no earlier call has seen."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def _sent(value: Any) -> Any:
    """A tensor as its type, its shape and its bytes."""
    if not isinstance(value, Tensor):
        raise TypeError(f"returned {type(value).__name__}, no tensor")
    held = value.detach().cpu().resolve_conj()
    flat = torch.empty(held.numel(), dtype=held.dtype)  # one element has any stride
    flat.copy_(held.reshape(-1))
    content = flat.view(torch.uint8).numpy().tobytes()
    return str(held.dtype), list(held.shape), content


def _received(kind: type, sent: Any) -> Any:
    """The tensor.

    Raises:
        msgspec.ValidationError: It is none.
    """
    name, shape, content = msgspec.convert(sent, tuple[str, list[int], bytes])
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or len(content) % dtype.itemsize:
        raise msgspec.ValidationError("no tensor")
    flat = torch.frombuffer(bytearray(content or bytes(dtype.itemsize)), dtype=dtype)
    return flat[: len(content) // dtype.itemsize].reshape(shape)
