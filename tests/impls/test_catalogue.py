"""Names come from files; listing them imports no framework; a stranger's page works."""

import subprocess
import sys

import pytest

from gradwatch.impls import catalogue
from gradwatch.impls.catalogue import UnknownName, load_op, op_names
from gradwatch.impls.contract import DIALECTS, Case, Op, Unsupported

LISTING = """
import sys
from click.testing import CliRunner
from gradwatch.harness.__main__ import gradwatch
for what in ("ops", "backends", "cases"):
    done = CliRunner().invoke(gradwatch, ["list", what])
    assert done.exit_code == 0 and done.output.count("\\n") > 5, done.output
loaded = {"torch", "oneflow"} & set(sys.modules)
assert not loaded, loaded
"""


def test_listing_imports_no_framework():
    done = subprocess.run(
        [sys.executable, "-c", LISTING], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", op_names())
def test_a_page_defines_the_op_of_its_name_in_every_dialect(name):
    op = load_op(name)
    assert op.name == name
    assert op.cases
    assert op.sizes
    for dialect in DIALECTS:
        assert op.said(dialect), dialect


@pytest.mark.parametrize("name", op_names())
def test_a_page_reads_in_order_on_one_screen(name):
    """Formula, cases, then the dialects in the contract's order; 110 lines at most."""
    text = (catalogue._HERE / "ops" / f"{name}.py").read_text()
    assert text.count("\n") <= 110
    places = [text.index(f'@op.implement("{dialect}"') for dialect in DIALECTS]
    assert places == sorted(places)
    assert text.startswith('"""')
    assert "cases=[" in text


PAGE = '''"""y = 3 x."""
from gradwatch.impls.contract import Case, Op
op = Op("triple", inputs="x", cases=[Case("2", x=(2,))])

@op.implement("formula")
def formula(xp, x):
    return 3.0 * x
'''


def test_a_page_outside_the_project_is_loaded_by_its_path(tmp_path):
    page = tmp_path / "triple.py"
    page.write_text(PAGE)
    assert load_op(str(page)).name == "triple"


def test_a_page_without_an_op_is_named(tmp_path):
    page = tmp_path / "empty.py"
    page.write_text("x = 1")
    with pytest.raises(TypeError, match=r"empty.py does not define `op = Op"):
        load_op(str(page))


@pytest.mark.parametrize(
    ("load", "name", "hint"),
    [
        (load_op, "layernorm", "did you mean 'layer_norm'"),
        (catalogue.load_backend, "torch_autogard", "did you mean 'torch_autograd'"),
        (load_op, "zzz", "one of: add, affine_pair"),
        (load_op, "nowhere/page.py", "no op page at nowhere/page.py"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(load, name, hint):
    with pytest.raises(UnknownName, match=hint):
        load(name)


def test_saying_a_dialect_twice_is_an_error():
    op = Op("twice", inputs="x", formula=lambda xp, x: x)
    with pytest.raises(ValueError, match="formula is defined twice"):
        op.implement("formula")(lambda xp, x: x)


def test_a_dialect_that_nobody_speaks_is_an_error():
    with pytest.raises(ValueError, match="no dialect 'forward'; one of formula"):
        Op("odd", inputs="x").implement("forward")(lambda x: x)


def test_two_cases_of_one_name_are_an_error():
    with pytest.raises(ValueError, match="two cases are called '3'"):
        Op("odd", inputs="x", cases=[Case("3", x=(3,)), Case("3", x=(3, 1))])


def test_what_a_framework_lacks_is_declared_with_its_reason():
    op = Op("odd", inputs="x", formula=lambda xp, x: x)
    op.implement("autograd")(lambda F, x: x)  # noqa: N803  # the framework's F
    op.lacks("autograd", framework="oneflow", reason="OneFlow has no such call")
    assert op.said("autograd", "torch")
    with pytest.raises(Unsupported, match="OneFlow has no such call"):
        op.said("autograd", "oneflow")
    with pytest.raises(Unsupported, match="has no manual dialect"):
        op.said("manual", "numpy")


@pytest.mark.parametrize(
    ("version", "there"),
    [("1.12.1+cu102", False), ("2.3", False), ("2.4", True), ("2.13.0+cpu", True)],
)
def test_what_older_versions_lack_is_declared_for_them_alone(version, there):
    op = Op("odd", inputs="x", formula=lambda xp, x: x)
    op.implement("autograd")(lambda F, x: x)  # noqa: N803  # the framework's F
    op.lacks("autograd", framework="torch", before="2.4", reason="PyTorch had no such")
    assert op.said("autograd", "torch")  # of no version: what the page says
    assert op.said("autograd", "oneflow", version="0.9.0")
    if there:
        assert op.said("autograd", "torch", version=version)
        return
    with pytest.raises(Unsupported, match="PyTorch had no such"):
        op.said("autograd", "torch", version=version)
