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
@click.argument("wanted", metavar="[MODULE:NAME]...", nargs=-1)
def command(wanted: tuple[str, ...]) -> int:
    r"""Make a repository of your own ready, and judge its first op.

    Writes a table into pyproject.toml, one op page, one test, one benchmark, a workflow
    for the night, asv.conf.json and lines of .gitignore; says what was written, and
    never overwrites. With MODULE:NAME of a function or an autograd.Function of yours
    the page and the test are about that; its formula is taken from its own text where
    that can be read, and is yours to check. Ends with the first verdict. Without a
    name, in a repository with several kernels, it lists them.

    \b
    Examples:
      gradwatch init
      gradwatch init mykernels:FastSilu
    """
    root = _root(Path.cwd())
    there = [] if wanted else starting.kernels(root)
    if len(there) > 1:
        listed = "\n".join(f"  gradwatch init {name}" for name in there)
        raise click.UsageError(f"which of {len(there)} kernels, or several?\n{listed}")
    try:
        chosen = [starting.subject(name, root) for name in wanted or there]
    except starting.NotUsable as error:
        raise click.UsageError(str(error)) from None
    chosen = chosen or [starting.example()]
    for about in chosen:
        for name, done in starting.write(about, root):
            click.echo(f"{done:>8}  {name}")
    troubles = [why for about in chosen if (why := starting.trouble(about, root))]
    for why in troubles:
        click.echo(f"✗ {why}", err=True)
    if troubles:
        return 1
    names = [about.name for about in chosen]
    click.echo(f"\n$ gradwatch agree --op {','.join(names)}")
    return _first_verdict(",".join(names), root)


def _root(folder: Path) -> Path:
    """The nearest folder upwards with a pyproject.toml or a git repository, or this."""
    marks = ("pyproject.toml", ".git")
    places = (folder, *folder.parents)
    return next((p for p in places if any((p / m).exists() for m in marks)), folder)


def _first_verdict(op: str, root: Path) -> int:
    """Of a process of its own, which finds the table that has just been written."""
    variables = {k: v for k, v in os.environ.items() if k != VARIABLE}
    following = "pytest; git add . && git commit; asv run 'HEAD^!'"
    call = [sys.executable, "-m", "gradwatch", "agree", "--op", op, "--next", following]
    done = subprocess.run(call, cwd=root, env=variables, preexec_fn=with_this_process())
    return done.returncode
