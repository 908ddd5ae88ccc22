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


#: Each check that is shown, and its output as it is shown.
CHECKS = [
    (code, told)
    for code, told in re.findall(
        r"^```python\n((?:(?!```).*\n)*)```\n\n```text\n((?:(?!```).*\n)*)",
        README,
        re.M,
    )
]


def verdicts(told):
    """What is the same on every machine: not seconds, elements and their numbers."""
    head, *lines = told.splitlines()
    lines = [line.split()[:4] for line in lines if line[:1] in ("✓", "✗")]
    return [re.sub(r"[\d.]+ s\)", "s)", head), *lines]


@pytest.mark.slow
@pytest.mark.parametrize(("code", "shown"), CHECKS, ids=["right", "wrong"])
def test_a_check_ends_as_it_is_shown(folder, code, shown):
    told = run(folder, "-c", code)
    assert verdicts(told) == verdicts(shown)
    assert ("✗" in told) == ("Hasty" in code)


def test_a_snippet_without_output_is_silent(folder):
    (silent,) = [s for s in SNIPPETS if "check(" not in s]
    assert run(folder, "-c", silent) == ""


@pytest.mark.slow
def test_the_first_command_passes_the_kernel_that_is_shown(folder):
    told = run(folder, "-m", "gradwatch", *shlex.split(CALLS[0]))
    assert "FastSilu.apply against torch.nn.functional.silu: passes" in told
