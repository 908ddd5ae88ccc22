"""The wheel in somebody else's environment and repository: nothing is in the way.

Only what `gradwatch` is called can be imported, and what is missing is said.
"""

import re
import zipfile

import pytest

from tests.gradwatch import installed
from tests.gradwatch.installed import run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """An interpreter with the wheel and NumPy."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    return installed.environment(folder, wheel, ("numpy", "numpy.libs"))


def test_it_holds_one_name(wheel):
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"gradwatch"}


def test_no_module_in_it_imports_by_the_names_of_the_checkout(wheel):
    archive = zipfile.ZipFile(wheel)
    sources = {
        n: archive.read(n).decode() for n in archive.namelist() if n[-3:] == ".py"
    }
    ours = re.compile(r"^\s*(?:from|import) (?:harness|impls|benchmarks)\b", re.M)
    assert [name for name, source in sources.items() if ours.search(source)] == []
    assert "gradwatch/harness/judging/verdict.py" in sources


def test_templates_and_data_are_in_it(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.rpartition(".")[2] for name in names} >= {"j2", "css", "js", "txt"}


@pytest.mark.parametrize("name", ["harness", "impls", "benchmarks"])
def test_no_other_name_can_be_imported(bare, name, tmp_path):
    told = run(bare, "-c", f"import {name}", cwd=tmp_path, code=1)
    assert f"No module named '{name}'" in told


def test_numpy_is_enough_to_judge(bare, tmp_path):
    source = """
import gradwatch, numpy as np
x, dy = np.linspace(-1, 1, 8), np.ones(8)
op = gradwatch.Op("cube", inputs="x", formula=lambda xp, x: x * x * x)
print(*(gradwatch.judge(op, [x], dy, [k * x * x])[0].verdict for k in (3, 2)))
"""
    assert run(bare, "-c", source, cwd=tmp_path).split() == ["agree", "disagree"]


@pytest.mark.parametrize(
    ("call", "extra"),
    [
        (("-m", "gradwatch", "agree"), "cli"),
        (("-c", "import gradwatch; gradwatch.check"), "torch"),
        (("-c", "import gradwatch; gradwatch.find_changes"), "history"),
    ],
)
def test_what_is_missing_is_one_line_that_names_the_extra(bare, call, extra, tmp_path):
    told = run(bare, *call, cwd=tmp_path, code=3 if extra == "cli" else 1)
    assert f"pip install 'gradwatch[{extra}]'" in told.splitlines()[-1]


def test_without_a_project_it_says_so_in_one_line(python, tmp_path):
    told = run(python, "-m", "gradwatch", "agree", cwd=tmp_path, code=2)
    assert "`gradwatch init` writes one" in told
    assert list(tmp_path.iterdir()) == []
