"""Endpoint: the worker's side of the wire; answers requests in a framework's process.

Runs on Python 3.10 with NumPy 1.26 and the framework, nothing else. A request is a dict
of builtin types; its handler is named under "request". The answer is such a dict, too,
with a "kind" (result, unsupported, missing, error). Requests are answered in order, in
the main thread, so a crash or hang belongs to the first request without an answer.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import platform
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any, NoReturn

import numpy as np

from gradwatch.harness.project.traits import compiles, traits_of
from gradwatch.harness.timing import handlers as clock
from gradwatch.harness.workers import integrity
from gradwatch.harness.workers.arrays import decoded, encoded
from gradwatch.harness.workers.evaluate import Missing, evaluate, in_short, load_backend
from gradwatch.harness.workers.formulas.fork import CHANGED, Ended, Fork
from gradwatch.harness.workers.lifetime import adopt_orphans
from gradwatch.impls.catalogue import backend_names, framework_of, known
from gradwatch.impls.contract import Unsupported

DEVICES = ("cpu", "cuda")

_LONGEST_LOG = 256 << 20  # bytes: an op that prints endlessly must not fill the disk


class DeviceLost(Exception):
    """The GPU answers every further call of this process with the same error."""


class Channel(Connection):
    """This side of the pipe to the process that asks."""

    def __iter__(self) -> Iterator[bytes]:
        with contextlib.suppress(EOFError):  # there is nobody who asks
            while True:
                yield self.recv_bytes()


def work(number: int) -> None:
    """Worker entry point: serve descriptor `number`, then end without delay.

    The interpreter's own end is not waited for: OneFlow's takes a third of a second.
    """
    os.set_inheritable(number, False)  # what a page starts need not know of it
    adopt_orphans()
    try:
        serve(Channel(number))
    except BaseException:  # noqa: BLE001  # the traceback's last line says why it ended
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def serve(channel: Any) -> None:
    """Answer requests until the channel closes.

    Raises:
        DeviceLost: A request has lost the device. It gets no answer, so that it is the
            one that the crash belongs to, and the next ones get another process.

    Where gradients are judged, each page has a fork of this process; where a framework
    cannot be forked, this process ends before another page if one has changed it.
    """
    _settle()
    fork, page = Fork(_answered, lambda: channel.close()), ""
    for content in channel:
        request = decoded(content)
        # A worker that was started for the clock judges and times in one process.
        if request["request"] != "evaluate" or _probed.get("timed"):
            channel.send_bytes(_answered(content))
            continue
        # Not where each would compile again, nor on a GPU, which no fork can use.
        forks = traits_of(_probed["framework"]).forks and request["device"] == "cpu"
        apart = forks and not compiles(request["backend"])
        if request["op"] != page:
            fork.end()
            if page and not apart and integrity.changes(_probed["framework"]):
                os._exit(CHANGED)
            page = request["op"]
        try:
            channel.send_bytes(fork.ask(content) if apart else _answered(content))
        except Ended as how:
            _end_likewise(how.code)


def _end_likewise(code: int) -> NoReturn:
    """End as a fork has ended: by the same signal, or with the same status."""
    if code < 0:
        faulthandler.disable()  # what the page was doing has been written
        with contextlib.suppress(OSError):  # of SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _answered(content: bytes) -> bytes:
    """The answer to a request, as it travels, with what none but it can know."""
    request = decoded(content)
    reply, nonce = answer(request), {"nonce": request.get("nonce")}
    try:
        return encoded(reply | nonce)
    except Exception as error:  # noqa: BLE001  # of a type or size that cannot be sent
        return encoded(_failure("error", error) | nonce)


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """The handler's answer, or the error.

    Raises:
        DeviceLost: See `serve`.
    """
    try:
        handler = _handler(request["request"])
        with _modules_kept():
            reply = {"kind": "result", **handler(request)}
    except Unsupported as reason:
        reply = _failure("unsupported", reason, str(reason))
    except Missing as reason:
        reply = _failure("missing", reason, str(reason))
    except BaseException as error:  # noqa: BLE001  # SystemExit of an op, too, is its error
        reply = _failure("error", error)
    _confirm_device()
    return reply


def _confirm_device() -> None:
    """Wait for a GPU that is in use: its errors arrive later, at any call.

    After most of them (an illegal address, an assertion in a kernel) its context is
    lost for good, and each further call raises the same error (CUDA runtime API,
    "Error Handling", sticky errors). One that is raised here belongs to the request
    that has just been handled: there was no other since the last time.

    Raises:
        DeviceLost: It has failed.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    try:
        cuda.synchronize()
    except Exception as error:  # PyTorch's class for it changes by version
        raise DeviceLost(in_short(error)) from error


