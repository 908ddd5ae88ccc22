"""Compares the documents of `gradwatch agree` on 0, 1, 2 and more Dask workers.

    python -m scripts.studies.cluster --workers 1,2,4 --kill 3 [-- --op softmax ...]

Everything is judged on this machine, then on so many workers of a cluster that is
started on it, and then on two workers of which one is killed (SIGKILL) so many times,
at random moments of the run; each time another one is started. What comes after `--`
goes to `agree`. Nothing is remembered. The documents of clusters must be the same from
the first byte to the last, but for the date and the seconds; of the one made here the
records are sorted first, which come as its workers are done. Exit code: 0 if they are,
and as many workers were killed as asked; else 1, with the first differences.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers.lifetime import with_this_process

SHOWN = 5  # differences of two documents; the documents are kept
STARTING = 60.0  # seconds for a scheduler on a busy machine
LOOK = 0.2
#: Where in a run, as a share of what the same took before, a worker may be killed.
MOMENTS = (0.02, 0.95)


# A cluster ----------------------------------------------------------------------------


class Dask:
    """A scheduler and workers, each a process; use it in `with`.

    They are ended by SIGKILL, which ends their children, too: workers that are asked to
    leave at the same time as their scheduler may wait for it for ever. They also end
    with this process, and Ctrl-C reaches this process alone.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Dask:
        with self._stack:
            folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
            self._folder = Path(self._stack.enter_context(folder))
            self._file = self._folder / "scheduler.json"
            self._start("scheduler", "--host", "127.0.0.1", "--port", "0")
            self.address = self._answered()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def add(self) -> None:
        """Start one more worker."""
        folder = str(self._folder)
        options = ("--no-nanny", "--nthreads", "1", "--local-directory", folder)
        self._workers.append(self._start("worker", *options))

    def kill(self, chosen: random.Random) -> None:
        """Kill one of the workers."""
        victim = self._workers.pop(chosen.randrange(len(self._workers)))
        victim.kill()
        victim.wait()

    def _start(self, what: str, *options: str) -> subprocess.Popen[bytes]:
        code = [sys.executable, "-m", f"distributed.cli.dask_{what}", "--no-dashboard"]
        process = subprocess.Popen(
            [*code, "--scheduler-file", str(self._file), *options],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=with_this_process(),
        )
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def _answered(self) -> str:
        """The address that the scheduler has written down."""
        end = time.monotonic() + STARTING
        while time.monotonic() < end:
            with contextlib.suppress(OSError, ValueError):
                address: str = json.loads(self._file.read_text())["address"]
                return address.replace("tcp://", "dask://")
            time.sleep(LOOK)
        raise click.ClickException(f"no scheduler in {STARTING:g} s")


# A run ------------------------------------------------------------------------------


@dataclass
class Run:
    """A document, and how long it took; `killed` tells when, in seconds."""

    what: str
    document: dict[str, Any]
    seconds: float
    exit_code: int
    killed: list[float] = field(default_factory=list)


Beside = Callable[[float], None]


def run(
    what: str, file: Path, arguments: Sequence[str], limit: float, beside: Beside
) -> Run:
    """One run of `agree`; `beside` is called meanwhile, with the seconds so far."""
    print(f"{what}:", flush=True)
    file.unlink(missing_ok=True)
    call = [sys.executable, "-m", "gradwatch", "agree", *arguments, "--json", str(file)]
    begun = time.monotonic()
    process = subprocess.Popen(call, cwd=ROOT, stdout=subprocess.DEVNULL)
    try:
        while process.poll() is None:
            seconds = time.monotonic() - begun
            if seconds > limit:
                raise click.ClickException(f"{what}: not done in {limit:g} s")
            beside(seconds)
            time.sleep(LOOK)
    finally:
        _ended(process)
    seconds = time.monotonic() - begun
    if not file.exists():
        raise click.ClickException(f"{what}: exit code {process.returncode}")
    done = Run(what, json.loads(file.read_bytes()), seconds, process.returncode)
    count = len(done.document["records"])
    print(f"  {count:,} tensors in {seconds:.0f} s, exit code {done.exit_code}")
    return done


