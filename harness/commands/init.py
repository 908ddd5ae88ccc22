"""`gradwatch init`: make a repository of your own ready, and judge its first op."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click

from gradwatch.harness.commands import _starting as starting
from gradwatch.harness.project.paths import VARIABLE
from gradwatch.harness.workers.lifetime import with_this_process


@click.command()
@click.argument("wanted", metavar="[MODULE:NAME]", required=False)
def command(wanted: str | None) -> int:
    r"""Make a repository of your own ready, and judge its first op.

    Writes a table into pyproject.toml, one op page, one test, a workflow for the night,
    asv.conf.json and lines of .gitignore; says what was written, and never overwrites.
    With MODULE:NAME of a function or an autograd.Function of yours the page and the
    test are about that; its formula is taken from its own text where that can be read,
    and is yours to check. Ends with the first verdict.

    \b
    Examples:
      gradwatch init
      gradwatch init mykernels:FastSilu
    """
    root = _root(Path.cwd())
    try:
        about = starting.subject(wanted, root) if wanted else starting.example()
    except starting.NotUsable as error:
        raise click.UsageError(str(error)) from None
    for name, done in starting.write(about, root):
        click.echo(f"{done:>8}  {name}")
    click.echo(f"\n$ gradwatch agree --op {about.name}")
    return _first_verdict(about.name, root)


def _root(folder: Path) -> Path:
    """The nearest folder upwards with a pyproject.toml or a git repository, or this."""
    marks = ("pyproject.toml", ".git")
    places = (folder, *folder.parents)
    return next((p for p in places if any((p / m).exists() for m in marks)), folder)


def _first_verdict(op: str, root: Path) -> int:
    """Of a process of its own, which finds the table that has just been written."""
    variables = {k: v for k, v in os.environ.items() if k != VARIABLE}
    call = [sys.executable, "-m", "gradwatch", "agree", "--op", op]
    done = subprocess.run(call, cwd=root, env=variables, preexec_fn=with_this_process())
    return done.returncode
