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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gradwatch.harness.history import asv_results
from gradwatch.harness.project import documents, git, machines
from gradwatch.harness.project.documents import Document, Unreadable
from gradwatch.harness.project.git import NoCommit
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import TIME, TimeRecord, TimeSummary
from gradwatch.impls.catalogue import framework_of

#: The set of benchmarks that has all sizes, and the names of its parameters.
SUITE = "bench_sizes"
PARAMETERS = ("size", "dtype", "device", "backend")

# "softmax[normal-64x1024-float32]" is of the size "64x1024", as is "64x1024".
_CASE = r"\w+\[\w+-(?P<size>.+)-\w+\]"

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
        harness.project.machines.OtherMachine: The machine's name is another
        machine's. harness.project.documents.Unreadable: benchmarks.json is not there or
        damaged.
    """
    from asv.environment import get_env_name
    from asv.machine import Machine
    from asv.results import Results

    about = document.environment
    if about.dirty:
        raise Refused("measured on a changed tree: it belongs to no commit")
    if commit and about.commit not in ("", commit):
        raise Refused(f"it is of commit {about.commit[:8]}, not of {commit[:8]}")
    commit = about.commit or commit
    if not commit:
        raise Refused("it names no commit; say which with --commit")
    versions = _versions(document)
    traits = {
        "machine": about.machine,
        "arch": about.arch or about.cpu,
        "cpu": about.gpu or about.cpu,
        "num_cpu": str(about.cores),
        "os": about.system,
        "ram": about.ram or "",
    }
    machines.check_machine(folder, about.machine, traits)
    try:
        made = git.git("show", "-s", "--format=%at", f"{commit}^{{commit}}", root=root)
    except NoCommit:
        raise Refused(f"commit {commit[:8]} is not in this checkout") from None
    python = ".".join(about.python.split(".")[:2])
    environment = get_env_name("time", python, versions, {})
    params = {**traits, "python": python, **versions}
    date = int(made) * 1000  # in milliseconds
    result = Results(params, versions, commit, date, python, environment, {})
    result.load_data(str(folder))
    _add_times(result, asv_results.listed(folder), document)
    machine = Machine()
    machine.__dict__.update(traits)
    machine.save(str(folder))
    result.save(str(folder))
    return folder / str(result._filename)


def _versions(document: Times) -> dict[str, str]:
    """The versions of all timed frameworks."""
    given = (document.environment.versions or {}).items()
    versions = {name: version for name, version in given if version}
    for record in document.records:
        framework = framework_of(record.backend)
        version = record.framework_version or versions.get(framework)
        if not version:
            raise Refused(f"it does not say which version of {framework} was timed")
        versions[framework] = version
    return dict(sorted(versions.items()))


def _add_times(
    result: Any, known: Mapping[str, Mapping[str, Any]], document: Times
) -> None:
    """Add the times to asv's result; other parameters of a benchmark keep theirs."""
    from asv.runner import BenchmarkResult

    timed = defaultdict[str, dict[tuple[str, ...], TimeRecord]](dict)
    for record in document.records:
        size = re.sub(_CASE, r"\g<size>", record.case)
        values = (size, *(getattr(record, key) for key in PARAMETERS[1:]))
        name = f"{SUITE}.{record.op}.time_{record.phase}"
        timed[name][tuple(map(repr, values))] = record
    if not timed:
        raise Refused("it holds no times")
    earlier = {*result.get_all_result_keys()}
    for name, records in timed.items():
        if name not in known:
            raise Refused(
                f"{name} is not a benchmark; after a change of ops run"
                " `asv run --bench just-discover`"
            )
        columns = [known[name]["params"], [*zip(*records, strict=True)]]
        if name in earlier:
            columns.insert(1, result.get_result_params(name))
        params = [  # first the values of the benchmark, then new ones
            [*dict.fromkeys(itertools.chain(*several))]
            for several in zip(*columns, strict=True)
        ]
        points = list(itertools.product(*params))
        taken: list[tuple[Any, Any, Any]] = [(math.nan, None, None)] * len(points)
        for point, record in records.items():  # value, samples and calls in a sample
            of_samples = (True, record.samples, 1) if record.samples else ()
            taken[points.index(point)] = of_samples or (record.seconds, None, None)
        result.add_result(
            {**known[name], "params": params},
            BenchmarkResult(*map(list, zip(*taken, strict=True)), 0, "", None),
            started_at=datetime.datetime.fromisoformat(document.environment.date),
            selected_idx=[points.index(point) for point in records],
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Add documents to the history of this checkout."""
    parser = argparse.ArgumentParser(prog=f"python -m {__package__}.import_times")
    parser.add_argument("documents", nargs="+", metavar="time.json")
    parser.add_argument("--commit", default="", help="if the document names no commit")
    given = parser.parse_args(arguments)
    for source in given.documents:
        try:
            file = add(documents.read(source, TIME), commit=given.commit)
        except (Refused, Unreadable, machines.OtherMachine) as error:
            parser.exit(1, f"{source}: {error}\n")
        sys.stderr.write(f"{source}: recorded in {file.name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
