"""A candidate that nobody trusts: observed in a process of its own, judged here."""

from __future__ import annotations

import contextlib
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import psutil
import torch
from msgspec import Struct

from gradwatch.harness.check.frameworks import Bound, Elsewhere, Raised, loop
from gradwatch.harness.check.frameworks.binding import bind
from gradwatch.harness.check.frameworks.observation import Observation
from gradwatch.harness.check.frameworks.runs import Tensor, observe
from gradwatch.harness.project.lock import scratch
from gradwatch.harness.project.machines import memory
from gradwatch.harness.workers import confinement
from gradwatch.harness.workers.arrays import legible
from gradwatch.harness.workers.evaluate import in_short
from gradwatch.harness.workers.formulas.fork import Ended, Fork
from gradwatch.harness.workers.process import Process

#: Seconds for a step of a training.
PATIENCE = 60.0


#: How a process begins that becomes a script.
_BEGIN = confinement.__name__, confinement.become.__name__


class Answer(Struct):
    """What was observed, or raised in its place; tensors travel as bytes."""

    raised: str = ""
    seen: Observation[Tensor] | None = None
    missing: list[str] = []


class Head(Struct):
    """What `loop.main` raised, or the types and shapes of the tensors that follow."""

    raised: str = ""
    tensors: dict[str, list[tuple[str, list[int]] | None]] = {}


class Apart(Elsewhere):
    """A candidate that nobody trusts, in confined processes of its own.

    What is sent there are tensors; what comes back are tensors and texts, and nothing
    that it changes is here. Trials are run in a fork of this process, a training in a
    script that holds nothing of ours.

    Args:
        seconds: Of processor time, in trials.
        folder, name, init: As for `loop.loaded`.

    Raises:
        ValueError: It cannot be loaded.
    """

    def __init__(
        self, seconds: float, folder: str, name: str, init: Any = None
    ) -> None:
        self.__qualname__ = name.rpartition(":")[2]  # for who names it
        self._named, self._seconds = (folder, name, init), seconds
        self._open = contextlib.ExitStack()
        self._scratch = self._open.enter_context(scratch("check")) / "own"
        self._scratch.mkdir()
        self._candidate: Any = None
        self._training: Process | None = None
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
        answer = self._asked((sent, how))
        if answer.seen is None:
            raise Raised(answer.raised)
        return answer.seen

    def train(self, *request: Any) -> dict[str, list[Any]]:
        """What `loop.Training` answers, in a process that holds nothing of ours.

        Raises:
            Raised: By the candidate.
        """
        if self._training is None:
            self._training = self._begun()
            self.train("load", *self._named)
        try:
            self._training.connection.send_bytes(pickle.dumps(request))
            head = msgspec.json.decode(self._heard(self._training), type=Head)
            found = {
                name: [
                    s and _received(Tensor, (*s, self._heard(self._training)))
                    for s in each
                ]
                for name, each in head.tensors.items()
            }
        except (EOFError, OSError) as error:
            how = self._training.end()
            late = isinstance(error, TimeoutError)
            why = f"no answer in {PATIENCE:g} s" if late else how
            raise Raised(f"ended the process: {why}", ended=True) from None
        except (msgspec.MsgspecError, RuntimeError, ValueError):
            raise Raised("wrote into the pipe of its process", ended=True) from None
        if head.raised:
            raise Raised(legible(head.raised))
        return found

    def _begun(self) -> Process:
        home = self._scratch / "home"
        home.mkdir()
        script = shutil.copy(loop.__file__, home / "train.py")
        where = loop.PIPE, str(script), str(home), [self._named[0]]
        begun = Process(*_BEGIN, *where, stdout=None, alone=True)
        self._open.callback(begun.close)
        begun.heard(PATIENCE)
        return begun

    def _heard(self, training: Process) -> bytes:
        """What it says; it is killed where it takes half of the memory."""

        def limited() -> None:
            with contextlib.suppress(psutil.Error):
                if training.process.memory_info().rss > memory() // 2:
                    training.kill()

        return training.heard(PATIENCE, limited)

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
                answer.missing = confinement.confine(
                    self._scratch, [Path(self._named[0])], self._seconds
                )
                self._candidate = loop.loaded(*self._named)
            if request:
                bound, how = request
                call = bind(self._candidate, bound)
                answer.seen = observe(call, bound.tensors, bound.wanted, *how)
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises
            answer.raised = in_short(error)
        return msgspec.msgpack.encode(answer, enc_hook=_sent)


def _sent(value: Any) -> Any:
    """A tensor as its type, its shape and its bytes."""
    if not isinstance(value, Tensor):
        raise TypeError(f"returned {type(value).__name__}, no tensor")
    return loop.described(value)


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
