"""Scratch repositories with a recorded history, in which changes are planted."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

MACHINE = "cpu-2core"
ENVIRONMENT = "prebuilt-py3.11-numpy2.4.6"
SERIES = "bench_speed.square.time_backward"
POINT = ("8", "float32", "cpu", "numpy_manual")
NAMES = ("size", "dtype", "device", "backend")


def git(root, *arguments, stdin=None):
    names = ["-c", "user.name=A", "-c", "user.email=a@b.example"]
    done = subprocess.run(
        ["git", "-C", str(root), *names, *arguments],
        input=stdin,
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


def repository(root: Path, pages: Sequence[str]) -> list[str]:
    """A repository with a commit for each name, which changes that op's page.

    Where the name is "", the commit changes nothing that an op runs. One process of
    git makes them all: forty commits by `git commit` take a second.
    """
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "-q", "-b", "main")
    first = {"asv.conf.json": "{}", "impls/ops/square.py": ""}
    commits = [{_page(page): f"{i}\n"} for i, page in enumerate(pages)]
    commits[0] = {**first, **commits[0]}
    stream = "".join(_commit(i, files) for i, files in enumerate(commits))
    git(root, "fast-import", "--quiet", stdin=f"{stream}done\n")
    git(root, "reset", "-q", "--hard", "main")
    return git(root, "rev-list", "--reverse", "main").split()


def _page(name: str) -> str:
    return f"impls/ops/{name}.py" if name else "notes.txt"


def _commit(number: int, files: Mapping[str, str]) -> str:
    """A commit on top of the one before, as git-fast-import(1) reads it."""
    message = f"commit {number}"
    lines = [
        "commit refs/heads/main",
        f"committer A <a@b.example> {int(time.time())} +0000",
    ]
    lines += [f"data {len(message)}", message]
    for path, text in files.items():
        lines += [f"M 644 inline {path}", f"data {len(text)}", text]
    return "\n".join(lines) + "\n"


def record(
    root: Path,
    commits: Sequence[str],
    series: Mapping[str, Sequence[float]],
    machine: str = MACHINE,
) -> None:
    """Result files as asv writes them, a value of each series for each commit."""
    folder = root / "results" / "asv"
    (folder / machine).mkdir(parents=True, exist_ok=True)
    about = {"version": 1, "machine": machine, "arch": "x", "cpu": "x", "num_cpu": "2"}
    _write(folder / machine / "machine.json", about)
    listed = {name: {"param_names": NAMES, "unit": "seconds"} for name in series}
    _write(folder / "benchmarks.json", {"version": 2, **listed})
    for i, commit in enumerate(commits):
        params = [[repr(value)] for value in POINT]
        content = {
            "version": 2,
            "commit_hash": commit,
            "env_name": ENVIRONMENT,
            "date": 1_700_000_000_000 + i * 1000,
            "params": {"machine": machine},
            "requirements": {"numpy": "2.4.6"},
            "python": "3.11",
            "result_columns": ["result", "params"],
            "results": {n: [[float(v[i])], params] for n, v in series.items()},
        }
        _write(folder / machine / f"{commit[:8]}-{ENVIRONMENT}.json", content)


def _write(file: Path, content: object) -> None:
    file.write_text(json.dumps(content))


def noisy(count: int, *, noise: float = 0.01, seed: int = 0) -> np.ndarray:
    """Seconds of a figure that nothing changes, with log-normal noise."""
    return 1e-3 * np.exp(noise * np.random.default_rng(seed).normal(size=count))


def stepped(values, at: int, by: float) -> np.ndarray:
    """The same, higher by a share from a place on."""
    return values * np.where(np.arange(len(values)) >= at, 1 + by, 1.0)


def crept(values, by: float) -> np.ndarray:
    """The same, growing evenly up to a share."""
    return values * np.geomspace(1, 1 + by, len(values))
