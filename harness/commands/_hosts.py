"""What the commands with `--on` share: who is at an address, and how busy they get."""

from __future__ import annotations

from collections.abc import Collection
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


def given(without: Collection[str]) -> list[str]:
    """The options of the running command as they were given, for another machine."""
    context = click.get_current_context()
    said = list[str]()
    for option in context.command.params:
        name = option.name or ""
        source = context.get_parameter_source(name)
        if name in without or source is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        for one in value if isinstance(value, tuple) else (value,):
            flag = isinstance(option, click.Option) and option.is_flag
            said += [option.opts[0], *([] if flag else [str(one)])]
    return said
