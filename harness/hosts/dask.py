"""A Dask cluster as hosts: Dask does the scheduling, and runs again what was lost.

A batch goes where all that it needs is offered. Only names and bytes travel, and
functions by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import CancelledError, Future

import msgspec
from dask.distributed import Client
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker

from gradwatch.harness.hosts import host
from gradwatch.harness.hosts.identity import Offer
from gradwatch.harness.project.requested import Required

CONNECTING = 15.0  # seconds for the scheduler to answer
#: How often an error of the host itself, such as no memory, is tried elsewhere.
RETRIES = 2


class Cluster:
    """The workers of a Dask cluster; use it in `with`.

    gone: errors that say that none can be reached any longer. fatal: errors of a batch
    that took workers with it.
    """

    gone: tuple[type[BaseException], ...] = (CancelledError, FutureCancelledError)
    fatal: tuple[type[BaseException], ...] = (KilledWorker,)

    def __init__(self, address: str) -> None:
        self._address = address
        self._offers: dict[str, Offer] = {}

    def __enter__(self) -> Cluster:
        try:
            self._client = Client(self._address, timeout=CONNECTING)
        except (OSError, TimeoutError, ValueError) as error:
            why = f"no Dask scheduler answers at {self._address}"
            raise Required(f"{why} in {CONNECTING:g} s ({error})") from None
        return self

    def __exit__(self, *raised: object) -> None:
        self._client.close()

    def offers(self) -> Mapping[str, Offer]:
        """The offer of each worker; a new one is asked."""
        try:
            there = {*self._client.nthreads()}
        except OSError as error:
            raise Required(f"the scheduler {self._address} is gone: {error}") from None
        new = there - {*self._offers}
        self._offers = {name: o for name, o in self._offers.items() if name in there}
        if new:
            asked = self._client.run(host.offer, workers=list(new), on_error="return")
            for name, content in asked.items():
                if isinstance(content, bytes):
                    decoded = msgspec.msgpack.decode(content, type=Offer)
                    self._offers[name] = decoded
                elif not isinstance(content, OSError):  # that one has gone meanwhile
                    why = f"{type(content).__name__}: {content}"
                    raise Required(f"host {name} does not run gradwatch: {why}")
        return self._offers

    def submit(self, content: bytes, able: Collection[str]) -> Future[bytes]:
        """Have a worker run a batch: one of these, or any if there are none."""
        only = {"workers": list(able)} if able else {}
        executor = self._client.get_executor(retries=RETRIES, pure=False, **only)
        future: Future[bytes] = executor.submit(host.run, content)
        return future
