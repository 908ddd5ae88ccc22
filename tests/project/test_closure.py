"""The files that a module runs, by its imports."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from gradwatch.harness.project.closure import closure

TREE = {
    "a/__init__.py": "",
    "a/start.py": "import os\nimport a.plain\nfrom a import sibling\n",
    "a/plain.py": "def f():\n    try:\n        from b.deep import it\n    finally: ...",
    "a/sibling.py": "if True:\n    from . import beside\n",
    "a/beside.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING: import d\n",
    "a/unused.py": "import a.start",
    "b/__init__.py": "import e",
    "b/deep.py": "match 1:\n    case 1: import f\nclass C:\n    import g\n",
    **{f"{name}.py": "" for name in "defg"},
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, content in TREE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    return tmp_path


def names(files: Iterable[Path], tree: Path) -> set[str]:
    return {file.relative_to(tree).as_posix() for file in files}


def test_an_import_counts_wherever_it_stands(tree: Path) -> None:
    files = closure(["a.start"], tree)
    assert names(files, tree) == {*TREE} - {"a/unused.py"}
    assert files[tree / "a/start.py"] == TREE["a/start.py"].encode()


def test_what_is_known_already_is_left_out_with_its_imports(tree: Path) -> None:
    already = closure(["a.plain"], tree)
    assert names(already, tree) == {"a/__init__.py", "a/plain.py", "b/__init__.py"} | {
        *("b/deep.py", "e.py", "f.py", "g.py")
    }
    rest = closure(["a.start"], tree, without=already)
    assert names(rest, tree) == {"a/start.py", "a/sibling.py", "a/beside.py", "d.py"}
