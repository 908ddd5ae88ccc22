"""The far side: a host judges batches with workers that it keeps between them.

Whatever calls `run` does so in a process of the same commit. The pages run in a child
of that process, so a crash, a hang or a page that exits is a verdict, as anywhere.
"""

from __future__ import annotations

import atexit
import os
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import msgspec
from msgspec import structs

from harness.agreement.remote import judge, judged
from harness.agreement.suite import Settled
from harness.hosts.batches import Answer, Batch
from harness.hosts.identity import Offer, own_offer, signature
from harness.project.documents import packed
from harness.workers.isolated import Isolated

#: One batch at a time. And Linux ends the workers with the *thread* that started them
#: (prctl(2), PR_SET_PDEATHSIG): this one lives as long as the process.
_keeper = ThreadPoolExecutor(1, "gradwatch-host")


class Changed(Exception):
    """Files were written after this process had imported them."""


@lru_cache(maxsize=1)
def _own() -> tuple[int, Offer]:
    """The state of the files when this host was first asked, and what it offers."""
    return signature(), own_offer()


@lru_cache(maxsize=1)
def _child() -> Isolated:
    """The process that loads pages, and keeps a worker of each framework."""
    child = Isolated(judge).__enter__()
    atexit.register(child.__exit__)
    return child


def offer() -> bytes:
    """What this host offers, an `Offer` as bytes."""
    return packed(_own()[1])


def run(content: bytes) -> bytes:
    """Judge a `Batch`; the `Answer`.

    Raises:
        Changed: It is not known what this process would judge with.
    """
    return _keeper.submit(_run, content).result()


def _run(content: bytes) -> bytes:
    batch, (before, own) = msgspec.msgpack.decode(content, type=Batch), _own()
    if own.identity.digest != batch.digest:
        return packed(Answer(own.machine, refusal=own.identity))
    if signature() != before:
        raise Changed("files have changed since this host started: start it again")
    asked = batch.asked
    jobs = asked.jobs or os.cpu_count() or 1
    agreed = judged(structs.replace(asked, jobs=jobs), _child())
    (op,) = asked.ops
    settled = Settled(op, "", batch.device)
    settled.records, settled.missing = agreed.records, agreed.missing
    settled.pairs = agreed.pairs.get(op, {})
    settled.unrepeatable = agreed.unrepeatable
    return packed(Answer(own.machine, settled))
