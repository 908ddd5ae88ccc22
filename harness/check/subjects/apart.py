"""An untrusted candidate: run in a process of its own, judged here."""

from __future__ import annotations

import contextlib
import pickle
import shutil
from typing import Any

import msgspec
import psutil
import torch

from gradwatch.harness.check.frameworks import (
    ARGUMENTS,
    Elsewhere,
    Raised,
    loop,
    observation,
    pytorch,
    runs,
)
from gradwatch.harness.check.frameworks.observation import Observation
from gradwatch.harness.check.frameworks.runs import Tensor
from gradwatch.harness.check.script import text_of
from gradwatch.harness.project.machines import memory
from gradwatch.harness.project.paths import scratch
from gradwatch.harness.tracing import calls
from gradwatch.harness.workers import fork
from gradwatch.harness.workers.arrays import decoded, legible
from gradwatch.harness.workers.lifetime import Died
from gradwatch.harness.workers.process import Process

#: Seconds for a step of a training.
PATIENCE = 60.0
#: The source that `loop.Training.observe` executes, once there is no training left.
OBSERVED = text_of(pytorch, observation, calls, runs, *pytorch.BINDING)
OBSERVED += (
    f"\n\nimport inspect\nfrom dataclasses import replace\nARGUMENTS = {ARGUMENTS!r}"
)


class Apart(Elsewhere):
    """An untrusted candidate in a confined process that runs a script.

    The requests are tensors and our own code, the replies tensors and texts; it can
    change nothing in this process. The training comes first, so that until then its
    process looks like anybody's training. `seconds` limit a reply in a trial;
    `loop.loaded` gets the other arguments. ValueError where it cannot be loaded.
    """

    def __init__(
        self, seconds: float, folder: str, name: str, init: Any = None
    ) -> None:
        self.__qualname__ = name.rpartition(":")[2]  # for `name_of`
        self._named, self._seconds = ("load", folder, name, init), seconds
        self._open = contextlib.ExitStack()
        self._process: Process | None = None
        self._has_trained = False
        try:
            self.names = self._asked(list[str], seconds, *self._named)
        except Raised as error:
            self.close()
            raise ValueError(f"the candidate cannot be loaded: {error}") from None

    def train(self, *request: Any) -> dict[str, list[Any]]:
        """The reply of `loop.Training`; Raised where the candidate raises."""
        self._has_trained = True
        kind = dict[str, list[Tensor | None]]
        found: dict[str, list[Any]] = self._asked(kind, PATIENCE, *request)
        return found

    def observe(self, call: Any, *how: Any) -> Observation[Tensor]:
        """`runs.observe` for the reference's call; Raised where the candidate does."""
        if self._has_trained:  # load it again, unchanged by the training
            self._asked(list[str], self._seconds, *self._named)
            self._has_trained = False
        given = call.args, call.kwargs, call.state, call.draws, call.results
        asked = self._seconds, "observe", OBSERVED, given, *how
        seen: Observation[Tensor] = self._asked(Observation[Tensor], *asked)
        return seen

    def close(self) -> None:
        """End the process, and remove its files."""
        self._open.close()

    def _asked(self, kind: Any, seconds: float, *request: Any) -> Any:
        process = self._process
        if process is None:
            process = self._process = self._begun()
            if request != self._named:
                self._asked(list[str], self._seconds, *self._named)

        def limited() -> None:
            """Kill the process where it takes half of the memory."""
            with contextlib.suppress(psutil.Error):
                if process.process.memory_info().rss > memory() // 2:
                    process.kill()

        process.say(pickle.dumps(request))
        try:
            content = process.heard(seconds, limited)
        except Died as why:
            self._process = None
            raise Raised(f"ended the process: {why}", ended=True) from None
        try:  # decode as data: the bytes may be anything, and no code runs
            said = decoded(content)
            raised = str(said.get("raised", ""))
            found = raised or msgspec.convert(unpacked(said["found"]), kind)
        except Exception:  # noqa: BLE001  # whatever the bytes are
            raise Raised("wrote into the pipe of its process", ended=True) from None
        if raised:
            raise Raised(legible(raised))
        return found

    def _begun(self) -> Process:
        home = self._open.enter_context(scratch("check")) / "home"
        home.mkdir()
        script = shutil.copy(loop.__file__, home / "train.py")
        where = loop.PIPE, str(script), str(home), [self._named[1]]
        begin = fork.__name__, fork.become.__name__
        begun = Process(*begin, *where, stdout=None, alone=True)
        self._open.callback(begun.close)
        self.missing = pickle.loads(begun.heard(PATIENCE))  # only our own code ran
        return begun


def unpacked(found: Any) -> Any:
    """The tensors and containers that `loop.packed` has packed."""
    if isinstance(found, (list, tuple)):
        return [unpacked(one) for one in found]
    if not isinstance(found, dict):
        return found
    if "dtype" not in found:
        return {name: unpacked(one) for name, one in found.items()}
    name, content = found["dtype"], found["content"]
    dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype) or len(content) % dtype.itemsize:
        raise ValueError("no tensor")
    flat = torch.frombuffer(bytearray(content or bytes(dtype.itemsize)), dtype=dtype)
    return flat[: len(content) // dtype.itemsize].reshape(found["shape"])
