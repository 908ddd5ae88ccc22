"""The README's snippets run as they stand."""

import os
import re
import shlex
import subprocess
import sys

import pytest

from gradwatch.harness.project.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
FILES = {s.split()[1]: s for s in PYTHON if s.startswith("# ")}
SNIPPETS = [s for s in PYTHON if not s.startswith("# ")]
CONSOLE = "".join(re.findall(r"^```console\n(.*?)^```", README, re.M | re.S))
CALLS = re.findall(r"^\$ gradwatch (.*)", CONSOLE, re.M)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files that the README shows."""
    folder = tmp_path_factory.mktemp("readme")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def run(folder, *call):
    path = {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, *call],
        cwd=folder,
        env={**os.environ, **path},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "number",
    [  # PyTorch is loaded, and two dozen trials run
        pytest.param(i, marks=[pytest.mark.slow] if "check(" in snippet else [])
        for i, snippet in enumerate(SNIPPETS)
    ],
)
def test_a_snippet_runs_as_it_stands(folder, number):
    told = run(folder, "-c", SNIPPETS[number])
    assert "FAILS" not in told
    assert "disagree" not in told


@pytest.mark.slow
def test_the_first_command_passes_the_kernel_that_is_shown(folder):
    told = run(folder, "-m", "gradwatch", *shlex.split(CALLS[0]))
    assert "FastSilu.apply against torch.nn.functional.silu: passes" in told


@pytest.mark.slow
def test_what_is_shown_as_passing_fails_with_the_mistake_that_is_described(folder):
    hasty = FILES["mykernels.py"].replace(
        "s = x.sigmoid()", "s = x.sigmoid().bfloat16().to(x.dtype)"
    )
    (folder / "hasty.py").write_text(hasty)
    snippet = SNIPPETS[0].replace("mykernels", "hasty")
    told = run(folder, "-c", snippet)
    assert "FAILS, 1 of 2 tensors wrong" in told
