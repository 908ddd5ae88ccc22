"""The files that a module runs, by its imports."""

from __future__ import annotations

from pathlib import Path

from harness.project.closure import closure

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


def test_an_import_counts_wherever_it_stands(tmp_path: Path) -> None:
    for name, content in TREE.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    files = closure(["a.start"], tmp_path)
    names = {file.relative_to(tmp_path).as_posix() for file in files}
    assert names == {*TREE} - {"a/unused.py"}
    assert files[tmp_path / "a/start.py"] == TREE["a/start.py"].encode()
