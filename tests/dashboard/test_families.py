"""Backends by framework: the columns of the matrix."""

from __future__ import annotations

import pytest

from gradwatch.harness.agreement.output import overall
from gradwatch.harness.dashboard.matrix import (
    Cell,
    MachineResults,
    families,
    flavour_of,
    styles,
)
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.impls.catalogue import backend_names
from tests.dashboard.browser.invented import agree_record

GPU = "torch_custom on cuda"
RUNNERS = ["torch_jit on cuda", "torch_custom", "jax_jit", "torch_autograd"]


def test_backends_are_grouped_by_framework_and_device() -> None:
    assert {f.name: f.runners for f in families(RUNNERS)} == {
        "jax": ("jax_jit",),
        "torch": ("torch_autograd", "torch_custom"),
        "torch on cuda": ("torch_jit on cuda",),
    }


@pytest.mark.parametrize(
    ("runner", "dialect"),
    [
        ("torch_custom", "custom"),
        ("numpy_by_hand on cuda", "by_hand"),
        ("torch_jit on cuda (torch 2.1)", "jit (torch 2.1)"),
        ("mine", "mine"),
    ],
)
def test_a_dialect_is_the_rest_of_the_name(runner: str, dialect: str) -> None:
    assert flavour_of(runner) == dialect


def cell(verdict: str, **fields: object) -> Cell:
    return Cell("add", "x", verdict, **fields)  # type: ignore[arg-type]  # of fields


WRONG_ORDER = {
    "hvp": overall([AgreeRecord(**agree_record("add", "x", verdict="disagree"))])
}

#: Each is worse than the one before it.
WORSENING = [
    cell("none"),
    cell("unsupported"),
    cell("agree", ratio=3.0),
    cell("agree", ratio=9.0),
    cell("vacuous"),
    cell("imprecise", ratio=63.0),
    cell("disagree", defect="known"),
    cell("crash", defect="known"),
    cell("agree", orders=WRONG_ORDER),
    cell("disagree", unexpected=1, ratio=20.0),
    cell("disagree", unexpected=1, ratio=99.0),
    cell("crash", unexpected=1),
]


@pytest.mark.parametrize("place", range(1, len(WORSENING)))
def test_a_folded_column_shows_the_worst_verdict(place: int) -> None:
    (family,) = families(["x_a", "x_b"])
    better, worse = WORSENING[place - 1 : place + 1]
    assert family.worst({"x_a": better, "x_b": worse}) is worse
    assert family.worst({"x_a": worse, "x_b": better}) is worse


def test_colour_is_of_the_framework_and_shape_of_the_dialect() -> None:
    looks = styles(["jax_jit", "jax_custom", "torch_jit", "torch_custom"])
    assert len({look.colour for look in looks.values()}) == 2
    assert looks["jax_jit"].colour == looks["jax_custom"].colour
    shapes = {name: (look.marker, look.dash) for name, look in looks.items()}
    assert shapes["jax_jit"] == shapes["torch_jit"]
    assert not {*shapes["jax_jit"]} & {*shapes["jax_custom"]}


@pytest.mark.parametrize(
    ("places", "listed"),
    [
        ([], {*backend_names()}),
        ([GPU], {GPU}),
        ([GPU, "torch_custom"], {GPU, *backend_names()}),
        (["mine"], {"mine", *backend_names()}),
    ],
    ids=["nothing", "a GPU alone", "both", "a backend that is gone"],
)
def test_where_all_results_are_of_a_gpu_no_column_of_the_cpu_is_empty(
    places: list[str], listed: set[str]
) -> None:
    judged: dict[tuple[str, str], list[AgreeRecord]]
    judged = {("exp2", runner): [] for runner in places}
    assert set(MachineResults("h100", [], [], judged=judged).runners) == listed
