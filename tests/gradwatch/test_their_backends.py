"""Backends and interpreters of somebody else's project, and their pytest suite."""

import json
import re

import pytest

from tests.gradwatch.installed import run
from tests.histories import git

pytestmark = pytest.mark.slow

TABLE = """
[tool.gradwatch]
backends = ["my_backends"]
measures = ["theirs.py"]
python = {fast = "bin/python"}
"""
#: A framework of their own, which another interpreter runs: `fast` is the module.
BACKEND = """
import fast

from gradwatch.impls.backends._numpy import NumpyBackend
from gradwatch.impls.backends.numpy_manual import Manual

class Fast(NumpyBackend):
    framework = "fast"

    def version(self):
        return fast.VERSION

    def prepare(self, problem):
        return Manual(problem, problem.op.said("manual", "fast"))

backend = Fast("manual", Manual)
"""
PAGE = '''"""Cube: y = x^3."""

from gradwatch import Case, Op

op = Op("cube", inputs="x", cases=[Case("3x8", x=(3, 8))])


@op.implement("formula")
def formula(xp, x):
    return x * x * x


@op.implement("manual", framework="fast")
def manual(x):
    from theirs import cube

    return cube(x)
'''
RIGHT = "def cube(x):\n    return x * x * x, lambda dy: (3 * x * x * dy,)\n"
FAST = ("-m", "gradwatch", "agree", "--backend", "fast_manual", "--json", "-")


@pytest.fixture(scope="module")
def project(python, tmp_path_factory):
    """A repository with a table, a page, a backend and an interpreter with `fast`."""
    root = tmp_path_factory.mktemp("backends")
    git(root, "init", "-q", "-b", "main")
    for folder in ("gradwatch_ops", "my_backends", "bin", "site"):
        (root / folder).mkdir()
    (root / "pyproject.toml").write_text(TABLE)
    (root / "gradwatch_ops" / "cube.py").write_text(PAGE)
    (root / "my_backends" / "fast_manual.py").write_text(BACKEND)
    (root / "theirs.py").write_text(RIGHT)
    (root / "site" / "fast.py").write_text("VERSION = '7.1'\n")
    script = f'#!/bin/sh\nPYTHONPATH={root / "site"} exec {python} "$@"\n'
    (root / "bin" / "python").write_text(script)
    (root / "bin" / "python").chmod(0o755)
    return root


def judged(told):
    document = json.loads(told[told.index("{\n") : told.rindex("}") + 1])
    return {(record["backend"], record["verdict"]) for record in document["records"]}


def test_a_backend_of_their_own_is_listed_beside_ours(python, project):
    names = run(python, "-m", "gradwatch", "list", "backends", cwd=project).split()
    assert {"fast_manual", "numpy_graph"} <= {*names}
    assert not [name for name in names if name.startswith("oneflow")]


def test_it_runs_in_the_interpreter_of_the_table_and_is_judged(python, project):
    assert judged(run(python, *FAST, cwd=project)) == {("fast_manual", "agree")}
    (project / "theirs.py").write_text(RIGHT.replace("3 * x", "2 * x"))
    wrong = judged(run(python, *FAST, cwd=project, code=1))
    (project / "theirs.py").write_text(RIGHT)
    assert ("fast_manual", "disagree") in wrong


def test_an_interpreter_that_is_not_there_is_one_line(python, project):
    (project / "bin" / "python").rename(project / "bin" / "gone")
    told = run(python, *FAST, "--require", "fast_manual", cwd=project, code=3)
    (project / "bin" / "gone").rename(project / "bin" / "python")
    assert "pyproject.toml names bin/python, which is not there" in told


# Their pytest suite ---------------------------------------------------------------

KERNELS = """
import torch

def of(backward):
    class Silu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x.sigmoid()

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            s = x.sigmoid()
            return backward(dy, s * (1 + x * (1 - s)))

    return Silu.apply

def last_forgotten(dy, slope):
    dx = dy * slope
    dx.view(-1)[-1:] = 0
    return dx

RIGHT = of(lambda dy, slope: dy * slope)
WRONG = {
    "sign": of(lambda dy, slope: -dy * slope),
    "scaled": of(lambda dy, slope: dy * slope * 1.001),
    "last": of(last_forgotten),
    "none": of(lambda dy, slope: None),
    "cotangent": of(lambda dy, slope: slope),
}
"""
TESTS = """
import pytest
from torch.nn.functional import silu

from kernels import RIGHT, WRONG

def test_right(gradwatch):
    gradwatch.check(silu, RIGHT, shapes=[(5, 9)])

@pytest.mark.parametrize("name", WRONG)
def test_wrong(gradwatch, name):
    gradwatch.check(silu, WRONG[name], shapes=[(5, 9)])
"""


def test_in_their_suite_a_right_kernel_passes_and_five_wrong_ones_fail(
    python, tmp_path
):
    (tmp_path / "kernels.py").write_text(KERNELS)
    (tmp_path / "test_kernels.py").write_text(TESTS)
    (tmp_path / "conftest.py").write_text("")  # its folder is where modules are found
    call = ("-m", "pytest", "-p", "no:cacheprovider", "-rA", "--tb=short")
    told = run(python, *call, "-n", "2", cwd=tmp_path, code=1)
    assert re.search(r"5 failed, 1 passed", told)
    assert "PASSED test_kernels.py::test_right" in told
    assert told.count("this script shows the failure alone, until it passes:") >= 5
    assert told.count("against torch.nn.functional.silu: FAILS") >= 5
