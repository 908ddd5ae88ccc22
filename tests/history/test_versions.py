"""Versions of a framework: where each runs, and what became of the accuracy."""

import json
from importlib.metadata import version

import pytest

from gradwatch.harness.commands import compare
from gradwatch.harness.history.environments import (
    WrongCall,
    accuracy,
    interpreter_with,
    worst_error,
)
from gradwatch.harness.history.measure import Figures
from gradwatch.harness.project.records import CompareRecord
from gradwatch.harness.timing.compare import WrongGradient
from gradwatch.impls.catalogue import load_op
from tests.command_line import gradwatch

NUMPY = f"numpy=={version('numpy')}"


def made(root, folder, python, *packages):
    """An environment, as far as it is looked at."""
    site = root / folder / "lib" / f"python{python}" / "site-packages"
    for package in packages:
        (site / f"{package}.dist-info").mkdir(parents=True)
    (root / folder / "bin").mkdir()
    (root / folder / "bin" / "python").touch()


@pytest.mark.parametrize(
    ("asked", "folder"),
    [
        ("torch==2.13.0", ".venv"),
        ("torch==1.12.1", ".venv-old"),
        ("numpy==1.26.4", ".venv-old"),
    ],
)
def test_a_version_runs_in_the_environment_that_has_it(tmp_path, asked, folder):
    made(tmp_path, ".venv", "3.11", "torch-2.13.0+cpu", "numpy-2.4.6")
    made(tmp_path, ".venv-old", "3.10", "torch-1.12.1", "numpy-1.26.4")
    found = interpreter_with(asked, tmp_path)
    assert found.python == tmp_path / folder / "bin" / "python"
    assert (found.framework, found.shown) == (asked[:5], f"{folder}/bin/python")


@pytest.mark.parametrize("asked", ["torch==1.12", "torch==2.13.0+cpu", "torch>=1"])
def test_a_version_that_no_environment_has_is_refused(tmp_path, asked):
    made(tmp_path, ".venv", "3.11", "torch-1.12.1", "torch-2.13.0+cpu")
    with pytest.raises(WrongCall, match=r"no environment|not of the form"):
        interpreter_with(asked, tmp_path)


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (1.0, 1.4, "as accurate"),
        (1.0, 1.6, "less accurate"),
        (1.6, 1.0, "more accurate"),
        (0.0, 0.0, "as accurate"),
        (0.0, 0.1, "less accurate"),
        (None, 1.0, "not measured"),
    ],
)
def test_more_than_half_of_an_error_is_a_change_of_accuracy(a, b, said):
    assert accuracy(Figures(ratio=a), Figures(ratio=b)) == said


def test_a_version_that_is_wrong_is_not_called_accurate():
    wrong, right = Figures(why="y disagrees", ratio=0.1), Figures(ratio=0.1)
    assert accuracy(wrong, right) == "A is wrong"
    assert accuracy(right, wrong) == "B is wrong"


_SMALL = ("--size", "small")
_FEW = ("--size", "small", "--phase", "backward", "--pairs", "1", "--budget", "0.05")


def test_two_versions_are_compared_in_time_and_accuracy(monkeypatch):
    errors = iter([0.5, 2.0])  # planted: the second version is less accurate
    monkeypatch.setattr(compare, "worst_error", lambda *_: Figures(ratio=next(errors)))
    asked = ("--op", "square", "--backend", "numpy_manual", "--dtype", "float32")
    done = gradwatch("compare", NUMPY, NUMPY, *asked, *_FEW, "--json", "-")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["records"]
    assert (row["a_radii"], row["b_radii"]) == (0.5, 2.0)
    assert (row["accuracy"], row["backend"]) == ("less accurate", "numpy_manual")
    assert row["a_seconds"] > 0


def test_the_error_of_a_version_is_the_largest_of_all_cases():
    exact = load_op("relu")  # no rounding at all: max(x, 0), and dy or 0
    rounded = load_op("softmax")
    python = interpreter_with(NUMPY)
    figures = [
        worst_error(op, "numpy_manual", "float32", python) for op in (exact, rounded)
    ]
    assert [one.why for one in figures] == ["", ""]
    assert figures[0].ratio == 0
    assert 0 < figures[1].ratio < 16


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("numpy==0.0.1", NUMPY), "no environment of the checkout has numpy==0.0.1"),
        (("main", NUMPY), "'main' is not of the form numpy==1.26.4"),
        ((NUMPY, f"pytest=={version('pytest')}"), "versions of two frameworks"),
        ((NUMPY, NUMPY, "--backend", "torch_custom"), "no backend of numpy"),
        ((NUMPY, NUMPY, "--affected", "3"), "--affected needs two commits"),
    ],
)
def test_versions_that_cannot_be_compared_are_one_line_and_exit_2(call, said):
    done = gradwatch("compare", *call, "--op", "square", "--size", "small")
    assert done.returncode == 2
    assert said in done.stderr


def test_a_wrong_gradient_fails_a_comparison_of_which_other_rows_are_right(monkeypatch):
    def compared(a, b, plan, phases):
        if plan.trial.problem.dtype == "float64":
            raise WrongGradient("numpy_manual of HEAD is wrong: disagree")
        asked = {"op": "square", "case": "8", "dtype": "float32", "device": "cpu"}
        shown = {"noise_low": 1.0, "noise_high": 1.0, "verdict": "no difference"}
        size = {"ratio": 1.0, "low": 1.0, "high": 1.0}
        shared = {"a": a.name, "b": b.name, **asked, **shown, **size}
        return [CompareRecord(phase=phase, **shared) for phase in phases]

    monkeypatch.setattr(compare, "compare_phases", compared)
    call = ("compare", *["numpy_manual"] * 2, "--op", "square", *_SMALL)
    done = gradwatch(*call, "--dtype", "float32,float64")
    assert done.returncode == 1
    assert "✗ square[" in done.stderr
    assert "numpy_manual of HEAD is wrong" in done.stderr
