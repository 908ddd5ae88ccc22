"""Output for people: tables on standard output, progress on standard error."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)

from gradwatch.harness.project import documents, latest
from gradwatch.harness.project.documents import Document
from gradwatch.harness.project.records import Kind, Record, Summary

EVERY = 10.0  # seconds between two lines of progress in a log


def output() -> Console:
    """Standard output; a wide table is not folded when it goes to a file."""
    return _Console(width=None if sys.stdout.isatty() else 160, highlight=False)


def errors() -> Console:
    """Standard error, for everything that is not a result."""
    return _Console(stderr=True, highlight=False)


def say(line: str, style: str = "") -> None:
    """Print a line on standard error as it is, however wide the terminal."""
    errors().print(line, style=style, markup=False, soft_wrap=True)


def keep(
    kind: Kind[Record, Summary],
    content: Document[Record, Summary],
    json_file: str | None = None,
    *combined: latest.Combined[Summary, Record],
) -> None:
    """Merge a document into results/latest, and write a copy where one is asked for."""
    if json_file:
        documents.write(content, json_file)
    if why := latest.keep(kind, content, *combined):
        say(why, "yellow")


class _Console(Console):
    """A console that survives a closed pipe, such as `| head`: the run goes on."""

    def on_broken_pipe(self) -> None:
        """Let the rest go nowhere."""
        self.quiet = True
        nowhere(self.file.fileno())


def nowhere(stream: int) -> None:
    """Let what is still written to a descriptor go nowhere, without an error."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream)
    os.close(null)


def legible_streams() -> None:
    """Have printing never fail: a closed stream, or letters that it cannot show.

    What is opened next would get the number of a closed one, and what is printed.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # for as long as the process lives
        else:
            stream.reconfigure(errors="replace")


@contextlib.contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error if that is a terminal; each call advances it.

    Ctrl-C is never lost: Python drops an exception that is raised in a callback of the
    garbage collector (Hypothesis has one), so the next call raises it again.
    """
    with _interrupts() as heard, _bar(what) as move:

        def advance(done: int, total: int) -> None:
            if heard:
                raise KeyboardInterrupt
            move(done, total)

        yield advance


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Collects interrupts; each is raised as well."""
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard  # Python delivers signals only to the main thread
        return

    def hear(number: int, frame: object) -> None:
        heard.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, hear)
    try:
        yield heard
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _bar(what: str) -> Iterator[Callable[[int, int], None]]:
    if not sys.stderr.isatty():
        state = [what]
        with ticking(lambda: state[0]):
            yield lambda done, total: state.__setitem__(0, f"{what}: {done} of {total}")
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors(), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextlib.contextmanager
def ticking(what: Callable[[], str]) -> Iterator[None]:
    """A line on standard error every ten seconds where that is no terminal.

    A log that stays silent for minutes looks like a hang; a thread tells the lines, so
    that one long step does not silence them.
    """
    if sys.stderr.isatty():
        yield
        return
    over, begun = threading.Event(), time.monotonic()

    def tell() -> None:
        while not over.wait(EVERY):
            elapsed = time.monotonic() - begun
            sys.stderr.write(f"gradwatch: {what()}, {elapsed:.0f} s\n")
            sys.stderr.flush()

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
