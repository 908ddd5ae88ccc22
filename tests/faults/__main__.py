"""`python -m tests.faults`: a campaign of faults from a seed, and its table."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click

from tests.faults import campaign, disks, documents, kills, pages
from tests.faults.campaign import Fault, Kind

#: Cheap ones by the hundred; a kill takes seconds, and so does a page that hangs.
KINDS = (
    Kind("mutated documents", 0.70, documents.inject),
    Kind("misbehaving pages", 0.15, pages.inject),
    Kind("full or read-only disk", 0.06, disks.inject),
    Kind("killed commands", 0.09, kills.inject),
)


@click.command()
@click.option("--faults", default=500, show_default=True, type=click.IntRange(min=4))
@click.option("--seed", default=1, show_default=True)
def main(faults: int, seed: int) -> None:
    """Inject faults, print what was lost, and end with 1 if anything was."""
    begun = time.monotonic()

    def progress(kind: str, fault: Fault) -> None:
        if fault.lost:
            click.echo(f"LOST: {kind}: {fault.what}: {dict(fault.lost)}", err=True)

    with tempfile.TemporaryDirectory(prefix="gradwatch-faults-") as folder:
        done = campaign.run(KINDS, faults, seed, Path(folder), progress)
    click.echo(campaign.table(done))
    losses = campaign.lost(done)
    for line in losses:
        click.echo(line)
    count = sum(map(len, done.values()))
    taken = time.monotonic() - begun
    click.echo(f"{count} faults of seed {seed}, {len(losses)} losses, {taken:.0f} s")
    raise SystemExit(1 if losses else 0)


if __name__ == "__main__":
    main()
