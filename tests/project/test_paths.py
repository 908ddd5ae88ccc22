"""The project is found from any folder in it; a wrong table is one line."""

import json

import pytest

from gradwatch.harness.project import paths
from gradwatch.harness.project.paths import VARIABLE, find

TABLE = """
[tool.gradwatch]
ops = ["gradwatch_ops"]
backends = ["mine"]
measures = ["src/mykernels"]
python = {torch = ".venv/bin/python"}
"""


@pytest.fixture
def theirs(tmp_path):
    """A repository with a table, and a folder within it."""
    (tmp_path / "pyproject.toml").write_text(TABLE)
    (tmp_path / "src" / "deep").mkdir(parents=True)
    return tmp_path


def test_it_is_the_nearest_folder_upwards_with_a_table(theirs):
    (theirs / "src" / "pyproject.toml").write_text("[project]\nname = 'inner'\n")
    project = find(theirs / "src" / "deep", {})
    assert (project.root, project.ops, project.problem) == (
        theirs,
        ("gradwatch_ops",),
        "",
    )
    assert project.python == {"torch": ".venv/bin/python"}


def test_without_a_table_it_is_this_checkout(tmp_path):
    project = find(tmp_path, {})
    assert (project.root, project.table) == (paths.SOURCE, False)
    assert project.variables(tmp_path) == {}


def test_without_a_table_an_installed_copy_has_none(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "INSTALLED", True)
    assert "`gradwatch init` writes one" in find(tmp_path, {}).problem


def test_a_child_process_is_told_of_it_wherever_it_runs(theirs, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    project = find(theirs, {})
    variables = project.variables(other)
    assert find(other, variables) == paths.Project(
        other, ("gradwatch_ops",), ("mine",), ("src/mykernels",), project.python
    )
    # Their modules are imported from where they lie: the root, and a folder src.
    assert json.loads(variables[VARIABLE])["paths"] == [str(other), str(other / "src")]


def test_an_op_runs_its_page_the_helpers_beside_it_and_what_the_table_measures(theirs):
    names = ("src/mykernels", "src/mykernels/**", "mine/**")
    pages = ("gradwatch_ops/silu.py", "gradwatch_ops/_*")
    patterns = tuple(f":(glob){name}" for name in (*names, *pages))
    assert find(theirs, {}).files("silu") == patterns


def test_before_python_3_11_a_parser_may_be_missing(theirs, monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(paths.importlib, "import_module", missing)
    assert "pip install tomli" in find(theirs, {}).problem


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ("ops = 'pages'", "ops is a list"),
        ("opps = []", "no 'opps'"),
        ("measures = ['../theirs']", "outside"),
        ("ops = ['/pages']", "outside"),
        ("python = 'python'", "python is a table"),
        ("ops = [", "pyproject.toml"),
    ],
)
def test_a_wrong_table_is_one_line(tmp_path, table, said):
    (tmp_path / "pyproject.toml").write_text(f"[tool.gradwatch]\n{table}\n")
    problem = find(tmp_path, {}).problem
    assert said in problem
    assert "\n" not in problem
