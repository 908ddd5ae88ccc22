"""The far side: a host judges batches with workers that it keeps between them.

Whatever calls `run` does so in a process of the same commit. The pages run in a child
of that process, so a crash, a hang or a page that exits is a verdict, as anywhere.
"""

from __future__ import annotations

import atexit
import os
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import msgspec
from msgspec import structs

from gradwatch.harness.agreement.remote import judge, judged
from gradwatch.harness.agreement.suite import Asked
from gradwatch.harness.hosts.identity import Offer, identity, own_offer
from gradwatch.harness.project.documents import packed
from gradwatch.harness.workers.child import Child

#: One batch at a time. And Linux ends the workers with the *thread* that started them
#: (prctl(2), PR_SET_PDEATHSIG): this one lives as long as the process.
_keeper = ThreadPoolExecutor(1, "gradwatch-host")


class Changed(Exception):
    """Files were written after this process had imported them."""


@cache
def _own() -> Offer:
    """What this host offers, with the files as they were when it was first asked."""
    return own_offer()


@cache
def _child() -> Child:
    """The process that loads pages, and keeps a worker of each framework."""
    child = Child(judge).__enter__()
    atexit.register(child.__exit__)
    return child


def offer() -> bytes:
    """The `Offer` of this host, as bytes."""
    return packed(_own())


def run(content: bytes) -> bytes:
    """Judge a batch; the name of this machine, and the `Agreement`.

    Raises:
        Changed: It is not known what this process would judge with.
    """
    return _keeper.submit(_run, content).result()


def _run(content: bytes) -> bytes:
    asked = msgspec.msgpack.decode(content, type=Asked)
    own = _own()
    if identity() != own.identity:
        raise Changed("files have changed since this host started: start it again")
    asked = structs.replace(asked, jobs=asked.jobs or os.cpu_count() or 1)
    return packed((own.machine, judged(asked, _child())))
