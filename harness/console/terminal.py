"""Output for people: tables on standard output, progress on standard error."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice

import click
from rich.console import Console
from rich.text import Text

from gradwatch.harness.console.streams import ANEW, nowhere, ticking
from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Document
from gradwatch.harness.project.records import Kind, Record, Summary


def output() -> Console:
    """The console of standard output; a file gets wide tables without folding."""
    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return _Console(width=wide, highlight=False)


def say(line: str, style: str = "") -> None:
    """Print a line on standard error as it is, however wide the terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(ANEW)  # in place of the progress
    console = _Console(stderr=True, highlight=False)
    console.print(line, style=style, markup=False, soft_wrap=True)


def keep(
    kind: Kind[Record, Summary],
    content: Document[Record, Summary],
    json_file: str | None = None,
    *combined: documents.Combined[Summary, Record],
) -> None:
    """Merge a document into results/latest; at the end copy it to a file, if given."""
    if json_file:  # the table is shown even where the file cannot be written
        at_end = click.get_current_context().call_on_close
        at_end(partial(documents.write, content, json_file))
    if why := documents.keep(kind, content, *combined):
        say(why, "yellow")


def ending(found: str, style: str, *, absent: str = "", next_step: str = "") -> None:
    """Print the last lines of a command: its result, parts not run, the next step."""
    console, sign = output(), {"green": "✓", "red": "✗"}.get(style, "▲")
    console.print(f"{sign} {found}", style=style, markup=False)
    if absent:
        console.print(f"not run: {absent}", style="yellow", markup=False)
    if next_step:
        console.print(f"next: {next_step}", style="dim", markup=False)


def show_grouped(
    title: str, headings: Sequence[str], groups: Mapping[str, Sequence[Sequence[str]]]
) -> None:
    """Print a table whose cells are never cut: each group has a line for its name.

    The first column is at the left, the others are at the right; cells are markup.
    """
    rows = [headings, *chain.from_iterable(groups.values())]
    cells = [[Text.from_markup(cell) for cell in row] for row in rows]
    for place, column in enumerate(zip(*cells, strict=True)):
        width = max(cell.cell_len for cell in column)
        for cell in column:
            cell.align("right" if place else "left", width)
    console, lines = output(), map(Text("  ").join, cells)
    console.print(title, style="italic", markup=False, soft_wrap=True)
    console.print(" ", next(lines), style="italic", soft_wrap=True)
    for name, several in groups.items():
        console.print(name, style="bold", markup=False, soft_wrap=True)
        for line in islice(lines, len(several)):
            console.print(" ", line, soft_wrap=True)


def many(count: int, what: str) -> str:
    """A count with its noun, in the plural unless it is 1."""
    return f"{count} {what}{'' if count == 1 else 's'}"


class _Console(Console):
    """A console that survives a closed pipe, such as `| head`: the run goes on."""

    def on_broken_pipe(self) -> None:
        """Discard the rest of the output."""
        self.quiet = True
        nowhere(self.file.fileno())


@contextlib.contextmanager
def progress(
    what: str, limit: float = math.inf
) -> Iterator[Callable[[int, int], None]]:
    """Show a line with the seconds left; yield the function that updates it.

    The estimate ends at the `limit`, in seconds, at the latest. A step that takes
    longer than was estimated has none.
    """
    begun = time.monotonic()
    state = 0, 0, begun  # with the time at which all should be done

    def note(done: int, total: int) -> None:
        nonlocal state
        each = (time.monotonic() - begun) / max(done, 1)
        state = done, total, begun + min(each * total, limit)

    def line() -> str:
        done, total, end = state
        rest = end - time.monotonic()
        left = f", {rest:.0f} s left" if done and rest >= 1 else ""
        return f"{what}: {done} of {total}{left}" if total else what

    with ticking(line):
        yield note
