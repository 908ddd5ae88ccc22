"""A few machines as hosts, over SSH, with nothing to install but a checkout on each.

execnet starts a Python there, in the checkout, and hands it names and bytes. A host is
an executor with one thread; what is lost with it is judged by another one.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack

import execnet
import msgspec

from gradwatch.harness.agreement.suite import Required
from gradwatch.harness.hosts.identity import Offer, difference, identity
from gradwatch.harness.project.paths import ROOT

#: No question is asked where nobody can answer, and none is waited for (ssh_config(5)).
OPTIONS = "-o BatchMode=yes -o ConnectTimeout=15 -o ServerAliveInterval=15"
ENDING = 5.0  # seconds for a host to end by itself
#: What execnet raises when the other side has gone; the last where a write meets the
#: closing, once in forty times.
_ENDED = (OSError, EOFError, ValueError)


class Lost(Exception):
    """A host was lost with what it was at."""


def specification(place: str) -> str:
    """What execnet wants for `[USER@]HOST[/CHECKOUT]`; by default the path is ours."""
    login, _, folder = place.partition("/")
    root = f"/{folder}" if folder else str(ROOT)
    return f"ssh={OPTIONS} {login}//python={root}/.venv/bin/python//chdir={root}"


#: Runs on the host: its offer, and then what a whole command says and writes.
_COMMAND = f"""
from {__package__} import host
channel.send(host.offer())
arguments = channel.receive()
for part in host.command(arguments):
    channel.send(part)
"""
#: Runs on the host: its offer, and then the answer to each batch.
_SERVE = f"""
from {__package__} import host
channel.send(host.offer())
for content in channel:
    channel.send(host.run(content))
"""


@contextlib.contextmanager
def _nothing_left() -> Iterator[None]:
    """End a process that execnet 2 started but could not write its source to, or read.

    execnet forgets such a process; only a frame of the traceback still refers to it.
    """
    try:
        yield
    except (OSError, execnet.HostNotFound) as error:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            process = getattr(frame.f_locals.get("io"), "popen", None)
            if process is not None:
                process.kill()
                with contextlib.suppress(OSError):  # what was not sent is lost
                    process.communicate()
        raise


class _Gateway:
    """One host: the connection to it, and the thread that waits for its answers."""

    def __init__(
        self, name: str, specification: str, group: execnet.Group, job: str = _SERVE
    ) -> None:
        self.name = name
        try:
            with _nothing_left():
                gateway = group.makegateway(specification)
            self._channel = gateway.remote_exec(job)
            content = self._channel.receive()
        except (*_ENDED, execnet.RemoteError, execnet.HostNotFound) as error:
            raise Required(
                f"host {name} does not run gradwatch: {_why(error)}"
            ) from None
        self.offer = msgspec.msgpack.decode(content, type=Offer)
        self.pool = ThreadPoolExecutor(1, f"host-{name}")
        self.alive = True

    def ask(self, content: bytes) -> bytes:
        """The answer of the host to a batch.

        Raises:
            Lost: The host has gone.
            Required: It can judge nothing, and says why.
        """
        try:
            self._channel.send(content)
            answer: bytes = self._channel.receive()
        except _ENDED:
            self.alive = False
            raise Lost(self.name) from None
        except execnet.RemoteError as error:
            raise Required(f"host {self.name}: {_why(error)}") from None
        return answer

    def command(
        self, arguments: Sequence[str], said: Callable[[str], None]
    ) -> tuple[int, bytes]:
        """The exit code of a command of ours there, and the document that it wrote.

        Raises:
            Required: The host has gone, or cannot run it.
        """
        try:
            self._channel.send(list(arguments))
            for part in self._channel:
                if isinstance(part, tuple):
                    return part
                said(part)
        except (*_ENDED, execnet.RemoteError) as error:
            raise Required(f"host {self.name}: {_why(error)}") from None
        raise Required(f"host {self.name}: {_why(EOFError())}")


def command_on(
    place: str, arguments: Sequence[str], said: Callable[[str], None]
) -> tuple[int, bytes]:
    """Have one machine run a command of ours: its exit code, and its document as JSON.

    Args:
        place: `[USER@]HOST[/CHECKOUT]`.
        arguments: Those of `gradwatch`, without `--json`.
        said: Called with each line that the command says on standard error.

    Raises:
        Required: The machine is not there, or runs something else.
    """
    with ExitStack() as stack:
        group = execnet.Group()
        stack.callback(group.terminate, ENDING)
        host = _Gateway(place, specification(place), group, _COMMAND)
        if why := difference(identity(), host.offer.identity):
            raise Required(f"host {place} is refused: {why}")
        return host.command(arguments, said)


def _why(error: Exception) -> str:
    """In words: execnet says these in its own, and ssh itself has said more."""
    if isinstance(error, execnet.HostNotFound):
        return "ssh does not get there"
    if isinstance(error, _ENDED):
        return "the connection, or the Python of its checkout, has ended"
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


class Machines:
    """Hosts that are there from the beginning, by name; use it in `with`."""

    lost: tuple[type[BaseException], ...] = (Lost,)
    fatal: tuple[type[BaseException], ...] = ()

    def __init__(self, places: Sequence[str]) -> None:
        self._places = places
        self._hosts: list[_Gateway] = []
        self._busy = Counter[str]()
        self._stack = ExitStack()

    def __enter__(self) -> Machines:
        group = execnet.Group()
        self._stack.callback(group.terminate, ENDING)
        with self._stack, ThreadPoolExecutor(len(self._places)) as pool:
            started = [
                pool.submit(_Gateway, name, specification(name), group)
                for name in self._places
            ]
            self._hosts = [future.result() for future in started]
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()  # the connections first: a thread may wait for an answer
        for host in self._hosts:
            host.pool.shutdown(wait=True, cancel_futures=True)

    def offers(self) -> Mapping[str, Offer]:
        """What each host offers that is still there."""
        return {host.name: host.offer for host in self._hosts if host.alive}

    def submit(
        self, content: bytes, device: str, frameworks: set[str]
    ) -> Future[bytes]:
        """Have the host run a batch that has all it needs and the least to do."""
        able = [h for h in self._hosts if h.alive and h.offer.has(device, frameworks)]
        if not able:
            gone: Future[bytes] = Future()
            gone.set_exception(Lost("all that had it"))
            return gone
        host = min(able, key=lambda one: self._busy[one.name])
        self._busy[host.name] += 1
        future = host.pool.submit(host.ask, content)
        future.add_done_callback(lambda _: self._busy.subtract([host.name]))
        return future
