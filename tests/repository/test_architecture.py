"""docs/architecture.md shows the rooms that exist, and every name in it is real."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from scripts import architecture

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
FACES = sorted(ROOT.glob("harness/*/__init__.py"))

LINK = re.compile(r"\]\(([^)#:]+)\)((?:,? `[a-zA-Z_]+`(?: and)?)*)")


def dangling(page, root):
    """Links of a page that lead nowhere, and names that their file does not define."""
    for target, names in LINK.findall(page):
        place = root / "docs" / target
        if not place.exists():
            yield target
        elif place.suffix == ".py":
            text = place.read_text(encoding="utf-8")
            for name in re.findall(r"\w{3,}", names.replace(" and", "")):
                if not re.search(rf"^\s*(def|class) {name}\b", text, re.M):
                    yield f"{target}: {name}"


def test_the_drawing_and_the_table_are_those_of_the_import_contract():
    assert architecture.with_rooms(PAGE, ROOT) == PAGE, (
        "run `python scripts/architecture.py`"
    )


def test_a_room_that_is_missing_from_the_contract_s_drawing_is_seen():
    planted = PAGE.replace("judging --> project", "project --> judging")
    assert planted != PAGE
    assert architecture.with_rooms(planted, ROOT) == PAGE


def test_every_link_and_every_name_beside_it_exists():
    assert list(dangling(PAGE, ROOT)) == []


@pytest.mark.parametrize(
    "text",
    [
        "[a](../harness/nowhere.py)",
        "[v](../harness/judging/verdict.py), `no_such_name`",
    ],
)
def test_a_planted_dangling_link_is_seen(text):
    assert len(list(dangling(text, ROOT))) == 1


def test_each_package_of_the_harness_stands_in_the_contract():
    drawn = {
        name for row in architecture.layers(ROOT / "pyproject.toml") for name in row
    }
    assert {f"gradwatch.harness.{face.parent.name}" for face in FACES} <= drawn


@pytest.mark.parametrize("face", FACES, ids=lambda face: face.parent.name)
def test_each_module_that_a_room_lists_exists(face):
    text = ast.get_docstring(ast.parse(face.read_text(encoding="utf-8"))) or ""
    listed = re.findall(r"^- (\w+): ", text, re.M)
    assert set(listed) <= {file.stem for file in face.parent.iterdir()}


def test_no_room_has_more_than_fourteen_modules():
    modules = (file.parent for file in ROOT.glob("harness/**/[!_]*.py"))
    crowded = {room for room, count in Counter(modules).items() if count > 14}
    assert crowded == set()


def test_the_readme_leads_to_the_line_that_decides():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(docs/architecture.md#where-is-the-tolerance-decided)" in readme
    section = PAGE.split("## Where is the tolerance decided?\n")[1].split("\n## ")[0]
    assert "limit_for" in section
    assert "judge_numbers" in section
