"""Frameworks as tests see them: which there are, and how each behaves."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.requested import by_default
from gradwatch.harness.workers.interpreters import interpreter_of, on_request
from gradwatch.impls.catalogue import backend_names, framework_of

#: Names the folder that all processes of a test run share; see conftest.py.
SHARED = "GRADWATCH_TESTS_SHARE"

BACKENDS = ROOT / "impls" / "backends"


def is_torch_like(backend: str) -> bool:
    """Whether a backend's framework has PyTorch's interface."""
    files = BACKENDS / f"{backend}.py", BACKENDS / f"_{framework_of(backend)}.py"
    return any(f.exists() and "_torchlike" in f.read_text() for f in files)


#: Those with PyTorch's interface: what the pages call in their names.
FRAMEWORKS = sorted({framework_of(n) for n in backend_names() if is_torch_like(n)})

#: Those that speak every page and are there without being asked for. A call of another
#: framework's own stands on few pages.
ON_EVERY_PAGE = tuple(
    name
    for name in by_default()
    if not on_request(framework_of(name))
    and (is_torch_like(name) or not name.endswith(("_autograd", "_custom")))
)


@cache
def observed(framework: str) -> dict[str, Any]:
    """What tests/behaviours.py saw of a framework; skips where it is not installed."""
    usable(framework)
    file = Path(os.environ[SHARED], f"{framework}.json")
    with FileLock(f"{file}.lock"):
        if not file.exists():
            file.write_text(_seen(framework))
        told: dict[str, Any] = json.loads(file.read_text())
    return told


def _seen(framework: str) -> str:
    done = subprocess.run(
        [interpreter_of(framework).python, "-m", "tests.behaviours", framework],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def usable(framework: str) -> None:
    """Skip where a framework is not installed, and say how to mend that."""
    found = interpreter_of(framework)
    if found.why_missing:
        pytest.skip(f"{found.why_missing}; to fix it: {found.mend}")
