"""Findings in PyTorch: a script each, which exits 1 while the defect is there."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parent.parent.parent
SCRIPTS = sorted((ROOT / "results" / "pytorch").glob("*.py"))
KNOWN = ("hardsigmoid", "trigamma", "expm1", "as_strided_scatter", "max_unpool")


def test_the_defects_that_were_known_are_there():
    assert {*KNOWN} <= {script.stem for script in SCRIPTS}


@pytest.mark.skipif(
    not torch.__version__.startswith("2.13."), reason="recorded with PyTorch 2.13"
)
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_a_finding_holds(script):
    """Where it has gone, PyTorch has mended it: take the script away."""
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_a_finding_needs_pytorch_and_numpy_alone(script):
    nodes = list(ast.walk(ast.parse(script.read_text())))
    names = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    names += [n.module for n in nodes if isinstance(n, ast.ImportFrom)]
    assert {*names} <= {"sys", "numpy", "torch"}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_a_finding_is_on_the_page(script):
    page = (ROOT / "docs" / "pytorch.md").read_text()
    assert f"results/pytorch/{script.name}" in page
