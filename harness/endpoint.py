"""Endpoint: the worker's side of the wire; answers requests in a framework's process.

It has NumPy and the framework alone. Requests are answered in order, in the main
thread, so a crash or hang belongs to the first one without an answer, whose "kind" is
result, unsupported, missing or error.
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
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.timing import handlers as clock
from gradwatch.harness.workers import integrity
from gradwatch.harness.workers.arrays import decoded, encoded
from gradwatch.harness.workers.evaluate import Missing, evaluate, in_short, load_backend
from gradwatch.harness.workers.fork import CHANGED, Fork
from gradwatch.harness.workers.lifetime import Died, adopt_orphans
from gradwatch.impls.catalogue import backend_names, framework_of, known
from gradwatch.impls.contract import Unsupported

DEVICES = ("cpu", "cuda")

_LONGEST_LOG = 256 << 20  # bytes: an op that prints endlessly must not fill the disk


class DeviceLost(Exception):
    """The GPU is lost: every further call of this process gets the same error."""


def work(number: int, framework: str, timed: bool) -> None:
    """Worker entry point: send the facts, serve descriptor `number`, end at once.

    It skips the interpreter's own shutdown, which takes OneFlow a third of a second.
    """
    os.set_inheritable(number, False)  # processes of a page must not inherit it
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LONGEST_LOG, hard))
    faulthandler.enable()
    try:
        channel = Connection(number)
        channel.send_bytes(answer({"request": "probe", "framework": framework}))
        serve(channel, framework, timed)
    except BaseException:  # noqa: BLE001  # the traceback's last line says why it ended
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def serve(channel: Any, framework: str, timed: bool = False) -> None:
    """Answer requests until the pipe is closed.

    Where gradients are only judged, not `timed`, each page gets a fork of this process;
    where a framework cannot be forked, this process ends before the next page if the
    last one has changed it.

    Raises:
        DeviceLost: A request has lost the device. It gets no answer, so that it counts
            as the crash, and the next ones get another process.
    """
    fork, page = Fork(lambda asked: answer(decoded(asked)), lambda: channel.close()), ""
    while True:
        try:
            content = channel.recv_bytes()
        except EOFError:
            return
        request = decoded(content)
        if request["request"] != "evaluate" or timed:
            channel.send_bytes(answer(request))
            continue
        # Not where each fork would compile again, nor on a GPU, which no fork can use.
        forks = traits_of(framework).forks and request["device"] == "cpu"
        apart = forks and not traits_of(request["backend"]).compiles
        if request["op"] != page:
            fork.end()
            if page and not apart and integrity.changes(framework):
                os._exit(CHANGED)
            page = request["op"]
        try:
            channel.send_bytes(fork.ask(content) if apart else answer(request))
        except Died as how:
            if how.code < 0:  # the fork has written its traceback already
                faulthandler.disable()
                with contextlib.suppress(OSError):  # of SIGKILL
                    signal.signal(-how.code, signal.SIG_DFL)
                os.kill(os.getpid(), -how.code)
            os._exit(how.code)


def answer(request: Mapping[str, Any]) -> bytes:
    """The handler's answer or its error, with the request's secret nonce.

    `DeviceLost` is raised, see `serve`.
    """
    nonce = {"nonce": request.get("nonce")}
    try:
        handler = HANDLERS[known("request", request["request"], HANDLERS)]
        reply = {"kind": "result", **handler(request)}
    except Unsupported as reason:
        reply = {"kind": "unsupported", "message": str(reason) or in_short(reason)}
    except Missing as reason:
        reply = {"kind": "missing", "message": str(reason) or in_short(reason)}
    except BaseException as error:  # noqa: BLE001  # SystemExit of an op, too, is its error
        reply = {"kind": "error", "message": in_short(error)}
    _confirm_device()
    try:
        return encoded(reply | nonce)
    except Exception as error:  # noqa: BLE001  # of a type or size that cannot be sent
        return encoded({"kind": "error", "message": in_short(error), **nonce})


def _confirm_device() -> None:
    """Wait for a GPU that is in use: its errors arrive later, at any call.

    Most are sticky (CUDA runtime API, "Error Handling"). An exception here belongs to
    the request that has just been handled.
    """
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not cuda.is_initialized():
        return
    try:
        cuda.synchronize()
    except Exception as error:  # PyTorch's class for it changes by version
        raise DeviceLost(in_short(error)) from error


def probe(request: Mapping[str, Any]) -> dict[str, Any]:
    """Import a framework, and report its version, backends and devices.

    `backends` holds, for each backend of the framework, `error` (why it cannot be
    imported, or "") and `devices` (for each why it cannot be used, or "").
    """
    framework, backends = request["framework"], dict[str, Any]()
    for name in backend_names():
        if framework_of(name) == framework:
            backends[name] = {"error": "", "version": "", "devices": {}}
            try:
                backend = load_backend(name)
            except Missing as reason:
                backends[name]["error"] = str(reason)
            else:
                devices = {device: backend.missing(device) for device in DEVICES}
                backends[name] |= {"version": backend.version(), "devices": devices}
    # Some frameworks import further modules at their first backward. That takes half a
    # second (sympy), which would be part of the first time measured; and every garbage
    # collection would traverse the 40,000 objects if they came after those that
    # `integrity.remember` freezes.
    module = sys.modules.get(framework)
    with contextlib.suppress(Exception):  # a broken one is reported where it is used
        if module and traits_of(framework).finishes_importing:
            x, dy = module.ones((), requires_grad=True), module.ones(())
            module.autograd.grad(x * x, x, dy)
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


TIMED = "prepare sample in_turn kept draw call computed release"
#: The handlers, by the name in a request; each takes it and returns builtin types.
HANDLERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "probe": probe,
    "evaluate": evaluate,
    "examine": lambda request: dict(  # imports the judge, which few workers need
        importlib.import_module(f"{__package__}.selftest.examine").examine(request)
    ),
    **{name: getattr(clock, name) for name in TIMED.split()},
}
