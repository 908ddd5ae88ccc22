"""The doctor finds what is missing, why, and the command that mends it; never fails."""

import gc
import subprocess
import sys
import tempfile

import psutil
import pytest

from gradwatch.harness.commands import doctor
from gradwatch.harness.commands.doctor import Finding, examine
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers.interpreters import (
    Interpreter,
    interpreter_of,
    variable,
)
from gradwatch.harness.workers.lifetime import Died
from gradwatch.harness.workers.worker import Worker
from gradwatch.impls.catalogue import backend_names, framework_of
from scripts import tour
from tests.command_line import gradwatch
from tests.pythons import environment_like, fake_python


def test_the_last_lines_count_what_is_ready_and_what_is_absent(monkeypatch):
    found = [
        Finding("machine", "2 cores"),
        Finding("numpy", "2.4.6", devices={"cpu": "", "cuda": "no GPU"}),
        Finding("torch", "2.13.0", devices={"cpu": "", "cuda": "no GPU"}),
        Finding("mlx", "", "made only on request", "make framework NAME=mlx", False),
    ]
    monkeypatch.setattr(doctor, "examine", lambda: iter(found))
    *table, ready, absent, following = gradwatch("doctor").stdout.splitlines()
    assert [line.split()[1] for line in table] == [one.name for one in found]
    assert ready == "✓ 2 frameworks are ready: numpy, torch"
    assert absent == "not run: 1: mlx; make framework NAME=..."
    assert following.startswith("next: gradwatch check ")


FRAMEWORKS = sorted(set(map(framework_of, backend_names())))


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """The doctor with one framework to look at, in a checkout of its own."""

    def found(framework, root=tmp_path):
        monkeypatch.setattr(doctor, "backend_names", lambda: (f"{framework}_formula",))
        return {finding.name: finding for finding in examine(root)}

    return found


def git(root, *arguments):
    names = ["-c", "user.name=A", "-c", "user.email=a@b.example"]
    subprocess.run(
        ["git", "-C", str(root), *names, *arguments], check=True, capture_output=True
    )


@pytest.fixture
def repository(tmp_path):
    root = tmp_path / "repository"
    root.mkdir()
    git(root, "init", "-q")
    for i in range(2):
        (root / "file").write_text(str(i))
        git(root, "add", "file")
        git(root, "commit", "-q", "-m", str(i))
    return root


def test_here_every_framework_is_found_or_missing_for_a_reason():
    found = {finding.name: finding for finding in examine()}
    for framework in FRAMEWORKS:
        if found[framework].state == "missing":
            assert found[framework].why
            assert found[framework].mend
        else:
            assert found[framework].devices["cpu"] == ""
            assert found[framework].threads == 1
            assert "Python 3." in found[framework].runs_in
    assert all(str(ROOT) not in f"{f.found}{f.why}{f.mend}" for f in found.values())


def test_a_first_look_shows_a_gradient_and_what_is_installed(monkeypatch, capfd):
    import numpy as np

    monkeypatch.setattr(tour, "by_default", lambda: ("numpy_manual",))
    monkeypatch.setattr(doctor, "backend_names", lambda: ("numpy_manual",))
    tour.main()
    said = capfd.readouterr().out
    assert f"{np.__version__}  cpu" in said
    assert "1.3863  2.7726  5.5452" in said
    assert "✓ agree" in said


def test_numpy_is_found_with_its_version_and_has_no_gpu(alone):
    import numpy as np

    found = alone("numpy")
    assert found["numpy"].found.startswith(np.__version__)
    assert found["numpy"].devices["cuda"] == "NumPy runs only on the CPU"
    assert found["numpy"].state == "ok"  # its allocator is pinned


