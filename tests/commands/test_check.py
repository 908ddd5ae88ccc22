"""`gradwatch check`: one clear line whatever the caller does, never a false 0."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradwatch.harness import __main__ as main
from gradwatch.harness.check import child
from gradwatch.harness.commands import check as check_command
from gradwatch.harness.console import streams
from gradwatch.harness.project import documents
from tests.command_line import gradwatch

KERNELS = """
import os, sys, time
import torch

class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, dy):
        return 2 * ctx.saved_tensors[0] * dy

class Wrong(Square):
    @staticmethod
    def backward(ctx, dy):
        return ctx.saved_tensors[0] * dy

def square(x):
    return x * x

def dies(x):
    os.abort()

class DiesLater(Square):
    @staticmethod
    def backward(ctx, dy):
        os.abort()

def hangs(x):
    time.sleep(1000)

def chatters(x):
    print("hello")
    return x * x
"""
FUNCTIONAL = "torch.nn.functional"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "exits.py").write_text("import sys; sys.exit(0)")
    return tmp_path


@pytest.fixture
def here(folder, monkeypatch):
    """Calls the command in this process, which has imported PyTorch already."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "kernels", raising=False)

    def answered(request):
        asked = json.loads(json.dumps(request))
        return json.loads(documents.dumps(child.answered(asked)))

    monkeypatch.setattr(check_command, "_asked", answered)
    return lambda *arguments: gradwatch("check", *arguments)


def check(folder, *arguments):
    """Calls it as a user does: its own process, and another one for the candidate."""
    return subprocess.run(
        [sys.executable, "-m", "gradwatch", "check", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_a_right_kernel_ends_with_0_and_a_table(here):
    done = here("kernels:square", "kernels:Square", "--shape", "3x4")
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.startswith("✓ Square.apply against square: passes")
    assert "dx" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        ("check", "torch.square", "--shape", "2x3", "--quick"),
        ("agree", "--op", "square", "--backend", "numpy_manual", "--regime", "normal"),
    ],
    ids=lambda call: call[0],
)
def test_what_was_found_is_shown_where_its_document_cannot_be_written(
    here, folder, call
):
    full = gradwatch(*call, "--json", folder / "exits.py" / "no folder")
    assert full.returncode == 1
    assert "✓" in full.stdout
    assert "exits.py" in full.stderr


def test_a_wrong_one_ends_with_1_a_document_and_a_script_that_shows_it(folder):
    done = check(
        folder, "kernels:square", "kernels:Wrong", "--shape", "3x4",
        "--json", "found.json", "--repro", "repro.py",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    document = json.loads((folder / "found.json").read_text())
    assert document["schema"] == 1
    assert not document["summary"]["passes"]
    assert {r["tensor"] for r in document["records"]} == {"y", "dx"}
    assert any("dx is halved" in r["diagnosis"] for r in document["records"])
    bare = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    shown = subprocess.run(
        [sys.executable, "-S", "-c", RUN, "repro.py", *map(str, packages())],
        cwd=folder, env=bare, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert shown.returncode == 1, shown.stderr
    assert "dx: element 0" in shown.stdout
    mended = (folder / "kernels.py").read_text().replace("return ctx", "return 2 * ctx")
    (folder / "kernels.py").write_text(mended)
    shown = subprocess.run([sys.executable, "repro.py"], cwd=folder, timeout=100)
    assert shown.returncode == 0


#: Runs a script where nothing of ours can be imported.
RUN = """
import runpy, sys
sys.path += [p for p in sys.argv[2:]]
for ours in ("harness", "impls", "gradwatch"):
    sys.modules[ours] = None
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def packages():
    return [path for path in sys.path if "site-packages" in path]


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        ("kernels:dies", "killed by SIGABRT in dies (kernels.py:24), at normal 3x4"),
        ("kernels:DiesLater", "in backward (kernels.py:29), at normal 3x4 in float32"),
        ("exits:anything", "ended the process: exited with status 0"),
    ],
)
def test_what_ends_the_process_is_one_line(folder, candidate, said):
    done = check(folder, "kernels:square", candidate, "--shape", "3x4")
    assert (done.returncode, done.stdout) == (1, "")
    lines = [li for li in done.stderr.splitlines() if li.startswith("gradwatch: ")]
    (line,) = [li for li in lines if "checking" not in li]  # on a busy machine
    assert said in line


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("ends", ["interrupted", "killed"])
def test_no_line_of_progress_stays_when_its_process_is_ended(monkeypatch, ends):
    monkeypatch.setattr(sys, "stderr", Terminal("gradwatch: checking, 4 s"))
    sys.stderr.seek(0, io.SEEK_END)
    if ends == "killed":
        check_command._show({"ended": ends}, None, None)
    else:
        main._say(ends)
    line, told = sys.stderr.getvalue().split(streams.ANEW)
    assert line == "gradwatch: checking, 4 s"
    assert told.endswith(f"{ends}\n")


@pytest.mark.parametrize(
    ("candidate", "said"),
    [
        ("kernels:Squar", "did you mean 'Square'?"),
        ("kernel:Square", "no module is called 'kernel'"),
    ],
)
def test_a_candidate_that_is_not_there_is_one_line(here, candidate, said):
    done = here("kernels:square", candidate, "--shape", "3x4")
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = [li for li in done.stderr.splitlines() if li.startswith("gradwatch: ")]
    assert said in line


@pytest.mark.slow
def test_what_hangs_is_ended(folder):
    arguments = ("kernels:square", "kernels:hangs", "--shape", "3x4")
    done = check(folder, *arguments, "--timeout", "4")
    assert done.returncode == 1
    assert "nothing was judged: no answer in 4 s" in done.stderr


def test_what_the_candidate_prints_is_no_result(folder):
    arguments = ("kernels:square", "kernels:chatters", "--shape", "3x4", "--quick")
    done = check(folder, *arguments, "--json", "-")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"]["passes"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((f"{FUNCTIONAL}.silu",), "give a --shape for each"),
        ((f"{FUNCTIONAL}.silu", "--shape", "3y"), "no shape '3y'"),
        ((f"{FUNCTIONAL}.sillu", "--shape", "3"), "did you mean 'silu'?"),
        ((f"{FUNCTIONAL}.silu", "--shape", "3", "--dtype", "float23"), "float32"),
        (("torch:linalg.eigvals", "--shape", "3x3"), "before and after the factor"),
        (("softmaxx",), "did you mean 'softmax'?"),
        (("kernels",), "kernels is a module: write MODULE:FUNCTION"),
        ((f"{FUNCTIONAL}.silu", "--shape", "3", "--arg", "dim"), "is not NAME=VALUE"),
        (("a.py", "b.py", "--kernelbench"), "no file at a.py"),
        (("a.py", "--kernelbench"), "takes a problem and a solution"),
    ],
)
def test_a_call_that_cannot_be_judged_ends_with_2(here, arguments, said):
    done = here(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize(("kind", "code"), [("right", 0), ("wrong", 1)])
def test_a_problem_in_kernelbench_s_form_and_its_solution(here, kind, code):
    files = Path(__file__).parents[1] / "check" / "kernelbench"
    problem, solution = (files / k / "softmax.py" for k in ("problems", kind))
    done = here("--kernelbench", str(problem), str(solution), "--quick")
    assert done.returncode == code, done.stdout + done.stderr
