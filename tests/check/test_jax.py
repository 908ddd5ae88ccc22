"""Functions of JAX's as references and candidates; JAX has a process of its own."""

import ast
import json
import os
import subprocess
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from gradwatch.harness.workers.interpreters import interpreter_of
from tests.frameworks import usable

FILE = Path(__file__).with_name("jax_claims.py")
ROOT = FILE.parents[2]
TREE = ast.parse(FILE.read_text())
HELPERS = ("with_backward", "same", "refuses", "published", "_of_table", "main")
HELPERS += ("wrong_silu", "wrong_square", "ran")
CLAIMS = [
    node.name
    for node in TREE.body
    if isinstance(node, ast.FunctionDef) and node.name not in HELPERS
]


def keys_of(tree: ast.Module, name: str) -> list[str]:
    """The keys of a table that is written out in a module."""
    (table,) = (
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == name
    )
    return [key.value for key in table.keys]


SAME = keys_of(TREE, "SAME")
PUBLISHED = ast.parse(FILE.with_name("jax_published.py").read_text())
FUNCTIONS = keys_of(PUBLISHED, "FUNCTIONS")


@cache
def outcomes(claims: tuple[str, ...]) -> dict[str, str]:
    """What each claim raised in JAX's interpreter; PyTorch lies behind it."""
    usable("jax")
    paths = [str(ROOT), str(ROOT / "tests" / "check")]
    behind = Path(np.__file__).parents[1]
    code = (
        f"import sys; sys.path[:0] = {paths!r}; sys.path.append({str(behind)!r});"
        " import jax_claims; jax_claims.main()"
    )
    done = subprocess.run(
        [interpreter_of("jax").python, "-c", code, *claims],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": "1"},
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("name", SAME)
def test_values_and_gradients_of_the_graph_are_those_of_jax(name):
    assert outcomes(tuple(SAME))[name] == ""


@pytest.mark.slow
@pytest.mark.parametrize("claim", CLAIMS)
def test_of_a_function_of_jax(claim):
    assert outcomes(tuple(CLAIMS))[claim] == ""


@pytest.mark.slow
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_published_function_passes_and_a_mistake_in_it_fails(name):
    first = FUNCTIONS.index(name) // 10 * 10  # JAX starts once for ten
    assert outcomes(tuple(FUNCTIONS[first : first + 10]))[name] == ""


def test_jax_needs_no_pytorch():
    usable("jax")
    code = (
        "import gradwatch, jax, sys; jax.config.update('jax_platforms', 'cpu');"
        "report = gradwatch.check(jax.nn.silu, shapes=[(3, 4)], quick=True);"
        "assert report.passes, report; assert 'torch' not in sys.modules"
    )
    python = interpreter_of("jax").python
    done = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("script", sorted((ROOT / "results" / "jax").glob("*.py")))
def test_a_finding_exits_with_1_while_the_defect_is_there(script):
    usable("jax")
    python = interpreter_of("jax").python
    done = subprocess.run([python, script], capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
