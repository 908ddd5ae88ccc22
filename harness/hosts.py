"""Hosts: has the workers of a Dask cluster judge, one op after the other.

Only names and bytes are sent, and one function by name. A host whose code differs from
this machine's refuses. Dask runs the op of a lost host again on another one.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import platform
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import structs

from gradwatch.harness.agreement.suite import Agreement, Asked, judge, judged, unjudged
from gradwatch.harness.console.terminal import say
from gradwatch.harness.judging.defects import known
from gradwatch.harness.project.documents import packed
from gradwatch.harness.project.machines import machine_name
from gradwatch.harness.project.paths import PROJECT, ROOT, SOURCE
from gradwatch.harness.project.requested import Required
from gradwatch.harness.workers.process import Child, Failed

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECTING = 15.0  # seconds for the scheduler to answer
PATIENCE = 45.0  # seconds for the first host to come: less than a minute
#: Further hosts for an op after an error of the host itself, such as no memory.
RETRIES = 2

Answer = tuple[str, str, Agreement]  # the machine, why it refuses, its verdicts

#: A thread for one op at a time. Linux ends the workers with the *thread* that started
#: them (prctl(2), PR_SET_PDEATHSIG): this one lives as long as the process.
_keeper = ThreadPoolExecutor(1, "gradwatch-host")


def connected(address: str) -> Client:
    """A client of the scheduler at an address.

    Raises:
        ValueError: It is no such address; the message shows the form of one.
        Required: No scheduler answers there.
    """
    scheme, _, place = address.partition("://")
    if scheme not in ("dask", "tls") or not place:
        raise ValueError(f"{address!r} is not local, dask://HOST:PORT or tls://...")
    from dask.distributed import Client  # an optional dependency

    if scheme == "dask":
        say("dask:// is not protected: whoever reaches it runs code; tls:// is")
    protocol = "tls" if scheme == "tls" else "tcp"
    # A worker's reply is never unpickled here.
    plain = {"serializers": ["msgpack"], "deserializers": ["msgpack"]}
    try:
        return Client(f"{protocol}://{place}", timeout=CONNECTING, **plain)
    except (OSError, TimeoutError, ValueError) as error:
        why = f"no Dask scheduler answers at {place} in {CONNECTING:g} s"
        raise Required(f"{why} ({error})") from None


def agree_on_hosts(
    client: Client,
    asked: Asked,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Agreement, list[str]]:
    """Judge a request on hosts; return the verdicts and the names of the machines.

    Raises:
        Required: There is no host, one has other code, or two have different versions.
    """
    from dask.distributed import as_completed

    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError:
        raise Required(f"no host has come for {PATIENCE:g} s") from None
    batches = [packed((code(), structs.replace(asked, ops=[op]))) for op in asked.ops]
    futures = client.map(run, batches, pure=False, retries=RETRIES)
    names = {one.key: op for one, op in zip(futures, asked.ops, strict=True)}
    answers = dict[Any, Answer]()
    try:
        for done in as_completed(futures, raise_errors=False):
            answers[done.key] = _answer(done, names[done.key])
            progress(len(answers), len(futures))
    finally:
        client.cancel(futures)
    agreement = Agreement()
    for key in names:  # in the order of the request, not of the answers
        agreement.add(answers[key][2])
    agreement.gone = known.gone(agreement.records, known.load())
    _refuse_mixture(agreement)
    return agreement, sorted({machine for machine, _, _ in answers.values()} - {""})


def _answer(future: Future[Any], op: str) -> Answer:
    """The reply of a host on an op; a crash of the op if several hosts died of it."""
    from distributed.client import FutureCancelledError
    from distributed.scheduler import KilledWorker

    try:
        answer: Answer = msgspec.msgpack.decode(future.result(), type=Answer)
    except KilledWorker:
        why = f"several hosts were lost with {op}"
        return "", "", Agreement([unjudged(Failed(op, "", "crash", why))])
    except (CancelledError, FutureCancelledError) as error:
        raise Required(f"the hosts are gone: {error}") from None
    except Exception as error:  # noqa: BLE001  # of the host's process, of any kind
        raise Required(f"no host can judge {op}: {error}") from None
    if answer[1]:
        raise Required(f"host {answer[0]} is refused: {answer[1]}")
    return answer


def _refuse_mixture(agreement: Agreement) -> None:
    found = defaultdict[str, set[str]](set)
    for record in agreement.records:
        found[record.framework] |= {record.framework_version} - {""}
    for name, versions in found.items():
        if len(versions) > 1:
            which = " and ".join(sorted(versions))
            raise Required(f"these hosts cannot judge together: {name} is {which}")


def code() -> str:
    """The versions, and a digest of our own files and the project's."""
    own = (ROOT / name for name in PROJECT.code if "*" not in name)
    places = (SOURCE / "harness", SOURCE / "impls", *own)
    digest = hashlib.sha256()
    for file in sorted({one for place in places for one in (place, *place.rglob("*"))}):
        if file.suffix != ".pyc" and file.is_file():
            base = SOURCE if file.is_relative_to(SOURCE) else ROOT
            digest.update(f"{file.relative_to(base)}".encode() + b"\0")
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    versions = (f"{name} {version(name)}" for name in ("numpy", "msgspec"))
    python = f"python {platform.python_version()}"
    return ", ".join((python, *versions, f"files {digest.hexdigest()[:12]}"))


# On the host ----------------------------------------------------------------------


def run(content: bytes) -> bytes:
    """Judge an op, or refuse; return a packed `Answer`."""
    return _keeper.submit(_run, content).result()


def _run(content: bytes) -> bytes:
    theirs, asked = msgspec.msgpack.decode(content, type=tuple[str, Asked])
    own, why = _imported(), ""
    if own != theirs:
        why = f"it has {own}, and this machine {theirs}"
    if own != code():
        why = "files have changed since it started: start it again"
    if why:
        return packed((machine_name(), why, Agreement()))
    asked = structs.replace(asked, jobs=os.cpu_count() or 1)
    return packed((machine_name(), "", judged(asked, _child())))


#: The code as it was when this process was first asked.
_imported = cache(code)


@cache
def _child() -> Child:
    """The process that loads pages, and keeps a worker of each framework."""
    child = Child(judge).__enter__()
    atexit.register(child.__exit__)
    return child
