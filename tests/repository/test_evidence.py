"""The script that makes the figures of docs/selftest.md."""

from pathlib import Path

import pytest

from scripts import evidence

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", ["detection", "calibration"])
def test_the_page_has_a_place_for_each_part(part):
    text = (ROOT / "docs" / "selftest.md").read_text()
    assert "\nnew figures\n" in evidence.replaced(text, part, "new figures")


def test_only_what_stands_between_the_marks_is_replaced():
    text = "before\n<!-- cost -->\nold\n<!-- /cost -->\nafter\n"
    assert evidence.replaced(text, "cost", "new") == (
        "before\n<!-- cost -->\n\nnew\n\n<!-- /cost -->\nafter\n"
    )


def test_a_page_without_the_marks_is_refused():
    with pytest.raises(ValueError, match="no <!-- cost -->"):
        evidence.replaced("a page", "cost", "new")
