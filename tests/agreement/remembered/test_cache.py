"""The cache of verdicts: whole or none, and dropped if damaged."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gradwatch.harness.agreement import remembered
from gradwatch.harness.agreement.remembered import Remembered
from gradwatch.harness.agreement.suite import Agreement, Asked
from gradwatch.harness.project.paths import user_cache
from gradwatch.harness.project.records import AgreeRecord
from tests.dashboard.browser.invented import agree_record


def verdicts(op: str, case: str = "a") -> Agreement:
    """A trial of an op."""
    record = AgreeRecord(**agree_record(op, "torch_custom", case=case))
    return Agreement([record], {op: {"x": {"y": None}}}, trials=[(case, "cpu")])


@pytest.fixture(autouse=True)
def _keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys(ops: list[str], *_: object) -> Any:
        return {op: f"key of {op}" for op in ops}, frozenset()

    monkeypatch.setattr(remembered, "keys", keys)


def keep(place: Path, op: str, *cases: str, fresh: bool = False) -> str:
    """Keep some trials of an op; why that was not possible."""
    memory = Remembered(Asked(ops=[op], backends=["x"]), place, fresh=fresh)
    for case in cases:
        memory.learn(op, verdicts(op, case))
    memory.keep(())
    return memory.why_not


def kept(place: Path, op: str) -> list[str]:
    """The names of the trials of an op that are there."""
    memory = Remembered(Asked(ops=[op], backends=["x"]), place)
    assert not memory.why_not
    return sorted(name for name, _ in memory.trials)


def test_verdicts_come_back_under_their_key(tmp_path: Path) -> None:
    keep(tmp_path / "new", "add", "a", "b")
    keep(tmp_path / "new", "mul", "c")
    memory = Remembered(Asked(ops=["add", "mul"], backends=["x"]), tmp_path / "new")
    assert list(memory.recall("add", ["b", "gone"])) == [verdicts("add", "b")]
    assert list(memory.recall("mul", ["c"])) == [verdicts("mul", "c")]
    assert list(memory.recall("mul", ["c"])) == [], "each once"
    assert memory.trials == [("a", "cpu")]
    assert kept(tmp_path / "new", "dot") == []


def test_what_is_judged_later_is_added(tmp_path: Path) -> None:
    keep(tmp_path, "add", "a")
    keep(tmp_path, "add", "b", fresh=True)
    assert kept(tmp_path, "add") == ["a", "b"]


def turned(content: bytes) -> bytes:
    return content[:40] + bytes([content[40] ^ 1]) + content[41:]


def half(content: bytes) -> bytes:
    return content[: len(content) // 2]


def forged(content: bytes) -> bytes:
    """As whoever knows all but the key would write it."""
    packed = content[remembered.SIGNED :]
    return remembered.signature(b"", Path("add"), packed) + packed


@pytest.mark.parametrize(
    "damage", [turned, half, forged, lambda _: b"no verdicts" * 99, lambda _: b""]
)
def test_damaged_verdicts_are_dropped_and_the_others_are_not(
    tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    keep(tmp_path, "add", "a")
    keep(tmp_path, "mul", "a")
    file = tmp_path / "verdicts" / "add"
    file.write_bytes(damage(file.read_bytes()))
    assert (kept(tmp_path, "add"), kept(tmp_path, "mul")) == ([], ["a"])
    keep(tmp_path, "add", "b")
    assert kept(tmp_path, "add") == ["b"]


def test_verdicts_of_another_key_are_dropped(tmp_path: Path) -> None:
    """A page that was green once is none that is green now."""
    keep(tmp_path, "add", "a")
    file = tmp_path / "verdicts" / "add"
    file.rename(file.with_name("mul"))
    assert kept(tmp_path, "mul") == []


def test_the_key_is_the_users_alone_or_nothing_is_remembered(tmp_path: Path) -> None:
    place = tmp_path / "new"
    keep(place, "add", "a")
    assert [file.stat().st_mode & 0o777 for file in (place, place / "key")] == [
        *(0o700, 0o600)
    ]
    (place / "key").chmod(0o644)
    assert "key is not yours alone: remove it" in keep(place, "add", "b")
    (place / "key").unlink()
    assert kept(place, "add") == []


def test_verdicts_that_depend_on_something_else_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, "add", "a")
    with monkeypatch.context() as patch:
        other = ({"add": "another"}, frozenset[str]())
        patch.setattr(remembered, "keys", lambda *_: other)
        assert kept(tmp_path, "add") == []
        keep(tmp_path, "add", "b")
        assert kept(tmp_path, "add") == ["b"]
    assert kept(tmp_path, "add") == []
    assert len([*(tmp_path / "verdicts").iterdir()]) == 1, "none is left behind"


def test_a_write_is_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(tmp_path, "add", "a")

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fails)
        assert "the disk is full" in keep(tmp_path, "add", "b", "c")
    assert kept(tmp_path, "add") == ["a"]
    assert [file.name for file in (tmp_path / "verdicts").iterdir()] == ["add"]


def test_two_runs_at_once_keep_all(tmp_path: Path) -> None:
    ops = [f"op{number}" for number in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda op: keep(tmp_path, op, op), ops))
    assert [kept(tmp_path, op) for op in ops] == [[op] for op in ops]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert "file" in keep(tmp_path / "file" / "cache", "add", "a")


def test_a_variable_moves_the_cache_or_turns_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert user_cache() is None, "in tests it is off"
    monkeypatch.setenv("GRADWATCH_CACHE", str(tmp_path / "here"))
    assert user_cache() == tmp_path / "here"
    monkeypatch.delenv("GRADWATCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "gradwatch"
