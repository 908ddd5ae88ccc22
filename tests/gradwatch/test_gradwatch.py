"""What users import: every public name, at the cost of NumPy alone."""

import subprocess
import sys

import numpy as np
import pytest

import gradwatch
from gradwatch._extras import Missing, explained, extra_of
from gradwatch.harness.diagnosis.entry import judge
from gradwatch.harness.history.changepoints import find_changes
from gradwatch.harness.project.paths import ROOT
from gradwatch.impls import contract

CHEAP = """
import sys
before = set(sys.modules)
import gradwatch
gradwatch.judge, gradwatch.Op
ours = {"gradwatch", "harness", "impls", "numpy"}
new = {name.partition(".")[0] for name in set(sys.modules) - before}
new = {name for name in new if "cython" not in name}  # NumPy's extensions register it
print(sorted(new - ours - set(sys.stdlib_module_names)))
"""


def test_public_names_are_those_of_the_project_and_no_copies():
    assert gradwatch.Op is contract.Op
    assert gradwatch.Case is contract.Case
    assert gradwatch.judge is judge
    assert gradwatch.find_changes is find_changes


@pytest.mark.parametrize("name", gradwatch.__all__)
def test_every_public_name_is_there(name):
    assert getattr(gradwatch, name).__name__ == name


def test_importing_it_and_judging_load_numpy_alone():
    call = [sys.executable, "-c", CHEAP]
    done = subprocess.run(call, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Exported:
    """An array of a library that has nothing but DLPack."""

    def __init__(self, array):
        self.__dlpack__, self.__dlpack_device__ = (
            array.__dlpack__,
            array.__dlpack_device__,
        )


@pytest.mark.parametrize(("scale", "verdict"), [(2.0, "agree"), (2.02, "disagree")])
def test_a_gradient_may_be_any_object_with_dlpack(scale, verdict):
    x = np.linspace(1.0, 2.0, 5)
    (dx,) = judge("square", [x], np.ones(5), [Exported(scale * x)])
    assert dx.verdict == verdict


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'chekc'"):
        gradwatch.chekc  # noqa: B018  # the access is what is tested


@pytest.mark.parametrize(
    ("module", "extra"),
    [("click", "cli"), ("flint", "test"), ("asv", "history"), ("torch", "torch")],
)
def test_the_extra_that_brings_a_module_is_named(module, extra):
    assert extra_of(module) == extra
    said = pytest.raises(Missing, match=rf"it needs {module}: .*gradwatch\[{extra}\]")
    with said, explained("it"):
        raise ModuleNotFoundError(name=f"{module}.inner")


def test_a_missing_module_that_no_extra_brings_stays_an_error_of_its_own():
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"), explained("it"):
        raise ModuleNotFoundError("no_such_thing", name="no_such_thing")


def test_python_m_gradwatch_is_the_command_line():
    call = [sys.executable, "-m", "gradwatch", "list", "ops"]
    done = subprocess.run(call, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "softmax" in done.stdout.split()
