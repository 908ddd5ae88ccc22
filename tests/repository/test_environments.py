"""`scripts/environments.py`, with fake interpreters and a fake uv: no network."""

import fcntl
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "environments.py"

# Notes its arguments and its find-links; has the interpreters of its search path alone.
FAKE_UV = """#!/bin/sh
[ "$1" = --version ] && { echo "uv 99.0.0"; exit; }
echo "$* [$UV_FIND_LINKS]" >> "$FAKE_LOG"
case "$1" in
venv) python=$(command -v "python$4") || { echo "error: no network" >&2; exit 2; }
    mkdir -p "$5/bin" "$5/lib/python3/site-packages"; cp "$python" "$5/bin/python" ;;
pip) eval "$FAKE_INSTALL" ;;
esac
"""


def load():
    spec = importlib.util.spec_from_file_location("environments", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["environments"] = module  # where dataclass looks for annotations
    spec.loader.exec_module(module)
    return module


environments = load()


def executable(file, text):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)
    return file


def fake_python(file, version):
    """Says that it is `version`, whatever it is asked."""
    return executable(file, f'#!/bin/sh\necho "{version} {file}"\n')


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine's `bin` with uv and what a shell script needs; no Python at all."""
    folder = tmp_path / "machine" / "bin"
    executable(folder / "uv", FAKE_UV)
    for tool in ("cp", "mkdir", "sleep"):
        (folder / tool).symlink_to(shutil.which(tool))
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "uv.log"))
    monkeypatch.setenv("FAKE_INSTALL", "")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    return folder


@pytest.fixture
def checkout(tmp_path, monkeypatch, machine):
    """A checkout without environments, on that machine."""
    root = tmp_path / "checkout"
    (root / "requirements").mkdir(parents=True)
    (root / "scripts").mkdir()
    shutil.copy(SCRIPT, root / "scripts")
    (root / "pyproject.toml").write_text("[project]\n")
    for name in ("main", *environments.FRAMEWORKS):
        (root / "requirements" / f"{name}.txt").write_text("numpy==1\n")
    monkeypatch.setattr(environments, "ROOT", root)
    return root


@pytest.fixture
def both_pythons(machine):
    fake_python(machine / "python3.11", "3.11")
    fake_python(machine / "python3.10", "3.10")


def run(*arguments):
    """One run of the script."""
    return environments.main(arguments)


def calls(*beginning):
    """What the fake uv was asked for so far."""
    log = Path(os.environ["FAKE_LOG"])
    lines = log.read_text().splitlines() if log.exists() else []
    return [line for line in lines if line.startswith(" ".join(beginning))]


# --- finding interpreters --------------------------------------------------------


def test_uv_looks_among_pyenv_s_versions_and_not_at_its_shims(machine, monkeypatch):
    """A shim exists for every version, and fails for those that are not selected."""
    pyenv = Path(os.environ["PYENV_ROOT"])
    for version in ("3.10.13", "3.11.7"):
        fake_python(pyenv / "versions" / version / "bin" / "python3", version)
    monkeypatch.setenv("PATH", f"{pyenv / 'shims'}{os.pathsep}{machine}")
    first, *others = environments.search_path().split(os.pathsep)
    assert first == str(machine)
    assert [Path(other).parts[-2] for other in others] == ["3.11.7", "3.10.13"]


def test_pyenv_in_the_home_folder_needs_no_variable(machine, tmp_path, monkeypatch):
    monkeypatch.delenv("PYENV_ROOT")
    file = tmp_path / "home/.pyenv/versions/3.10.1/bin/python3.10"
    fake_python(file, "3.10")
    assert environments.search_path().split(os.pathsep)[1:] == [str(file.parent)]


# --- uv and pip's settings -------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "recent"),
    [("uv 0.5.0", True), ("uv 1.0.0 (abc)", True), ("uv 0.4.30", False), ("", False)],
)
def test_an_old_or_broken_uv_is_passed_over(machine, tmp_path, text, recent):
    executable(machine / "uv", f"#!/bin/sh\necho '{text}'\n")
    own = executable(tmp_path / ".uv" / "bin" / "uv", FAKE_UV)
    found = environments.find_uv(tmp_path)
    assert found == str(machine / "uv" if recent else own)


