"""What a batch costs on a host beside the judging itself (docs/cluster.md).

    python -m scripts.studies.batch_cost [HOST:PORT]

Without an address it starts a cluster with one worker, here. Two kinds of batches go to
it, one after the other: those that the host refuses, so that only the way there and
back is left; and those whose op has no case that is asked for, so that the host loads
the page, makes all the inputs of the op, and judges none.
"""

from __future__ import annotations

import os
import statistics
import time

import click
from msgspec import structs

from gradwatch.harness.agreement.remote import Asked
from gradwatch.harness.hosts.batches import Batch
from gradwatch.harness.hosts.dask import Cluster
from gradwatch.harness.hosts.identity import identity
from gradwatch.harness.project.documents import packed
from scripts.studies.cluster import LOOK, Dask


@click.command()
@click.argument("address", required=False)
@click.option("--batches", default=100, show_default=True)
def main(address: str | None, batches: int) -> None:
    """Print the median and the largest cost of a batch, in ms."""
    if address:
        measure(address, batches)
        return
    with Dask() as cluster:
        cluster.add()
        measure(cluster.address.removeprefix("dask://"), batches)


def measure(address: str, batches: int) -> None:
    """Measure on the workers of a cluster."""
    here = identity().digest
    asked = Asked(ops=["softmax"], backends=["numpy_manual"], jobs=1)
    nothing = structs.replace(asked, cases=["none"], dtypes=["float32"])
    with Cluster(address) as hosts:
        while not hosts.offers():
            time.sleep(LOOK)
        print(f"{len(hosts.offers())} hosts, load {os.getloadavg()[0]:.1f}")
        for what, batch in (
            ("there and back", Batch(asked, "another")),
            ("with the page and its inputs", Batch(nothing, here)),
        ):
            costs = [_seconds(hosts, batch) for _ in range(batches + 3)][3:]  # warm
            middle, most = statistics.median(costs), max(costs)
            size = len(packed(batch))
            print(f"{what}: {middle * 1e3:.1f} ms, at most {most * 1e3:.1f}", end="")
            print(f" ({batches} batches of {size} bytes)")


def _seconds(hosts: Cluster, batch: Batch) -> float:
    begun = time.perf_counter()
    hosts.submit(packed(batch), batch.device, batch.frameworks).result()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