_probed: dict[str, Any] = {}  # what this worker was started for
_modules: dict[str, Any] = {}  # the largest state of sys.modules so far


@contextlib.contextmanager
def _modules_kept() -> Iterator[None]:
    """Undo what a page may do to sys.modules: others could import nothing any more."""
    if len(sys.modules) != len(_modules):
        _modules.update(sys.modules)
    try:
        yield
    finally:
        if __name__ not in sys.modules:
            sys.modules.update(_modules)


def probe(request: Mapping[str, Any]) -> dict[str, Any]:
    """Import a framework, and report its version, backends and devices.

    `timed` says that what is judged will be timed here. `backends` holds, for each
    backend of the framework, `error` (why it cannot be imported, or "") and `devices`
    (for each why it cannot be used, or "").
    """
    framework = request["framework"]
    _probed.update(request)
    backends = {
        name: _examine(name)
        for name in backend_names()
        if framework_of(name) == framework
    }
    _sweep_once(framework)
    versions = [b["version"] for b in backends.values() if b["version"]]
    says = getattr(sys.modules.get(framework), "get_num_threads", None)
    integrity.remember(framework)  # before any page is read
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "version": versions[0] if versions else "",
        "backends": backends,
        "threads": int(says() if says else os.environ.get("OMP_NUM_THREADS", "0")),
    }


def _examine(name: str) -> dict[str, Any]:
    try:
        backend = load_backend(name)
    except Missing as reason:
        return {"error": str(reason), "version": "", "devices": {}}
    devices = {device: backend.missing(device) for device in DEVICES}
    return {"error": "", "version": backend.version(), "devices": devices}


def _sweep_once(framework: str) -> None:
    """Let a framework import the rest of itself, if it does so at its first backward.

    That takes half a second (sympy), which would be in the first time of whoever is
    first; and it makes 40,000 objects, which every collection would look at if they
    came after those that `integrity.remember` freezes.
    """
    module = sys.modules.get(framework)
    with contextlib.suppress(Exception):  # a broken one is reported where it is used
        if module and traits_of(framework).finishes_importing:
            x, dy = module.ones((), requires_grad=True), module.ones(())
            module.autograd.grad(x * x, x, dy)


def _failure(kind: str, error: BaseException, message: str = "") -> dict[str, Any]:
    return {"kind": kind, "message": message or in_short(error)}


def _settle() -> None:
    """Write no core file, and print where a crash was."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LONGEST_LOG, hard))
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)


def _handler(name: str) -> Handler:
    """The handler of a request.

    Raises:
        UnknownName: There is none.
    """
    known("request", name, (*HANDLERS, EXAMINE))
    if name == EXAMINE:  # it imports the judge, which most workers do not need
        HANDLERS[name] = importlib.import_module(
            f"{__package__}.selftest.examine"
        ).examine
    return HANDLERS[name]


Handler = Callable[[Mapping[str, Any]], dict[str, Any]]

EXAMINE = "examine"
TIMED = "prepare sample in_turn compare kept draw call computed release"
#: The handlers, by the name in a request; each takes it and returns builtin types.
HANDLERS: dict[str, Handler] = {
    "probe": probe,
    "evaluate": evaluate,
    **{name: getattr(clock, name) for name in TIMED.split()},
}