def test_without_uv_and_pip_a_line_says_what_to_install(machine, monkeypatch, capfd):
    (machine / "uv").unlink()
    monkeypatch.setattr(environments, "python_with_pip", lambda: "")
    with pytest.raises(environments.Unavailable, match="install uv, or pip"):
        environments.find_uv(machine)


def test_pip_find_links_is_passed_on(checkout, both_pythons, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", "wheels more/wheels")
    assert run() == 0
    installs = calls("pip install")
    made = [one for one in environments.FRAMEWORKS.values() if not one.asked_for]
    assert len(installs) == 2 + len(made)  # the main one, and the project itself
    assert {line.rpartition(" ")[2] for line in installs} == {"[wheels,more/wheels]"}


def test_find_links_in_pip_s_files_is_passed_on(machine):
    listing = "global.find-links='a'\ninstall.cert='c'\nglobal.cert='b'"
    python = executable(machine / "python", f'#!/bin/sh\necho "{listing}"\n')
    settings = environments.pip_settings(str(python))
    assert (settings["find-links"], settings["cert"]) == ("a", "c")


def test_pip_s_variable_goes_before_its_files(machine, monkeypatch):
    python = executable(machine / "python", "#!/bin/sh\necho \"global.cert='b'\"\n")
    monkeypatch.setenv("PIP_CERT", "variable")
    assert environments.pip_settings(str(python))["cert"] == "variable"


def test_a_variable_of_uv_s_own_stands(tmp_path, monkeypatch):
    monkeypatch.setenv("UV_FIND_LINKS", "the user's")
    variables = environments.uv_variables(tmp_path, {"find-links": "pip's"})
    assert variables["UV_FIND_LINKS"] == "the user's"


def test_with_more_indexes_uv_chooses_among_all_as_pip_does(tmp_path, monkeypatch):
    monkeypatch.delenv("UV_INDEX_STRATEGY", raising=False)
    settings = {"extra-index-url": "file:one\nfile:two"}
    variables = environments.uv_variables(tmp_path, settings)
    assert variables["UV_INDEX"] == "file:one file:two"
    assert variables["UV_INDEX_STRATEGY"] == "unsafe-best-match"


def test_of_a_long_complaint_the_error_and_its_last_cause_are_quoted(
    checkout, both_pythons, monkeypatch, capfd
):
    text = "Resolved 3 packages\\nerror: no build\\n  cause: a\\n  cause: disk full"
    monkeypatch.setenv("FAKE_INSTALL", f"printf '{text}' >&2; exit 1")
    assert run() == 1
    said = "error: `uv pip install` failed: error: no build: cause: disk full\n"
    assert capfd.readouterr().err.endswith(said)


# --- making, and not making again ------------------------------------------------


@pytest.fixture
def made(checkout, both_pythons):
    """A checkout with both environments, and a clean log."""
    assert run() == 0
    Path(os.environ["FAKE_LOG"]).unlink()
    return checkout


def test_the_project_is_on_the_path_of_both_environments(checkout, both_pythons):
    assert run() == 0
    assert any(f"--editable {checkout}" in line for line in calls("pip install"))
    paths = checkout.glob(".venv-oneflow/lib/*/site-packages/gradwatch.pth")
    assert [file.read_text() for file in paths] == [f"{checkout}\n"]


def test_a_second_run_does_nothing_and_says_nothing(made, capfd):
    capfd.readouterr()
    assert run() == 0
    assert calls() == []
    assert capfd.readouterr() == ("", "")


CHANGES = {
    "requirements": lambda root: (root / "requirements/main.txt").write_text("a==2\n"),
    "no stamp": lambda root: (root / ".venv/gradwatch.json").unlink(),
    "damaged stamp": lambda root: (root / ".venv/gradwatch.json").write_text("{"),
    "no python": lambda root: (root / ".venv/bin/python").unlink(),
    "no folder": lambda root: shutil.rmtree(root / ".venv"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_an_environment_that_is_not_as_it_was_made_is_made_anew(made, change):
    change(made)
    assert run() == 0
    new = str(made / ".venv.new")
    assert [line.split()[-2] for line in calls("venv")] == [new]
    Path(os.environ["FAKE_LOG"]).unlink()
    assert run() == 0
    assert calls() == []


def test_a_change_of_pyproject_links_anew_without_installing_again(made):
    (made / "pyproject.toml").write_text("[project]\nname = 'gradwatch'\n")
    assert run() == 0
    assert calls("venv") == []
    assert [line.split()[4] for line in calls("pip install")] == ["--no-deps"]


def test_a_moved_checkout_is_linked_at_its_new_place(made, monkeypatch):
    moved = made.rename(made.with_name("moved"))
    monkeypatch.setattr(environments, "ROOT", moved)
    assert run() == 0
    assert calls("venv") == []
    assert any(f"--editable {moved}" in line for line in calls("pip install"))
    (path,) = moved.glob(".venv-oneflow/lib/*/site-packages/gradwatch.pth")
    assert path.read_text() == f"{moved}\n"


def test_what_an_interrupted_run_left_is_cleared_away(checkout, both_pythons):
    (checkout / ".venv.new" / "bin").mkdir(parents=True)
    (checkout / ".venv.old").mkdir()
    assert run() == 0
    names = {path.name for path in checkout.glob(".venv*")}
    assert names == {".venv", ".venv-oneflow", ".venv-jax"}


def test_a_failed_install_leaves_the_former_environment(made, monkeypatch, capfd):
    before = (made / ".venv" / "gradwatch.json").read_text()
    CHANGES["requirements"](made)
    monkeypatch.setenv("FAKE_INSTALL", "echo 'error: disk full' >&2; exit 1")
    assert run() == 1
    assert "error: `uv pip install` failed: error: disk full" in capfd.readouterr().err
    assert (made / ".venv" / "gradwatch.json").read_text() == before
    assert not (made / ".venv.new").exists()


def test_a_checkout_that_cannot_be_written_gives_one_line(checkout, capfd):
    (checkout / ".uv").write_text("a file where the folder should be")
    assert run() == 1
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: cannot make the environments: ")


# --- what is compiled -------------------------------------------------------------


@pytest.mark.parametrize("keeps", [True, False])
def test_all_is_compiled_where_python_keeps_nothing(tmp_path, monkeypatch, keeps):
    monkeypatch.setattr(sys, "dont_write_bytecode", not keeps)
    variables = environments.uv_variables(tmp_path, {})
    assert variables.get("UV_COMPILE_BYTECODE") == (None if keeps else "1")


# --- what cannot be had ----------------------------------------------------------


def test_without_python_3_11_a_line_says_so_and_the_run_fails(checkout, capfd):
    assert run() == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("error: no Python 3.11 on this machine")
    assert "`uv python install 3.11`" in last


@pytest.fixture
def without_oneflow(checkout, machine, capfd):
    """A checkout on a machine without Python 3.10, after its first run."""
    fake_python(machine / "python3.11", "3.11")
    assert run() == 0
    return capfd.readouterr().err.splitlines()


def test_without_python_3_10_oneflow_is_skipped_with_one_line(without_oneflow):
    line = without_oneflow[-1]
    assert line.startswith("OneFlow is skipped: no Python 3.10 on this machine")
    assert "(`uv venv` failed: error: no network)" in line
    assert "`uv python install 3.10`" in line


def test_a_skipped_oneflow_is_not_fetched_again_but_told_again(without_oneflow, capfd):
    tries = calls("venv")
    assert run() == 0
    assert capfd.readouterr().err.splitlines() == without_oneflow[-1:]
    assert calls("venv") == tries


def test_oneflow_is_tried_again_on_request_and_then_required(without_oneflow):
    tries = calls("venv")
    assert run("--require", "oneflow") == 1
    assert len(calls("venv")) == len(tries) + 1


def test_oneflow_is_made_once_python_3_10_is_there(without_oneflow, checkout, machine):
    fake_python(machine / "python3.10", "3.10")
    assert run("--require", "oneflow") == 0
    assert (checkout / ".venv-oneflow" / "gradwatch.json").exists()


def test_a_failed_install_of_oneflow_is_a_skip(
    checkout, both_pythons, monkeypatch, capfd
):
    failing = "case $* in *oneflow.txt*) echo 'error: no network' >&2; exit 1; esac"
    monkeypatch.setenv("FAKE_INSTALL", failing)
    assert run() == 0
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("OneFlow is skipped: `uv pip install` failed: error: no net")
    assert not list(checkout.glob(".venv-oneflow*"))


@pytest.mark.parametrize("name", environments.FRAMEWORKS)
def test_a_framework_that_is_required_and_fails_is_named(
    checkout, both_pythons, monkeypatch, capfd, name
):
    failing = f"case $* in *{name}.txt*) echo 'error: no network' >&2; exit 1; esac"
    monkeypatch.setenv("FAKE_INSTALL", failing)
    assert run("--require", name) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith(f"{environments.FRAMEWORKS[name].title} is skipped: ")
    assert last.endswith(f"(`make framework NAME={name}` tries again)")


# --- on request ------------------------------------------------------------------


def test_what_is_on_request_is_made_only_then(made, capfd):
    assert not (made / ".venv-mlx").exists()
    assert run("--require", "mlx") == 0
    assert (made / ".venv-mlx" / "gradwatch.json").exists()


@pytest.mark.parametrize("name", ["mxl", "", "main"])
def test_what_cannot_be_added_is_one_line_with_the_names(made, capfd, name):
    capfd.readouterr()
    assert run("--require", name) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: no framework ")
    names = "|".join(environments.FRAMEWORKS)
    assert line.endswith(f"make framework NAME={names}")


@pytest.mark.parametrize("name", environments.FRAMEWORKS)
def test_requirements_are_exact_and_tell_what_a_request_costs(name):
    text = (SCRIPT.parents[1] / "requirements" / f"{name}.txt").read_text()
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    assert all("==" in line for line in lines if line)
    cost = r"^# On request: \d+ MB to download, \d+ MB on the disk$"
    asked_for = environments.FRAMEWORKS[name].asked_for
    assert bool(re.search(cost, text, re.M)) == asked_for


# --- several runs, and their end -------------------------------------------------


def test_the_lock_is_held_while_environments_are_made(tmp_path):
    def lock():
        with open(tmp_path / ".uv" / "lock") as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)

    with environments.alone(tmp_path), pytest.raises(BlockingIOError):
        lock()
    assert lock() is None


def start(checkout):
    """The script as a process, in a process group of its own."""
    command = [sys.executable, checkout / "scripts" / "environments.py"]
    return subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def test_two_runs_at_once_make_the_environment_once(checkout, both_pythons):
    runs = [start(checkout) for _ in range(2)]
    errors = [process.communicate(timeout=60)[1] for process in runs]
    assert [process.returncode for process in runs] == [0, 0], errors
    new = f" {checkout / '.venv.new'} "
    assert sum(new in line for line in calls("venv")) == 1


@pytest.mark.parametrize("end", [os.kill, os.killpg], ids=["one", "group"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_half_made(
    checkout, both_pythons, tmp_path, monkeypatch, number, end
):
    """As Ctrl-C does, to the whole group; the child's death is seen by its pipe."""
    fifo = tmp_path / "installing"
    os.mkfifo(fifo)
    monkeypatch.setenv("FAKE_INSTALL", f'exec 9> "{fifo}"; echo yes >&9; exec sleep 60')
    process = start(checkout)
    with open(fifo) as installing:
        assert installing.readline() == "yes\n"
        end(process.pid, number)
        assert {*installing.read().split()} <= {"yes"}  # until every writer is gone
    error = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    said = "environments: interrupted; the old ones are unchanged"
    assert said in error.splitlines(), error
    assert not list(checkout.glob(".venv*"))
    assert not list(checkout.glob(".uv/*-skipped.json")), "it is tried again"


def test_the_stamp_is_strict_json(made):
    stamp = json.loads((made / ".venv" / "gradwatch.json").read_text())
    assert set(stamp) == {"python", "requirements", "checkout", "project"}
