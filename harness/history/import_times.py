"""Adds times of a machine without asv to asv's history.

    python -m gradwatch.harness.history.import_times time.json

A document of `gradwatch time` becomes a result file in asv's format, with its machine
and its versions. It never becomes part of another machine's series.
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

from gradwatch.harness.history import asv_results
from gradwatch.harness.project import documents, git
from gradwatch.harness.project.documents import Document, Unreadable
from gradwatch.harness.project.git import NoCommit
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import TIME, Environment, TimeRecord, TimeSummary
from gradwatch.impls.catalogue import framework_of

#: The set of benchmarks that has all sizes, and the names of its parameters.
SUITE = "bench_sizes"
PARAMETERS = ("size", "dtype", "device", "backend")

# "softmax[normal-64x1024-float32]" is of the size "64x1024", as is "64x1024".
_CASE = re.compile(r"(?:\w+\[\w+-)?(?P<size>.+?)(?:-\w+\])?")

Times = Document[TimeRecord, TimeSummary]


class Refused(ValueError):
    """The document cannot be added to the history; the message says why."""


def add(
    document: Times,
    folder: Path = asv_results.RESULTS,
    *,
    commit: str = "",
    root: Path = ROOT,
) -> Path:
    """Write the times of a document into a results folder of asv; return the file.

    Args:
        document: A document of `gradwatch time --json`.
        folder: The folder with asv's benchmarks.json and the machines' folders.
        commit: The measured commit, if the document was made outside a git checkout.
        root: The checkout that has this commit.

    Raises:
        Refused: The tree was changed, or the commit or a version is unknown.
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
    known = asv_results.listed(folder)
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


def _commit(about: Environment, given: str) -> str:
    """The commit that was measured; refused if there were uncommitted changes."""
    if about.dirty:
        raise Refused("measured on a changed tree: it belongs to no commit")
    if given and about.commit not in ("", given):
        raise Refused(f"it is of commit {about.commit[:8]}, not of {given[:8]}")
    commit = about.commit or given
    if not commit:
        raise Refused("it names no commit; say which with --commit")
    return commit


def _traits(about: Environment) -> dict[str, str]:
    """The machine in asv's format; the name includes a GPU."""
    return {
        "machine": about.machine,
        "arch": about.arch or about.cpu,
        "cpu": about.gpu or about.cpu,
        "num_cpu": str(about.cores),
        "os": about.system,
        "ram": about.ram or "",
    }


def _versions(about: Environment, timed: Sequence[TimeRecord]) -> dict[str, str]:
    """The versions of all timed frameworks."""
    versions = {
        name: version for name, version in (about.versions or {}).items() if version
    }
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
    """The date of a commit in milliseconds, as asv has it."""
    try:
        made = git.git("show", "-s", "--format=%at", f"{commit}^{{commit}}", root=root)
    except NoCommit:
        raise Refused(f"commit {commit[:8]} is not in this checkout") from None
    return int(made) * 1000


def _by_benchmark(
    timed: Iterable[TimeRecord],
) -> dict[str, dict[tuple[str, ...], TimeRecord]]:
    """The records by benchmark, and by parameters as asv writes them."""
    records: dict[str, dict[tuple[str, ...], TimeRecord]] = defaultdict(dict)
    for record in timed:
        name = f"{SUITE}.{record.op}.time_{record.phase}"
        case = _CASE.fullmatch(record.case)
        assert case is not None, "the pattern matches any name"
        values = (case["size"], *(getattr(record, key) for key in PARAMETERS[1:]))
        records[name][tuple(map(repr, values))] = record
    return dict(records)


def _add(
    result: Any,
    benchmark: Mapping[str, Any] | None,
    name: str,
    several: Mapping[tuple[str, ...], TimeRecord],
    date: str,
) -> None:
    """Add the times of one benchmark; other parameters keep theirs."""
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
    """The values of each parameter: first those of the benchmark, then new ones."""
    columns = zip(*params, strict=True)
    return [[*dict.fromkeys(itertools.chain(*column))] for column in columns]


def _taken(record: TimeRecord | None) -> tuple[Any, Any, Any]:
    """Value, samples and number in asv's format."""
    if record is None:
        return math.nan, None, None
    if record.samples:
        return True, record.samples, 1
    return record.seconds, None, None


def main(arguments: Sequence[str] | None = None) -> int:
    """Add documents to the history of this checkout."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.import_times")
    parser.add_argument("documents", nargs="+", metavar="time.json")
    parser.add_argument("--commit", default="", help="if the document names no commit")
    given = parser.parse_args(arguments)
    for source in given.documents:
        try:
            file = add(documents.read(source, TIME), commit=given.commit)
        except (Refused, Unreadable, asv_results.OtherMachine) as error:
            parser.exit(1, f"{source}: {error}\n")
        sys.stderr.write(f"{source}: recorded in {file.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
