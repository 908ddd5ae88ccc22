"""What CONTRIBUTING promises: one file for an op, one file for a backend, no edits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.copies import copy_code
from tests.pages import CUBE

ROOT = Path(__file__).resolve().parents[2]

BACKEND = '''"""NumPy: the page's manual dialect once more, under another name."""

from impls.backends._numpy import NumpyBackend
from impls.backends.numpy_manual import Manual

backend = NumpyBackend("manual", Manual)
'''


@pytest.fixture
def copy(tmp_path):
    """The project in another place, without its environments."""
    copy_code(tmp_path)
    return tmp_path


def gradwatch(copy, *arguments):
    """The command line of the copy: it must not find the packages of the original."""
    done = subprocess.run(
        [sys.executable, "-m", "harness", *arguments],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(copy)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_op_is_one_file_of_at_most_60_lines(copy):
    assert CUBE.count("\n") <= 60
    (copy / "impls" / "ops" / "cube.py").write_text(CUBE)
    assert "cube" in gradwatch(copy, "list", "ops").split()
    assert "cube[normal-4-float32]" in gradwatch(copy, "list", "cases").split()
    told = gradwatch(
        *(copy, "agree", "--op", "cube", "--json", "-"),
        *("--backend", "numpy_manual", "--backend", "numpy_graph"),
    )
    records = json.loads(told)["records"]
    assert {r["verdict"] for r in records} <= {"agree", "convention", "vacuous"}
    told = gradwatch(
        *(copy, "time", "--op", "cube", "--backend", "numpy_manual", "--json", "-"),
        *("--budget", "0.1"),
    )
    assert {r["op"] for r in json.loads(told)["records"]} == {"cube"}


def test_a_backend_is_one_file_of_about_ten_lines(copy):
    assert BACKEND.count("\n") <= 10
    (copy / "impls" / "backends" / "numpy_again.py").write_text(BACKEND)
    assert "numpy_again" in gradwatch(copy, "list", "backends").split()
    told = gradwatch(
        *(copy, "agree", "--op", "linear", "--regime", "normal", "--json", "-"),
        *("--backend", "numpy_again", "--backend", "numpy_manual"),
    )
    backends = {r["backend"]: r["verdict"] for r in json.loads(told)["records"]}
    assert backends == {"numpy_again": "agree", "numpy_manual": "agree"}


@pytest.mark.parametrize("framework", ["torch", "oneflow"])
def test_our_own_backends_of_a_framework_take_as_many(framework):
    files = (ROOT / "impls" / "backends").glob(f"{framework}_*.py")
    assert all(file.read_text().count("\n") <= 10 for file in files)
