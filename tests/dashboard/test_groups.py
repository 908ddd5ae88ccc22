"""Each op has a group, which its page states; the index and the overview show it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradwatch.harness.dashboard.pages import OTHER, OpSource, by_group, op_source
from gradwatch.harness.project.paths import ROOT
from gradwatch.impls.catalogue import load_op, op_names
from scripts import ops
from tests.pages import plant

INDEX = (ROOT / "docs" / "ops.md").read_text(encoding="utf-8")


def test_every_op_has_a_group_with_another_op_in_it() -> None:
    groups = by_group(op_names())
    assert OTHER not in groups
    assert min(map(len, groups.values())) >= 2
    assert sorted(op for members in groups.values() for op in members) == sorted(
        op_names()
    )


def test_the_group_that_is_read_is_the_one_that_a_page_states() -> None:
    assert {op: op_source(op).group for op in op_names()} == {
        op: load_op(op).group for op in op_names()
    }


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("", "", OpSource("The cube of each element: y = x**3, dx = 3 x**2 dy.")),
        ('"cube", ', '"cube", group="power", ', OpSource("", "power")),
        ("import numpy", "import a b", OpSource()),
    ],
)
def test_a_page_without_a_group_or_a_broken_one_is_among_the_others(
    tmp_path: Path, old: str, new: str, expected: OpSource
) -> None:
    found = op_source(plant(tmp_path, old, new))
    assert found.group == expected.group
    assert not expected.title or found.title == expected.title


def test_the_others_come_last() -> None:
    assert list(by_group(["zzz", "softmax", "add"])) == [
        "activation",
        "arithmetic",
        OTHER,
    ]


def test_the_index_is_made_from_the_pages() -> None:
    assert ops.page() == INDEX, "python scripts/ops.py writes it again"
    assert f"{len(op_names())} ops" in INDEX