def _ended(process: subprocess.Popen[bytes]) -> None:
    """End a run that has not ended; first as Ctrl-C would."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(10.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def on_workers(number: int, file: Path, arguments: Sequence[str], limit: float) -> Run:
    """A run on so many workers."""
    with Dask() as cluster:
        for _ in range(number):
            cluster.add()
        call = [*arguments, "--on", cluster.address, *_share_of_cores(number)]
        what = f"{number} worker{'s' * (number > 1)}"
        return run(what, file, call, limit, lambda seconds: None)


def with_kills(
    moments: Sequence[float],
    chosen: random.Random,
    file: Path,
    arguments: Sequence[str],
    limit: float,
) -> Run:
    """A run on two workers, of which one is killed at each of the moments."""
    left, killed = sorted(moments), list[float]()
    with Dask() as cluster:
        cluster.add()
        cluster.add()

        def beside(seconds: float) -> None:
            if left and seconds >= left[0]:
                left.pop(0)
                cluster.kill(chosen)
                cluster.add()
                killed.append(seconds)
                print(f"  a worker killed after {seconds:.0f} s", flush=True)

        call = [*arguments, "--on", cluster.address, *_share_of_cores(2)]
        done = run("2 workers, some killed", file, call, limit, beside)
    done.killed = killed
    return done


def _share_of_cores(workers: int) -> tuple[str, ...]:
    """Workers of one machine share its cores; by default each would take them all."""
    return ("--jobs", str(max(1, (os.cpu_count() or 1) // workers)))


# Comparing ----------------------------------------------------------------------------


def comparable(document: Mapping[str, Any], *, sort: bool = False) -> dict[str, Any]:
    """A document without its date, its seconds and where it was made.

    sort: put the records in order, which nothing fixes on one machine.
    """
    content: dict[str, Any] = json.loads(json.dumps(document))
    content["environment"].pop("date")
    content["summary"].pop("seconds")
    content["summary"].pop("machines", None)
    if sort:
        names = ("case", "device", "backend")  # the order of a backend's tensors stays
        content["records"].sort(key=lambda r: [r[name] for name in names])
    return content


def differences(one: Any, other: Any, where: str = "") -> Iterator[str]:
    """In what two documents differ, a line each."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in dict.fromkeys([*one, *other]):
            here, there = one.get(key, "nothing"), other.get(key, "nothing")
            yield from differences(here, there, f"{where}.{key}".lstrip("."))
    elif isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            yield f"{where}: {len(one)} and {len(other)} entries"
        for i, (here, there) in enumerate(zip(one, other, strict=False)):
            yield from differences(here, there, f"{where}[{i}]{_named(here)}")
    elif one != other:
        yield f"{where}: {one!r} and {other!r}"


def _named(record: Any) -> str:
    if not isinstance(record, dict):
        return ""
    return "".join(f" {record.get(key, '')}" for key in ("case", "backend", "tensor"))


def verdict(here: Run, others: Sequence[Run]) -> Iterator[str]:
    """What differs, a line each."""
    first, *more = others
    pairs = [(here, first, True), *((first, one, False) for one in more)]
    for one, other, sort in pairs:
        told = 0
        a, b = (comparable(r.document, sort=sort) for r in (one, other))
        for line in differences(a, b):
            if (told := told + 1) > SHOWN:
                yield "  and more"
                break
            yield f"{one.what}, {other.what}: {line}"
        if not told and not sort and json.dumps(a) != json.dumps(b):
            yield f"{one.what}, {other.what}: the order of names differs"


@click.command()
@click.option("--workers", default="1,2,4", show_default=True, help="Numbers of them.")
@click.option("--kill", "kills", default=3, show_default=True, help="Workers to kill.")
@click.option("--seed", default=None, type=int, help="Of the moments; a new one each.")
@click.option("--limit", default=1800.0, show_default=True, help="Seconds for a run.")
@click.option(
    "--out",
    default=ROOT / "results" / "latest" / "cluster",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the documents.",
)
@click.argument("arguments", nargs=-1)
def main(
    workers: str,
    kills: int,
    seed: int | None,
    limit: float,
    out: Path,
    arguments: tuple[str, ...],
) -> None:
    """Print for each run how long it took, and whether all documents are identical."""
    os.environ["GRADWATCH_CACHE"] = "off"
    out.mkdir(parents=True, exist_ok=True)
    numbers = [int(number) for number in workers.split(",")]
    seed = random.randrange(1 << 30) if seed is None else seed
    chosen = random.Random(seed)
    print(f"load {os.getloadavg()[0]:.1f}, seed of the moments {seed}")
    here = run("here", out / "here.json", arguments, limit, lambda seconds: None)
    runs = [on_workers(n, out / f"{n}.json", arguments, limit) for n in numbers]
    if kills:
        took = runs[numbers.index(2)].seconds if 2 in numbers else here.seconds
        moments = [took * chosen.uniform(*MOMENTS) for _ in range(kills)]
        file = out / "killed.json"
        runs.append(with_kills(moments, chosen, file, arguments, limit))
    wrong = list(verdict(here, runs))
    if kills and len(runs[-1].killed) < kills:
        wrong.append(f"only {len(runs[-1].killed)} of {kills} workers were killed")
    names = ", ".join(one.what for one in (here, *runs))
    print("\n".join(wrong) or f"identical: {names}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
