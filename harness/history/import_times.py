"""Timings made elsewhere, written into asv's history: of a machine that has no asv.

    python -m harness.history.import_times time.json

A document of `gradwatch time` becomes a result file as asv itself would write it, with
its machine named and its versions recorded, beside the series of other machines and
never among them.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import math
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.history import asv_results
from harness.project import documents, git
from harness.project.documents import Document, Unreadable
from harness.project.git import NoCommit
from harness.project.paths import ROOT
from harness.project.records import TIME, Environment, TimeRecord, TimeSummary
from impls.catalogue import framework_of

#: The set of benchmarks that has all sizes, and the names of its parameters.
SUITE = "bench_sizes"
PARAMETERS = ("size", "dtype", "device", "backend")

# "softmax[normal-64x1024-float32]" is of the size "64x1024", as is "64x1024".
_CASE = re.compile(r"(?:\w+\[\w+-)?(?P<size>.+?)(?:-\w+\])?")

Times = Document[TimeRecord, TimeSummary]


class Refused(ValueError):
    """A document that the history cannot take; the message says why."""


def add(
    document: Times,
    folder: Path = asv_results.RESULTS,
    *,
    commit: str = "",
    root: Path = ROOT,
) -> Path:
    """Write the times of a document into a results folder of asv; return the file.

    Args:
        document: What `gradwatch time --json` wrote.
        folder: Where asv's benchmarks.json and the machines' folders are.
        commit: What was measured, for a document made outside a git checkout.
        root: The checkout that has this commit.

    Raises:
        Refused: The tree was changed, the commit is not known, a version is not told.
        harness.history.asv_results.OtherMachine: The machine's name is another
        machine's. harness.project.documents.Unreadable: benchmarks.json is not there or
        damaged.
    """
    from asv.machine import Machine
    from asv.results import Results

    about, timed = document.environment, document.records
    commit = _commit(about, commit)
    traits = _traits(about)
    versions = _versions(about, timed)
    python = ".".join(about.python.split(".")[:2])
    asv_results.check_machine(folder, traits)
    known = asv_results.benchmarks(folder)
    result = Results(
        {**traits, "python": python, **versions},
        versions,
        commit,
        _date(commit, root),
        python,
        _environment(python, versions),
        {},
    )
    result.load_data(str(folder))
    for name, several in _by_benchmark(timed).items():
        _add(result, known.get(name), name, several, about.date)
    machine = Machine()
    machine.__dict__.update(traits)
    machine.save(str(folder))
    result.save(str(folder))
    return folder / str(result._filename)


def _commit(about: Environment, told: str) -> str:
    """The commit that was measured, and nothing else."""
    if about.dirty:
        raise Refused("measured on a changed tree: it belongs to no commit")
    if told and about.commit not in ("", told):
        raise Refused(f"it is of commit {about.commit[:8]}, not of {told[:8]}")
    commit = about.commit or told
    if not commit:
        raise Refused("it names no commit; say which with --commit")
    return commit


def _traits(about: Environment) -> dict[str, str]:
    """A machine in asv's words; a GPU is part of what it is called."""
    return {
        "machine": about.machine,
        "arch": about.arch or about.cpu,
        "cpu": about.gpu or about.cpu,
        "num_cpu": str(about.cores),
        "os": about.system,
        "ram": about.ram or "",
    }


def _versions(about: Environment, timed: Sequence[TimeRecord]) -> dict[str, str]:
    """Versions of all frameworks that were timed."""
    versions = {name: told for name, told in (about.versions or {}).items() if told}
    if not timed:
        raise Refused("it holds no times")
    for record in timed:
        framework = framework_of(record.backend)
        version = record.framework_version or versions.get(framework)
        if not version:
            raise Refused(f"it does not say which version of {framework} was timed")
        versions[framework] = version
    return dict(sorted(versions.items()))


def _environment(python: str, versions: Mapping[str, str]) -> str:
    from asv.environment import get_env_name

    return str(get_env_name("time", python, versions, {}))


def _date(commit: str, root: Path) -> int:
    """When the commit was made, in milliseconds, as asv dates it."""
    try:
        made = git.git("show", "-s", "--format=%at", f"{commit}^{{commit}}", root=root)
    except NoCommit:
        raise Refused(f"commit {commit[:8]} is not in this checkout") from None
    return int(made) * 1000


def _by_benchmark(
    timed: Iterable[TimeRecord],
) -> dict[str, dict[tuple[str, ...], TimeRecord]]:
    """Records by benchmark, then by their parameters as asv writes them."""
    found: dict[str, dict[tuple[str, ...], TimeRecord]] = defaultdict(dict)
    for record in timed:
        name = f"{SUITE}.{record.op}.time_{record.phase}"
        case = _CASE.fullmatch(record.case)
        assert case is not None, "the pattern matches any name"
        values = (case["size"], *(getattr(record, key) for key in PARAMETERS[1:]))
        found[name][tuple(map(repr, values))] = record
    return dict(found)


def _add(
    result: Any,
    benchmark: Mapping[str, Any] | None,
    name: str,
    several: Mapping[tuple[str, ...], TimeRecord],
    date: str,
) -> None:
    """Add one benchmark's times; those of other parameters stay as they were."""
    from asv.runner import BenchmarkResult

    if benchmark is None:
        raise Refused(
            f"{name} is not a benchmark; after a change of ops run"
            " `asv run --bench just-discover`"
        )
    earlier = [*result.get_all_result_keys()]
    before = result.get_result_params(name) if name in earlier else benchmark["params"]
    params = _all_values(benchmark["params"], before, [*zip(*several, strict=True)])
    points = list(itertools.product(*params))
    taken = [_taken(several.get(point)) for point in points]
    result.add_result(
        {**benchmark, "params": params},
        BenchmarkResult(*map(list, zip(*taken, strict=True)), 0, "", None),
        started_at=datetime.datetime.fromisoformat(date),
        selected_idx=[i for i, point in enumerate(points) if point in several],
    )


def _all_values(*params: Sequence[Sequence[str]]) -> list[list[str]]:
    """The benchmark's own values of each parameter, then those that others add."""
    columns = zip(*params, strict=True)
    return [[*dict.fromkeys(itertools.chain(*column))] for column in columns]


def _taken(record: TimeRecord | None) -> tuple[Any, Any, Any]:
    """Value, samples and number as asv takes them; its own median where it can."""
    if record is None:
        return math.nan, None, None
    if record.samples:
        return True, record.samples, 1
    return record.seconds, None, None


def main(arguments: Sequence[str] | None = None) -> int:
    """Add documents to the history of this checkout."""
    parser = argparse.ArgumentParser(prog="python -m harness.history.import_times")
    parser.add_argument("documents", nargs="+", metavar="time.json")
    parser.add_argument("--commit", default="", help="of a document that names none")
    given = parser.parse_args(arguments)
    for source in given.documents:
        try:
            file = add(documents.read_whole(source, TIME), commit=given.commit)
        except (Refused, Unreadable, asv_results.OtherMachine) as error:
            parser.exit(1, f"{source}: {error}\n")
        sys.stderr.write(f"{source}: recorded in {file.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
