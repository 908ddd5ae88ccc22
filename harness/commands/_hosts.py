"""What the commands with `--on` share: who is at an address, and how busy they get."""

from __future__ import annotations

from contextlib import AbstractContextManager

import click
from click.core import ParameterSource

from gradwatch.harness.hosts.dispatch import Hosts, connected


def hosts_at(address: str) -> AbstractContextManager[Hosts]:
    """The hosts at an address; what is none is a wrong call."""
    try:
        return connected(address)
    except ValueError as error:
        raise click.UsageError(f"--on: {error}") from None


def jobs_there(jobs: int) -> int:
    """The jobs of a host: as many as it has cores (0), unless a number is given."""
    chosen = click.get_current_context().get_parameter_source("jobs")
    return 0 if chosen is ParameterSource.DEFAULT else jobs
