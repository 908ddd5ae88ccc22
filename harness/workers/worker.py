"""One worker: a framework's process that answers requests.

A thread for each worker puts its answers into a queue of events, so that one thread can
handle several workers. A worker is ended by killing it: it keeps no data, and a hanging
one would not react to anything else.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from gradwatch.harness.project.lock import scratch
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.workers.allocator import (
    HUGE_PAGES_ENVIRONMENT,
    MALLOC_ENVIRONMENT,
)
from gradwatch.harness.workers.arrays import decoded, encoded
from gradwatch.harness.workers.formulas.fork import CHANGED
from gradwatch.harness.workers.process import Process
from gradwatch.harness.workers.pythons.interpreters import Interpreter

STARTING = 120.0  # seconds for importing a framework from a cold disk, under load
_JOINING = 1.0  # seconds for the thread that listens to a worker to see its end

_ENDPOINT = f"{__package__.rpartition('.')[0]}.endpoint"

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Died(Exception):
    """A worker has ended or did not start; the message says how."""


@dataclass(frozen=True)
class Event:
    """An answer of a worker; `reply` is None when it has ended. `at` is monotonic."""

    worker: Worker
    reply: Mapping[str, Any] | None
    at: float


class Worker(Process):
    """A process that answers requests of `gradwatch.harness.endpoint` in order.

    Its first answer is that of `probe`. `measured` is the checkout whose `impls` it
    runs. With `huge_pages` its heap uses huge pages, if the system has them. `programs`
    is a folder in which JAX finds what another worker has compiled. `handlers` are
    requests that it will get beside `evaluate`.

    Raises:
        Died: It did not start.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        events: SimpleQueue[Event],
        *,
        threads: int = 1,
        measured: Path = ROOT,
        huge_pages: bool = False,
        programs: str = "",
        handlers: Sequence[str] = (),
    ) -> None:
        self._interpreter = interpreter
        self._heard = self._over = False
        self._open = contextlib.ExitStack()
        variables = _variables(threads, huge_pages, programs)
        try:
            if name := traits_of(interpreter.framework).compiles_into:
                compiled = self._open.enter_context(scratch("worker")) / "compiled"
                variables[name] = str(compiled)
            super().__init__(
                _ENDPOINT,
                "work",
                python=interpreter.python,
                measured=measured,
                variables=variables,
                logged=True,
            )
        except OSError as error:
            self._open.close()
            raise Died(self._no_worker(repr(error))) from error
        self._listener = threading.Thread(
            target=self._listen, args=[events], daemon=True
        )
        self._listener.start()
        asked = {"framework": interpreter.framework, "handlers": list(handlers)}
        self.send("probe", asked)

    def _listen(self, events: SimpleQueue[Event]) -> None:
        """Put all that it answers among the events, and then its end."""
        with contextlib.suppress(Exception):  # a page, too, can write into the pipe
            while True:
                content = self.connection.recv_bytes()
                self._heard = True
                events.put(Event(self, dict(decoded(content)), time.monotonic()))
        self._over = True
        events.put(Event(self, None, time.monotonic()))

    @property
    def alive(self) -> bool:
        """Whether it is there and its pipe is open, which closes first."""
        return not self._over and super().alive

    @property
    def changed(self) -> bool:
        """Whether it ended since a page had replaced something that others use."""
        return bool(self.process.poll() == CHANGED)

    def _no_worker(self, why: str) -> str:
        return f"{self._interpreter.shown} runs, but not as a worker ({why})"

    def send(self, request: str, payload: Mapping[str, Any]) -> None:
        """Send a request; if the worker is dead, an event says so, not an error."""
        with contextlib.suppress(OSError):
            self.connection.send_bytes(encoded({"request": request, **payload}))

    def _how(self, code: int) -> str:
        how = super()._how(code)
        return how if self._heard or code < 0 else self._no_worker(how)

    def close(self) -> None:
        """End it and remove its log, and what it has compiled."""
        super().close()
        self._open.close()

    def _close_pipe(self) -> None:
        if self._listener.is_alive():
            self._listener.join(_JOINING)
        if not self._listener.is_alive():  # else what the worker started holds the pipe
            super()._close_pipe()


def import_error(facts: Mapping[str, Any]) -> str:
    """Why no backend of a framework can be imported; "" if one can."""
    if facts["kind"] != "result":
        return str(facts["message"])
    errors = [backend["error"] for backend in facts["backends"].values()]
    return str(errors[0]) if errors and all(errors) else ""


def _variables(threads: int, huge_pages: bool, programs: str) -> dict[str, str]:
    """What a worker's environment has besides ours."""
    return {
        **MALLOC_ENVIRONMENT,
        **(HUGE_PAGES_ENVIRONMENT if huge_pages else {}),
        **dict.fromkeys(_THREADS, str(threads)),
        "GLOG_minloglevel": "2",  # OneFlow: errors only
        **(_kept(programs) if programs else {}),
    }


def _kept(programs: str) -> dict[str, str]:
    """JAX's settings to keep in a folder all that it compiles, however small or quick.

    docs.jax.dev, "Persistent compilation cache".
    """
    return {
        "JAX_COMPILATION_CACHE_DIR": programs,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    }
