"""What CONTRIBUTING promises: one file for an op, one file for a backend, no edits."""

import json
from pathlib import Path

import pytest

from tests.command_line import gradwatch_of
from tests.copies import copy_code
from tests.pages import CUBE

ROOT = Path(__file__).resolve().parents[2]

BACKEND = '''"""NumPy: the page's manual dialect once more, under another name."""

from gradwatch.impls.backends._numpy import NumpyBackend
from gradwatch.impls.backends.numpy_manual import Manual

backend = NumpyBackend("manual", Manual)
'''


CASES, OPS, BACKENDS = "list cases", "list ops", "list backends"
JUDGED = (
    "agree --op cube --backend numpy_manual --backend numpy_graph --json -",
    "agree --op linear --regime normal --backend numpy_again --backend numpy_manual"
    " --json -",
)
TIMED = "time --op cube --backend numpy_manual --budget 0.1 --json -"


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """What commands print in a copy of the project with both files."""
    copy = tmp_path_factory.mktemp("copy")
    copy_code(copy)
    (copy / "impls" / "ops" / "cube.py").write_text(CUBE)
    (copy / "impls" / "backends" / "numpy_again.py").write_text(BACKEND)
    ended = gradwatch_of(copy, OPS, CASES, BACKENDS, *JUDGED, TIMED)
    assert {done.returncode for done in ended.values()} == {0}, ended
    return {call: done.stdout for call, done in ended.items()}


def test_an_op_is_one_file_of_at_most_60_lines(said):
    assert CUBE.count("\n") <= 60
    assert "cube" in said[OPS].split()
    assert "cube[normal-4-float32]" in said[CASES].split()
    records = json.loads(said[JUDGED[0]])["records"]
    assert {r["verdict"] for r in records} <= {"agree", "convention", "vacuous"}
    assert {r["op"] for r in json.loads(said[TIMED])["records"]} == {"cube"}


def test_a_backend_is_one_file_of_about_ten_lines(said):
    assert BACKEND.count("\n") <= 10
    assert "numpy_again" in said[BACKENDS].split()
    records = json.loads(said[JUDGED[1]])["records"]
    backends = {r["backend"]: r["verdict"] for r in records}
    assert backends == {"numpy_again": "agree", "numpy_manual": "agree"}


@pytest.mark.parametrize("framework", ["torch", "oneflow"])
def test_our_own_backends_of_a_framework_take_as_many(framework):
    files = (ROOT / "impls" / "backends").glob(f"{framework}_*.py")
    assert all(file.read_text().count("\n") <= 10 for file in files)
