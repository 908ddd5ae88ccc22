"""The fixture `gradwatch`: a right kernel passes, a wrong one says what to do."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

KERNELS = """
import numpy as np
import pytest

x = np.linspace(-3, 3, 12).reshape(3, 4)
dy = np.random.default_rng(0).normal(size=(3, 4))
y = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
dx = y * (dy - (dy * y).sum(-1, keepdims=True))

def zeroed(dx):
    dx = dx.copy()
    dx[0, 0] = 0
    return dx

def softmax(gradwatch, dx, **options):
    return gradwatch.judge("softmax", [x], dy, [dx], attributes={"axis": -1}, **options)

def test_right(gradwatch):
    assert softmax(gradwatch, dx)[0].verdict == "agree"

@pytest.mark.parametrize(
    "wrong",
    [lambda d: d * (1 + 1e-6), lambda d: -d, zeroed, lambda d: None, lambda d: d.T],
    ids=["scaled", "sign", "zeroed", "none", "transposed"],
)
def test_wrong(gradwatch, wrong):
    softmax(gradwatch, wrong(dx))

def test_vacuous(gradwatch):
    ones = np.ones((3, 4))  # a cotangent under which the gradient vanishes
    gradwatch.judge("softmax", [x], ones, [0 * dx], attributes={"axis": -1})

def test_slower(gradwatch):
    gradwatch.compare(lambda: sum(range(100)), lambda: sum(range(20_000)), budget=0.3)

def test_as_fast(gradwatch):
    work = lambda: sum(range(9))
    found = gradwatch.compare(work, work, slower=9, budget=0.3)
    assert found.ratio.low < 9
"""
WRONG = ("scaled", "sign", "zeroed", "none", "transposed")


@pytest.fixture(scope="module", params=[(), ("-n", "1")], ids=["alone", "xdist"])
def session(request, tmp_path_factory):
    """A session of somebody else's: its output, and the document that it wrote."""
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "test_kernels.py").write_text(KERNELS)
    call = [sys.executable, "-m", "pytest", "-rA", "--gradwatch-json", "judged.json"]
    done = subprocess.run(
        [*call, "-p", "no:cacheprovider", *request.param, str(folder)],
        cwd=folder,
        capture_output=True,
        text=True,
        # No other session writes there, and results may be kept.
        env={**os.environ, "TMPDIR": str(folder), "GRADWATCH_RESULTS": ""},
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"\n{folder}/repro/" in done.stdout
    return done.stdout, json.loads((folder / "judged.json").read_text())


@pytest.mark.parametrize("name", ["right", "as_fast"])
def test_what_is_right_passes(session, name):
    assert f"PASSED test_kernels.py::test_{name}" in session[0]


@pytest.mark.parametrize("name", [*(f"wrong[{w}]" for w in WRONG), "vacuous", "slower"])
def test_what_is_wrong_or_says_nothing_fails(session, name):
    assert f"FAILED test_kernels.py::test_{name}" in session[0]


def test_a_failure_says_where_and_how_much(session):
    assert "times the rounding radius" in session[0]
    assert "times the time" in session[0]


def test_a_failure_and_its_record_name_the_mistake(session):
    told, document = session
    said = "dx is given the wrong sign: with this, all 12 elements agree"
    assert said in told
    assert said in [record["diagnosis"] for record in document["records"]]


def test_a_failure_is_at_most_twelve_lines_and_ends_with_the_script_s_file(session):
    for part in re.split(r"\n_{3,} test_wrong", session[0])[1:]:
        lines = part.partition("\n")[2].partition("\n____")[0].partition("\n====")[0]
        lines = [line for line in lines.splitlines() if line and "[gw0]" not in line]
        assert 2 <= len(lines) <= 12
        assert Path(lines[-1]).is_file()


def test_the_document_holds_every_judgement_of_all_workers(session):
    _, document = session
    tests = {record["test"].rpartition("::")[2] for record in document["records"]}
    assert tests == {"test_right", "test_vacuous", *(f"test_wrong[{w}]" for w in WRONG)}
    assert document["summary"]["agree"] == 1
    assert {r["verdict"] for r in document["records"]} >= {"agree", "disagree"}


def test_the_script_of_a_failure_shows_it_again(session):
    files = re.findall(r"^(/.*test-wrong-scaled.*[.]py)$", session[0], re.M)
    done = subprocess.run([sys.executable, files[0]], capture_output=True, text=True)
    assert done.returncode == 1
    assert "times the rounding radius" in done.stderr


def test_the_next_session_takes_no_script_for_a_test(session):
    file, *_ = re.findall(r"^(/.*test-wrong-scaled.*[.]py)$", session[0], re.M)
    call = [sys.executable, "-m", "pytest", "--collect-only", "-q", Path(file).parent]
    assert (
        "no tests collected"
        in subprocess.run(call, capture_output=True, text=True).stdout
    )


def test_tests_of_a_project_import_what_it_measures(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.gradwatch]\nmeasures = ["src/theirs.py"]\n'
    )
    for name, text in {
        "src/theirs.py": "",
        "tests/test_it.py": "import theirs\n\n\ndef test_it():\n    pass\n",
    }.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    call = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_failure_is_shown_where_its_script_cannot_be_written(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.gradwatch]\n")
    (tmp_path / "results").write_text("no folder")
    (tmp_path / "test_it.py").write_text(KERNELS)
    call = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", "sign"]
    free = {**os.environ, "GRADWATCH_RESULTS": ""}
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, env=free)
    assert "dx is given the wrong sign" in done.stdout
    assert "not written: Not a directory" in done.stdout


def test_a_document_that_cannot_be_written_fails_in_a_line(tmp_path):
    (tmp_path / "test_it.py").write_text("def test_it():\n    pass")
    call = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    call += ["--gradwatch-json", "test_it.py/no folder"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "gradwatch: File exists: test_it.py/no folder" in done.stderr


@pytest.mark.parametrize("own", [(), ("--benchmark-columns=min,max",)])
def test_a_project_s_benchmarks_have_three_columns_unless_it_names_others(
    tmp_path, own
):
    (tmp_path / "pyproject.toml").write_text("[tool.gradwatch]\n")
    (tmp_path / "test_it.py").write_text(
        "def test_it(benchmark):\n    benchmark(len, [])"
    )
    call = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *own]
    # pytest-benchmark times nothing where this is set.
    alone = {k: v for k, v in os.environ.items() if k != "PYTEST_XDIST_WORKER"}
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, env=alone)
    (head,) = [line for line in done.stdout.splitlines() if line.startswith("Name")]
    assert done.returncode == 0, done.stdout
    assert ("IQR" in head, "Max" in head) == (not own, bool(own))
    assert len(head) < 100
