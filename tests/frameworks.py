"""Frameworks as tests see them: which there are, and how each behaves."""

import json
import subprocess
from functools import cache
from typing import Any

import pytest

from harness.project.paths import ROOT
from harness.workers.interpreters import interpreter_of
from impls.catalogue import backend_names, framework_of

FRAMEWORKS = sorted({framework_of(name) for name in backend_names()} - {"numpy"})


@cache
def observed(framework: str) -> dict[str, Any]:
    """What tests/behaviours.py saw of a framework; skips where it is not installed."""
    usable(framework)
    done = subprocess.run(
        [interpreter_of(framework).python, "-m", "tests.behaviours", framework],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def usable(framework: str) -> None:
    """Skip where a framework is not installed, and say how to mend that."""
    found = interpreter_of(framework)
    if found.why_missing:
        pytest.skip(f"{found.why_missing}; to fix it: {found.mend}")
