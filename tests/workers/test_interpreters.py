"""Where a framework cannot be run, it is said what is wrong and what mends it."""

import os
import runpy
import sys
from pathlib import Path

import pytest

from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers.interpreters import (
    broken,
    interpreter_of,
    variable,
)
from tests.pythons import fake_python

LACKS = "ModuleNotFoundError: No module named 'oneflow'"
REMADE = "rm -rf .venv-oneflow && make environments"


@pytest.fixture(autouse=True)
def unnamed(monkeypatch):
    """The variables of whoever runs the tests name other Pythons."""
    for framework in ("numpy", "torch", "oneflow"):
        monkeypatch.delenv(variable(framework), raising=False)


@pytest.fixture
def checkout(tmp_path):
    """A checkout in which OneFlow is to have an environment of its own."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "oneflow.txt").touch()
    return tmp_path


@pytest.fixture
def place(checkout):
    return checkout / ".venv-oneflow" / "bin" / "python"


def test_the_main_framework_is_run_by_the_running_python():
    found = interpreter_of("numpy")
    assert (found.python, found.why_missing) == (Path(sys.executable), "")
    assert not Path(found.shown).is_absolute()


def test_requirements_of_its_own_mean_an_environment_of_its_own(checkout, place):
    fake_python(place)
    found = interpreter_of("oneflow", checkout)
    assert (found.python, found.why_missing) == (place, "")
    assert found.shown == ".venv-oneflow/bin/python"


def test_the_frameworks_with_such_requirements_are_those_that_are_made():
    own = {path.stem for path in (ROOT / "requirements").glob("*.txt")} - {"main"}
    script = runpy.run_path(str(ROOT / "scripts" / "environments.py"))
    assert own == set(script["FRAMEWORKS"])


def test_an_environment_on_request_names_its_cost_and_the_command(checkout):
    cost = "5 MB to download, 9 MB on the disk"
    (checkout / "requirements" / "mlx.txt").write_text(f"# On request: {cost}\na==1\n")
    found = interpreter_of("mlx", checkout)
    assert found.why_missing == f"made only on request ({cost})"
    assert found.mend == "make framework NAME=mlx"
    (checkout / ".venv-mlx" / "bin").mkdir(parents=True)
    (checkout / ".venv-mlx" / "bin" / "python").symlink_to("/nowhere/python3.10")
    remade = interpreter_of("mlx", checkout).mend
    assert remade == "rm -rf .venv-mlx && make framework NAME=mlx"


def test_from_within_such_an_environment_the_main_one_is_another(checkout, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(checkout / ".venv-oneflow"))
    fake_python(checkout / ".venv" / "bin" / "python")
    assert interpreter_of("torch", checkout).shown == ".venv/bin/python"


def test_a_variable_names_another_python(checkout, tmp_path, monkeypatch):
    named = fake_python(tmp_path / "conda" / "python")
    monkeypatch.setenv("GRADWATCH_PYTHON_ONEFLOW", str(named))
    found = interpreter_of("oneflow", checkout)
    assert (found.python, found.shown, found.why_missing) == (named, str(named), "")


def test_a_relative_path_is_that_of_the_caller(checkout, tmp_path, monkeypatch):
    fake_python(tmp_path / "conda" / "python")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRADWATCH_PYTHON_ONEFLOW", "conda/python")
    assert not interpreter_of("oneflow", checkout).why_missing


def test_a_variable_that_names_nothing_is_told(checkout, monkeypatch):
    monkeypatch.setenv("GRADWATCH_PYTHON_ONEFLOW", "/nowhere/python")
    found = interpreter_of("oneflow", checkout)
    assert found.why_missing == (
        "GRADWATCH_PYTHON_ONEFLOW names /nowhere/python, which is not there"
    )
    assert "unset it" in found.mend


def test_an_environment_that_was_never_made(checkout):
    found = interpreter_of("oneflow", checkout)
    assert found.why_missing == ".venv-oneflow has not been made"
    assert found.mend == "make environments"


def test_an_environment_whose_python_was_removed(checkout, place):
    place.parent.mkdir(parents=True)
    place.symlink_to("/nowhere/python3.10")
    found = interpreter_of("oneflow", checkout)
    assert "the Python it was made from is gone" in found.why_missing
    assert found.mend == REMADE


def test_what_is_left_of_a_removed_package_is_no_package(tmp_path, monkeypatch):
    (tmp_path / "oneflow").mkdir()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(variable("oneflow"), sys.executable)
    assert "not installed" in interpreter_of("oneflow").why_missing


def test_a_file_in_the_callers_folder_is_no_framework(tmp_path, monkeypatch):
    (tmp_path / "oneflow.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable("oneflow"), sys.executable)
    assert "not installed" in interpreter_of("oneflow").why_missing


@pytest.mark.parametrize(
    ("error", "why", "package"),
    [
        (LACKS, "oneflow is not installed in", '"oneflow"'),
        (
            "ImportError: libcublas.so.11",
            "oneflow does not run in",
            "--force-reinstall oneflow",
        ),
        (
            "ImportError: numpy.core.multiarray failed",
            "oneflow does not run in",
            '"numpy<2"',
        ),
    ],
)
@pytest.mark.parametrize("named", [False, True], ids=["ours", "named"])
def test_what_a_worker_could_not_import(
    checkout, place, tmp_path, monkeypatch, named, error, why, package
):
    if named:
        place = tmp_path / "conda" / "python"
        monkeypatch.setenv("GRADWATCH_PYTHON_ONEFLOW", str(place))
    fake_python(place)
    found = broken(interpreter_of("oneflow", checkout), error)
    assert why in found.why_missing
    assert found.mend == (f"{place} -m pip install {package}" if named else REMADE)


def test_a_broken_install_names_the_file_as_seen_from_the_checkout(checkout, place):
    fake_python(place)
    lost = ".venv-oneflow/lib/libcublas.so.11"
    error = f"OSError: {checkout}{os.sep}{lost}: cannot open shared object file"
    found = broken(interpreter_of("oneflow", checkout), error)
    assert found.why_missing == (
        f"oneflow does not run in {found.shown}: OSError: {lost}: cannot open shared"
        " object file"
    )
    assert found.mend == REMADE
