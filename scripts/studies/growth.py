"""Makes synthetic histories, which grow in the shape of a recorded commit.

`make(folder, commits)` makes a project: a repository with that many commits, each of
which changes the page of one op, and asv's result files of all of them. The files of
this checkout's recorded commit are the pattern: the same benchmarks, environments and
columns, the same cells without a value. A time varies by 1 % from commit to commit;
one series in twenty has a step of 20 %, and one file in fifty is missing. Everything
follows from the numbers of the commits.
"""

from __future__ import annotations

import json
import math
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

RECORDED = Path(__file__).parents[2] / "results" / "asv"
MEASURED = RECORDED / "cpu-2core-epyc"
PATTERN = "5d37d685"  # a commit that has a file of each of three environments
MACHINE = "cpu-2core"
NOISE, STEP = 0.01, 0.2
STEPPED = 20  # one series in so many has a step
MISSING = 50  # one file in so many is not there
BEGAN = 1_600_000_000  # seconds: the date of the first commit
_SCALED = ("result", "stats_ci_99_a", "stats_ci_99_b", "stats_q_25", "stats_q_75")
_TABLE = '[tool.gradwatch]\nops = ["impls/ops"]\n'


def make(folder: Path, commits: int, machine: str = MACHINE, every: int = 1) -> None:
    """A project with a history; `every` thins the benchmarks out, for tests."""
    patterns = [_thinned(json.loads(f.read_text()), every) for f in _patterns()]
    ops = sorted({name.split(".")[1] for p in patterns for name in p["results"]})
    hashes = repository(folder, commits, ops)
    place = folder / "results" / "asv" / machine
    place.mkdir(parents=True, exist_ok=True)
    traits = json.loads((MEASURED / "machine.json").read_text())
    _dump(place / "machine.json", {**traits, "machine": machine})
    listed = json.loads((RECORDED / "benchmarks.json").read_text())
    _dump(place.parent / "benchmarks.json", listed)
    for turn, pattern in enumerate(patterns):
        series = _Series(pattern, commits, seed=turn)
        for number, commit in enumerate(hashes):
            if (number * 7 + turn) % MISSING or commits < MISSING:
                about = {"commit_hash": commit, "date": 1000 * (BEGAN + 3600 * number)}
                about["params"] = {**pattern["params"], "machine": machine}
                content = {**pattern, **about, "results": series.at(number)}
                _dump(place / f"{commit[:8]}-{pattern['env_name']}.json", content)


def _patterns() -> list[Path]:
    return sorted(MEASURED.glob(f"{PATTERN}-*.json"))


def _thinned(pattern: dict[str, Any], every: int) -> dict[str, Any]:
    rows = list(pattern["results"].items())[::every]
    return {**pattern, "results": dict(rows)}


def _dump(file: Path, content: object) -> None:
    file.write_text(json.dumps(content), encoding="utf-8")


class _Series:
    """All series of one environment; `at` gives their rows at a commit."""

    def __init__(self, pattern: Mapping[str, Any], commits: int, seed: int) -> None:
        self.pattern, self.seed = pattern, seed
        columns = pattern["result_columns"]
        self.scaled = [columns.index(name) for name in _SCALED if name in columns]
        draw = np.random.default_rng(seed)
        count = sum(len(row[0]) for row in pattern["results"].values())
        self.places = draw.integers(commits // 4, 3 * commits // 4 + 1, count)
        self.sizes = np.where(draw.random(count) < 1 / STEPPED, 1 + STEP, 1.0)

    def at(self, number: int) -> dict[str, list[Any]]:
        draw = np.random.default_rng([self.seed, number])
        noise = np.exp(NOISE * draw.standard_normal(len(self.places)))
        factors = noise * np.where(number >= self.places, self.sizes, 1.0)
        rows, begun = {}, 0
        for name, row in self.pattern["results"].items():
            end = begun + len(row[0])
            rows[name] = self._row(name, row, factors[begun:end].tolist())
            begun = end
        return rows

    def _row(self, name: str, row: list[Any], factors: list[float]) -> list[Any]:
        if "ratio" in name:  # the judge's ratios are the same in every run
            return row
        row = list(row)
        for place in self.scaled:
            if place < len(row) and row[place] is not None:
                row[place] = [
                    v if v is None or math.isnan(v) else v * f
                    for v, f in zip(row[place], factors, strict=True)
                ]
        return row


def repository(folder: Path, commits: int, ops: list[str]) -> list[str]:
    """A repository whose commits change the pages of `ops` in turn; their hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    stream = "".join(_commit(n, ops[n % len(ops)]) for n in range(commits))
    git(folder, "fast-import", "--quiet", given=f"{stream}done\n")
    git(folder, "reset", "-q", "--hard", "main")
    return git(folder, "rev-list", "--reverse", "main").split()


def _commit(number: int, op: str) -> str:
    """A commit on top of the one before, as git-fast-import(1) reads it."""
    files = {f"impls/ops/{op}.py": f"{number}\n"}
    if number == 0:
        files |= {"asv.conf.json": "{}\n", "pyproject.toml": _TABLE}
    message = f"commit {number}: {op}"
    lines = [
        "commit refs/heads/main",
        f"committer A <a@b.example> {BEGAN + 3600 * number} +0000",
        f"data {len(message)}\n{message}",
    ]
    for path, text in files.items():
        lines.append(f"M 644 inline {path}\ndata {len(text)}\n{text}")
    return "\n".join(lines) + "\n"


def git(folder: Path, *arguments: str, given: str = "") -> str:
    """What a git command prints in a folder; `given` is its standard input."""
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(
        command, input=given, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()
