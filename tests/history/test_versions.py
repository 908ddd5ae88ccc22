"""Versions of a framework: where each runs, and how two are compared."""

import json
from contextlib import nullcontext
from importlib.metadata import version
from types import SimpleNamespace

import pytest

from gradwatch.harness.commands import compare
from gradwatch.harness.history.environments import WrongCall, interpreter_with
from gradwatch.harness.project.records import CompareRecord
from gradwatch.harness.timing.compare import WrongGradient
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


_SMALL = ("--size", "small")
_FEW = ("--size", "small", "--phase", "backward", "--pairs", "1", "--budget", "0.05")


def test_two_versions_are_compared():
    asked = ("--op", "square", "--backend", "numpy_manual", "--dtype", "float32")
    done = gradwatch("compare", NUMPY, NUMPY, *asked, *_FEW, "--json", "-")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["records"]
    assert row["backend"] == "numpy_manual"
    assert row["a_seconds"] > 0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (("numpy==0.0.1", NUMPY), "no environment of the checkout has numpy==0.0.1"),
        (("main", NUMPY), "'main' is not of the form numpy==1.26.4"),
        ((NUMPY, f"pytest=={version('pytest')}"), "versions of two frameworks"),
        ((NUMPY, NUMPY, "--backend", "torch_custom"), "no backend of numpy"),
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


def test_a_page_that_cannot_be_run_fails_a_comparison_and_costs_no_other(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(compare, "compare_phases", lambda *given: [])
    (tmp_path / "broken.py").write_text("import no_such_module\n")
    call = ("compare", *["numpy_manual"] * 2, "--op", "square", *_SMALL)
    done = gradwatch(*call, "--ops", str(tmp_path / "broken.py"), "--json", "-")
    assert done.returncode == 1
    (why,) = json.loads(done.stdout)["summary"]["failed"]
    assert why == "broken.py: ModuleNotFoundError: No module named 'no_such_module'"


@pytest.mark.parametrize(
    ("touching", "told"),
    [
        (["b2"], ", since b2 'subject of b2'"),
        (["b1", "b2"], ", since one of 2 commits"),
        ([], ", since b3 'subject of b3'"),
    ],
)
def test_the_commit_of_a_wrong_gradient_is_one_that_changed_its_op(
    monkeypatch, touching, told
):
    named = {
        "commit_of": {"main": "a0", "HEAD": "b3"}.get,
        "implementing": lambda old, new, op: touching if op == "dot" else ["b0"],
        "subject": "subject of {}".format,
    }
    for name, stand_in in named.items():
        monkeypatch.setattr(compare, name, stand_in)
    wrong = {(WrongGradient, "torch_custom of HEAD is wrong: x"): ["dot[8] torch"]}
    assert compare._at("main", "HEAD", wrong) == told
    before = {(WrongGradient, "torch_custom of main is wrong: x"): ["dot[8] torch"]}
    assert compare._at("main", "HEAD", wrong | before) == ""


def test_what_was_not_compared_is_counted_with_the_limit_that_would_do(monkeypatch):
    now = [0.0]

    def compared(a, b, plan, phases):
        now[0] += 30.0
        return []

    monkeypatch.setattr(compare, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(compare, "compare_phases", compared)
    monkeypatch.setattr(compare, "judging", lambda: nullcontext(lambda *asked: None))
    plan = compare.Plan(None, 1.0)
    plans = [("a", "b", plan)] * 4
    *_, left = compare._compared(plans, ["forward"], 20.0)
    assert left == "3 more, only judged: about 90 s; --limit 120"
    assert compare._compared(plans, ["forward"], 1000.0)[-1] == ""
