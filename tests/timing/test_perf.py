"""The benchmarks of tests/perf: nothing wrong is timed; a time says what it is of."""

import json
import os
import subprocess
import sys

import pytest

from gradwatch.harness.project.paths import ROOT

PLANTED = """
import numpy as np

from gradwatch.impls.catalogue import load_op

op = load_op("square")
del op._said["manual", ""]
op.implement("manual")(lambda x: (np.square(x), lambda dy: (dy * x,)))
"""


#: Stops working in its 200th call: the benchmark makes more, the judge fewer.
LAZY = PLANTED.replace(
    "op.implement",
    "calls = []\nsquare = lambda x: calls.append(0) or x * x * (len(calls) < 200)\n"
    "op.implement",
).replace(
    "(np.square(x), lambda dy: (dy * x,))", "(square(x), lambda dy: (2 * dy * x,))"
)


def benchmarked(folder, page, *options):
    """The NumPy backends of square, one of them as it is planted."""
    (folder / "planted.py").write_text(page)
    file = folder / "benchmarks.json"
    # A benchmark takes the variables of xdist for an order not to measure.
    outside = {
        k: v for k, v in os.environ.items() if k != "CI" and not k.startswith("PYTEST_")
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "tests/perf", "--benchmark-only"),
            *("-p", "planted", "-p", "no:cacheprovider", "-k", "square and numpy"),
            *("--benchmark-max-time=0.01", f"--benchmark-json={file}"),
            *options,
        ],
        cwd=ROOT,
        env={**outside, "PYTHONPATH": str(folder), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done, json.loads(file.read_text())["benchmarks"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """With a factor of 2 left out."""
    return benchmarked(tmp_path_factory.mktemp("planted"), PLANTED)


def test_a_backend_that_stops_working_while_it_is_timed_has_no_figure(tmp_path):
    # It stops after 200 calls, which a busy machine must reach as well.
    done, timed = benchmarked(tmp_path, LAZY, "--benchmark-min-rounds=300")
    assert done.returncode == 1
    assert "a timed forward is wrong: disagree: y[" in done.stdout
    info = [one["extra_info"] for one in timed]
    assert {(i["backend"], i["phase"]) for i in info} == {
        ("numpy_graph", "forward"),
        ("numpy_graph", "backward"),
        ("numpy_manual", "backward"),
    }


def test_a_wrong_gradient_is_skipped_with_the_reason(run):
    done, timed = run
    assert done.returncode == 0, done.stdout
    assert "2 passed, 2 skipped" in done.stdout
    assert "not timed: disagree: dx[" in done.stdout
    assert {one["extra_info"]["backend"] for one in timed} == {"numpy_graph"}


def test_each_time_says_what_it_is_of(run):
    infos = [one["extra_info"] for one in run[1]]
    assert {info["phase"] for info in infos} == {"forward", "backward"}
    for info in infos:
        assert (info["op"], info["dtype"]) == ("square", "float32")
        assert (info["device"], info["threads"]) == ("cpu", "1")
        assert info["framework_version"].count(".") == 2
        assert 0 <= info["ratio"] < 16
        elements = int(info["size"])
        arrays = 2 if info["phase"] == "forward" else 3  # x, y; x, dy, dx
        assert info["bytes"] == arrays * 4 * elements