def test_what_is_made_on_request_is_named_with_its_cost(alone, tmp_path):
    (tmp_path / "requirements").mkdir()
    text = "# On request: 5 MB to download, 9 MB on the disk\n"
    (tmp_path / "requirements" / "mlx.txt").write_text(text)
    why = "made only on request (5 MB to download, 9 MB on the disk)"
    mend = "make framework NAME=mlx"
    assert alone("mlx")["mlx"] == Finding("mlx", "", why, mend, needed=False)


def test_without_torch(alone, tmp_path, monkeypatch):
    """In an environment that has NumPy, but for which torch was forgotten."""
    python = environment_like(ROOT_PYTHON, tmp_path / "venv", without="torch")
    monkeypatch.setenv(variable("torch"), str(python))
    finding = alone("torch")["torch"]
    assert finding.state == "missing"
    assert finding.why == "torch is not installed in venv/bin/python"  # below its root
    assert finding.mend == f'{python} -m pip install "torch"'


ROOT_PYTHON = interpreter_of("numpy").python


@pytest.mark.parametrize(
    "lost",
    [
        "nvidia/cublas/lib/libcublas.so.11",
        "nvidia/cudnn/lib/libcudnn_cnn_infer.so.8",
        "nvidia/cudnn",
        "oneflow/_oneflow_internal.cpython-310-x86_64-linux-gnu.so",
    ],
)
def test_with_a_broken_oneflow(alone, tmp_path, monkeypatch, lost):
    """One of its files is deleted: it is named, with what to do."""
    whole = interpreter_of("oneflow")
    if whole.why_missing:
        pytest.skip(whole.why_missing)
    python = environment_like(whole.python, tmp_path / "venv", without=lost)
    monkeypatch.setenv(variable("oneflow"), str(python))
    finding = alone("oneflow")["oneflow"]
    assert finding.state == "missing"
    assert finding.why.startswith("oneflow does not run in venv/bin/python: ")
    assert lost.rpartition("/")[2].partition(".")[0] in finding.why
    assert finding.mend == f"{python} -m pip install --force-reinstall oneflow"


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("exit 7", "exited with status 7"),
        ("kill -SEGV $$", "killed by SIGSEGV"),
        ("echo hello", "exited with status 0"),
    ],
)
def test_a_python_that_does_not_run(alone, tmp_path, monkeypatch, script, why):
    named = fake_python(tmp_path / "python", script)
    monkeypatch.setenv(variable("torch"), str(named))
    finding = alone("torch")["torch"]
    assert why in finding.why
    assert finding.mend == f"{named} -m pip install --force-reinstall torch"


def test_a_python_that_cannot_be_started_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "python").touch()  # nobody may execute it
    gone = Interpreter("torch", tmp_path / "python", "a text")
    with pytest.raises(Died, match="PermissionError"):
        Worker(gone)
    assert [file.name for file in tmp_path.iterdir()] == ["python"]


def test_a_python_that_never_listens_ends_with_its_worker(tmp_path):
    """Warnings of what it leaves are errors."""
    deaf = fake_python(tmp_path / "python", "exec sleep 60")
    before = psutil.Process().children()
    worker = Worker(Interpreter("torch", deaf, "a deaf one"))
    assert worker.alive
    worker.close()
    del worker
    gc.collect()
    assert psutil.Process().children() == before


def test_an_import_that_kills(alone, tmp_path, monkeypatch):
    (tmp_path / "torch.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(variable("torch"), sys.executable)
    assert "killed by SIGABRT" in alone("torch")["torch"].why


def test_a_clean_checkout(alone, repository):
    found = alone("numpy", repository)["checkout"]
    assert found.state == "ok"
    assert found.found.startswith("commit ")


def test_no_checkout_at_all(alone, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert alone("numpy")["checkout"].state == "missing"


def test_no_git_at_all(alone, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(doctor, "probe", lambda _: {})
    monkeypatch.setattr(doctor, "_framework", lambda *_: iter(()))
    found = alone("numpy")["checkout"]
    assert found.state == "missing"
    assert found.why.endswith("git is not installed")
