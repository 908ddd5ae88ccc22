"""Gathers what result files say into series: by machine, environment and benchmark."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.history.recorded import asv_files
from gradwatch.harness.history.recorded.asv_files import Benchmark, Facts, Layout
from gradwatch.harness.history.recorded.index import Index
from gradwatch.harness.history.recorded.series import Figures, Runs, Series
from gradwatch.harness.project.documents import Unreadable


def gathered(
    indexed: Index, known: Mapping[str, Benchmark], rank: Mapping[str, int]
) -> tuple[tuple[Series, ...], list[Unreadable]]:
    """The series of an index, and the reason for each file that cannot be read."""
    groups = defaultdict[tuple[str, str], list[tuple[Path, Facts]]](list)
    sound, troubles = _Sound(), list[Unreadable]()
    for file in indexed.files:
        try:
            facts = sound.facts(file, indexed)
        except Unreadable as error:
            troubles.append(error)
        else:
            groups[facts.machine, facts.environment].append((file, facts))
    several = (
        _group(files, indexed, known, rank).series() for files in groups.values()
    )
    return tuple(itertools.chain(*several)), troubles


class _Sound:
    """Checks that a machine's files are its own, and that no two are of one commit."""

    def __init__(self) -> None:
        self._machines = dict[Path, Any]()  # what machine.json says, by folder
        self._seen = dict[tuple[str, str, str], Path]()

    def facts(self, file: Path, indexed: Index) -> Facts:
        if file in indexed.unreadable:
            raise indexed.unreadable[file]
        facts = indexed.facts[file]
        folder, within = file.parent, facts.machine
        if folder not in self._machines:
            about = asv_files.load(folder / "machine.json")
            self._machines[folder] = about.get("machine")
        stated = self._machines[folder]
        if not folder.name == stated == within:
            raise Unreadable(
                f"{file}: results of machine {within!r} in the folder of {stated!r}"
            )
        key = (within, facts.environment, facts.commit)
        if self._seen.setdefault(key, file) != file:
            raise Unreadable(f"{file}: the same commit as in {self._seen[key].name}")
        return facts


#: What a series is in a group: benchmark, parameters, and, if a file lists that
#: several times, which of these.
_Key = tuple[str, tuple[str, ...], int]


@dataclass(frozen=True)
class _Group:
    """The files of one machine and environment; their figures in order of the series.

    The figures of series number i are `flat` from starts[i] up to starts[i + 1].
    """

    facts: Facts
    runs: Runs
    numbers: Mapping[_Key, int]
    layouts: Sequence[frozenset[int]]
    known: Mapping[str, Benchmark]
    starts: NDArray[np.int64]
    flat: Figures

    def series(self) -> Iterator[Series]:
        for (name, values, _), i in self.numbers.items():
            about = self.known.get(name, Benchmark())
            names = about.param_names
            if len(names) != len(values):
                names = [f"param{i}" for i in range(len(values))]
            yield Series(
                self.facts.machine,
                self.facts.environment,
                name,
                dict(zip(names, map(_unquoted, values), strict=True)),
                about.unit,
                self.facts.requirements,
                self.runs,
                self.flat.part(slice(self.starts[i], self.starts[i + 1])),
                self.layouts[i],
            )


def _unquoted(value: str) -> str:
    """The value of a parameter, which asv stores as its repr."""
    return value[1:-1] if value[:1] == value[-1:] == "'" else value


def _group(
    files: list[tuple[Path, Facts]],
    indexed: Index,
    known: Mapping[str, Benchmark],
    rank: Mapping[str, int],
) -> _Group:
    first = files[0][1]
    files.sort(key=lambda one: (rank.get(one[1].commit, -1), one[1].date))
    order = list(dict.fromkeys(facts.layout for _, facts in files))
    layouts = [indexed.layout(key) for key in order]
    numbers = dict[_Key, int]()
    cells = [_numbered(layout, numbers) for layout in layouts]
    runs = Runs(
        tuple(facts.commit for _, facts in files),
        tuple(facts.date for _, facts in files),
        tuple(order.index(facts.layout) for _, facts in files),
    )
    series = [  # the number of the series of each kept cell, a run after the other
        cells[layout][np.frombuffer(facts.places, np.int32)]
        for layout, (_, facts) in zip(runs.layouts, files, strict=True)
    ]
    counts = np.zeros(len(numbers), np.int64)
    for kept in series:
        counts[kept] += 1
    starts = np.concatenate([[0], np.cumsum(counts)])
    read = (indexed.figures(file) for file, _ in files)
    flat = _filled(series, read, starts)
    inside = _listing(cells, len(numbers))
    return _Group(first, runs, numbers, inside, known, starts, flat)


def _numbered(layout: Layout, numbers: dict[_Key, int]) -> NDArray[np.int32]:
    """The number of the series of each cell; a new series takes the next number."""
    times = Counter[tuple[str, tuple[str, ...]]]()
    found = []
    for benchmark in layout.benchmarks:
        for point in benchmark.points:
            key = (benchmark.name, point)
            found.append(numbers.setdefault((*key, times[key]), len(numbers)))
            times[key] += 1
    return np.array(found, np.int32)


def _listing(cells: Sequence[NDArray[np.int32]], count: int) -> list[frozenset[int]]:
    """For each series, the numbers of the layouts that list it."""
    inside: list[set[int]] = [set() for _ in range(count)]
    for number, numbered in enumerate(cells):
        for i in numbered.tolist():
            inside[i].add(number)
    return list(map(frozenset, inside))


def _filled(
    series: Sequence[NDArray[np.int32]],
    read: Iterable[NDArray[np.float64]],
    starts: NDArray[np.int64],
) -> Figures:
    """All figures of a group: `read` gives those of each run."""
    flat, end = Figures.empty(int(starts[-1])), starts[:-1].copy()
    for run, (kept, figures) in enumerate(zip(series, read, strict=True)):
        at = end[kept]
        flat.places[at] = run
        flat.values[at], flat.low[at], flat.high[at] = figures[:3]
        flat.samples[at] = np.nan_to_num(figures[3])
        end[kept] += 1
    return flat
