"""What a verdict depends on: no change of it goes unseen."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from gradwatch.harness.agreement import remembered
from gradwatch.harness.agreement.remembered import NotRemembered, files, keys
from gradwatch.harness.judging.defects import known
from gradwatch.harness.project.paths import PROJECT, SOURCE
from gradwatch.harness.workers.pythons.interpreters import Facts, installed
from gradwatch.impls.catalogue import framework_of, op_names

BACKENDS = ["numpy_manual", "torch_custom"]
PYTHON = Facts("3.11", "2", [])
GONE = Facts("", "", [], why_missing="gone")
read = cache(Path.read_bytes)
OF_ADD = "impls/ops/add.py"


def have(frameworks: Sequence[str]) -> dict[str, Facts]:
    """Everything is installed."""
    return dict.fromkeys(frameworks, PYTHON)


def key(op: str = "add", **options: Any) -> str:
    """The key of an op's outcomes."""
    asked: dict[str, Any] = {
        "backends": BACKENDS,
        "seed": 0,
        "read": read,
        "have": have,
    }
    by_op, _ = keys([op], **{**asked, **options})
    return by_op[op]


def changed(name: str) -> Callable[[Path], bytes]:
    """Reads files, one of which has another line."""
    return lambda file: read(file) + (b"\n# new" if file == SOURCE / name else b"")


def ours() -> list[str]:
    """The files on which the outcomes of `add` depend."""
    pages = {f"impls/ops/{op}.py" for op in op_names()} - {OF_ADD}
    return [name for name in files(read=read) if name not in pages]


@pytest.fixture(scope="module")
def unchanged() -> str:
    """The key of `add` as it is; a hundred tests hold another against it."""
    return key()


#: One of each folder and kind: the same line reads all of a folder.
SOME = {(Path(name).parent, Path(name).suffix): name for name in ours()}


@pytest.mark.parametrize("name", [*SOME.values(), OF_ADD])
def test_a_change_of_any_file_that_is_run_is_seen(name: str, unchanged: str) -> None:
    assert key(read=changed(name)) != unchanged


@pytest.mark.parametrize("framework", ["numpy", "torch"])
@pytest.mark.parametrize("other", [Facts("3.12", "2", []), GONE])
def test_what_is_installed_is_an_ingredient(framework: str, other: Facts) -> None:
    def changed(names: Sequence[str]) -> dict[str, Facts]:
        return have(names) | {framework: other}

    assert key(have=changed) != key()


@pytest.mark.parametrize(
    "options",
    [{"seed": 1}, {"backends": BACKENDS[:1]}, {"backends": [*BACKENDS, "numpy_graph"]}],
)
def test_seed_and_backends_are_ingredients(options: dict[str, Any]) -> None:
    assert key(**options) != key()


def test_the_order_of_backends_is_none() -> None:
    assert key(backends=BACKENDS[::-1]) == key()


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("OMP_NUM_THREADS", True),
        ("TORCH_LOGS", True),
        ("SHLVL", False),
        ("GRADWATCH_CACHE", False),
    ],
)
def test_variables_that_libraries_read_are_ingredients(
    monkeypatch: pytest.MonkeyPatch, name: str, seen: bool
) -> None:
    before = key()
    monkeypatch.setenv(name, "7")
    assert (key() != before) == seen


@pytest.mark.parametrize("line", ["model name\t: another", "flags\t\t: sse avx512f"])
def test_the_kind_of_cpu_is_an_ingredient(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    other = tmp_path / "cpuinfo"
    other.write_text(f"{line}\nMHz : 2445\n")
    told = remembered.machine(other)
    assert line in told
    assert not any("MHz" in part for part in told), "it varies from second to second"
    before = key()
    monkeypatch.setattr(remembered, "machine", lambda: told)
    assert key() != before


def test_a_change_of_a_page_is_seen_for_that_page_alone() -> None:
    other = changed("impls/ops/mul.py")
    assert key("mul", read=other) != key("mul")
    assert key("add", read=other) == key("add")


def test_known_outcomes_are_an_ingredient_and_what_python_compiled_is_none() -> None:
    assert known.FILE.resolve().relative_to(SOURCE).as_posix() in ours()
    assert not [name for name in ours() if name.endswith(".pyc")]


def test_absent_backends_are_named() -> None:
    _, absent = keys(
        ["add"],
        BACKENDS,
        0,
        have=lambda names: have(names) | {"torch": GONE},
    )
    assert absent == {"torch_custom"}


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"op": "elsewhere/mine.py"}, "mine.py: only the catalogue's pages"),
        (
            {"have": lambda _: {"torch": Facts("", "", [], unlisted=["torch"])}},
            "torch: without",
        ),
        ({"have": lambda _: json.loads("{")}, "not to be found out"),
        ({"read": lambda file: Path("/gone").read_bytes()}, "not to be found out"),
    ],
)
def test_where_something_can_change_unseen_nothing_is_remembered(
    options: dict[str, Any], why: str
) -> None:
    with pytest.raises(NotRemembered, match=why):
        key(**options)


def test_a_project_of_ones_own_is_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remembered, "PROJECT", replace(PROJECT, table=True))
    with pytest.raises(NotRemembered, match="only the ops of a checkout"):
        key()


def test_an_environment_lists_its_packages_with_the_hashes_of_their_files() -> None:
    (numpy,) = installed(["numpy"]).values()
    assert not numpy.why_missing
    assert not numpy.unlisted
    names = {name.lower() for name, _, _ in numpy.installed}
    assert {"numpy", "torch"} <= names, "one environment, so each update is seen"
    assert all(len(listed) == 64 for _, _, listed in numpy.installed)
    assert framework_of("numpy_graph") == "numpy"
