"""A commit to a kernel concerns what calls it, and no other dialect of its page."""

import pytest

from gradwatch.harness.project.affected import _imports

PAGE = """
from gradwatch import Op

op = Op("silu", inputs="x")


@op.implement("formula")
def formula(xp, x):
    {formula}
    return x * xp.sigmoid(x)


@op.implement("autograd", framework="torch")
def autograd(torch, x):
    {autograd}
    return silu(x)
"""


@pytest.mark.parametrize("line", ["import torch", "from math import pi", "import re"])
def test_a_dialect_that_imports_none_of_theirs_is_not_concerned(tmp_path, line):
    page = tmp_path / "silu.py"
    page.write_text(PAGE.format(formula=line, autograd="from theirs import silu"))
    concerned = [b for b in ("numpy_graph", "torch_autograd") if _imports(page, b)]
    assert concerned == ["torch_autograd"]


@pytest.mark.parametrize("line", ["import theirs", "from . import theirs"])
def test_a_formula_that_imports_theirs_is_concerned(tmp_path, line):
    page = tmp_path / "silu.py"
    page.write_text(PAGE.format(formula=line, autograd="pass"))
    assert _imports(page, "numpy_graph")
    assert not _imports(page, "torch_autograd")


def test_a_page_that_imports_theirs_at_its_top_is_concerned_as_a_whole(tmp_path):
    page = tmp_path / "silu.py"
    page.write_text("import theirs\n" + PAGE.format(formula="pass", autograd="pass"))
    assert _imports(page, "numpy_graph")
    assert _imports(page, "torch_autograd")
