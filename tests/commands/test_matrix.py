"""The table of ops and backends fits into the terminal, and folds by framework."""

import io

import pytest
from rich.console import Console

from gradwatch.harness.commands.agree import fitting, of_those_that_ran
from gradwatch.harness.project.records import AgreeRecord
from tests.dashboard.browser.invented import agree_record

FRAMEWORKS = ("autograd", "jax", "mlx", "numpy", "oneflow", "paddle", "tensorflow")
BACKENDS = [f"{name}_{kind}" for name in FRAMEWORKS for kind in ("formula", "autograd")]
BACKENDS += ["torch_autograd", "torch_custom", "torch_formula"]
OPS = ["masked_attention", "relu", "softmax"]


def records(ratio=1.5e13):
    right = [agree_record(op, name, ratio=ratio) for op in OPS for name in BACKENDS]
    wrong = agree_record("relu", "torch_custom", verdict="disagree", ratio=99.0)
    known = agree_record("softmax", "jax_formula", verdict="disagree", ratio=42.0)
    known["expected_verdict"] = "disagree"
    every = [*right, wrong, known]
    return [AgreeRecord(**one) for one in every]


def printed(width, several):
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(fitting(several, console)[0])
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def row(lines, op):
    (found,) = (line for line in lines if op in line)
    return found


@pytest.mark.parametrize("width", [80, 120, 160, 400])
@pytest.mark.parametrize("ratio", [1.5, 1.5e13, float("inf"), None])
def test_no_line_is_wider_than_the_terminal_and_no_row_is_broken(width, ratio):
    lines = printed(width, records(ratio))
    assert max(map(len, lines)) <= width
    below = lines[lines.index(row(lines, OPS[0])) :]
    assert [next(o for o in OPS if o in line) for line in below[: len(OPS)]] == OPS


@pytest.mark.parametrize("width", [80, 120])
def test_where_backends_do_not_fit_a_framework_shows_its_worst_verdict(width):
    lines = printed(width, records())
    heads = row(lines, "op ").split()
    assert heads == ["op", *FRAMEWORKS, "torch"]
    assert row(lines, "relu").split()[-1] == "✗"  # torch_custom alone is wrong
    assert row(lines, "relu").count("✗") == 1
    assert row(lines, "softmax").count("✗*") == 1  # jax_formula, as it is known
    assert "each backend" in " ".join(lines)


def test_the_ratio_is_shown_where_there_is_room_for_it():
    assert "1.5e13" in row(printed(120, records()), "masked")
    assert "1.5e13" not in row(printed(70, records()), "masked")
    assert "1.5 ✓" in row(printed(100, records(1.5)), "masked")


def test_a_wide_terminal_shows_each_backend():
    lines = printed(400, records())
    assert row(lines, "relu").count("✓") == len(BACKENDS) - 1
    assert "99 ✗" in row(lines, "relu")
    assert "42 ✗*" in row(lines, "softmax")


def test_a_backend_whose_dialect_no_page_has_is_no_column():
    lacking = [
        AgreeRecord(**agree_record(op, name, verdict="unsupported"))
        for op, name in (("relu", "torch_custom"), ("softmax", "numpy_manual"))
    ]
    others = [AgreeRecord(**agree_record(op, "numpy_graph")) for op in OPS]
    right = AgreeRecord(**agree_record("softmax", "torch_custom"))
    shown = of_those_that_ran([*lacking, *others, right])
    assert {r.backend for r in shown} == {"numpy_graph", "torch_custom"}
    assert lacking[0] in shown  # one op lacks what another has: it is said


def test_the_legend_explains_the_signs_of_the_table_alone():
    """A case of which nothing can be said is no sign where the others agree."""
    right, hidden = (
        AgreeRecord(**agree_record("relu", "numpy_graph", verdict=verdict))
        for verdict in ("agree", "vacuous")
    )
    console = Console(width=80, file=io.StringIO())
    assert fitting([right, hidden], console)[1] == {"agree"}
    assert fitting([hidden], console)[1] == {"vacuous"}
