"""The script that makes the figures of docs/selftest.md."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def evidence():
    spec = importlib.util.spec_from_file_location(
        "evidence", ROOT / "scripts" / "evidence.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("part", ["detection", "calibration"])
def test_the_page_has_a_place_for_each_part(evidence, part):
    text = (ROOT / "docs" / "selftest.md").read_text()
    assert "\nnew figures\n" in evidence.replaced(text, part, "new figures")


def test_only_what_stands_between_the_marks_is_replaced(evidence):
    text = "before\n<!-- cost -->\nold\n<!-- /cost -->\nafter\n"
    assert evidence.replaced(text, "cost", "new") == (
        "before\n<!-- cost -->\n\nnew\n\n<!-- /cost -->\nafter\n"
    )


def test_a_page_without_the_marks_is_refused(evidence):
    with pytest.raises(ValueError, match="no <!-- cost -->"):
        evidence.replaced("a page", "cost", "new")
