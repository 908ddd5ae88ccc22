"""The cache of judged outcomes: whole or none, bounded, and dropped if damaged."""

from __future__ import annotations

import random
import sqlite3
import string
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import platformdirs
import pytest

from gradwatch.harness.agreement.remembered import cache as storage
from gradwatch.harness.agreement.remembered.cache import (
    Batch,
    Cache,
    Unusable,
    user_cache,
)
from gradwatch.harness.agreement.suite import Settled


def batch(case: str = "a", size: int = 0) -> Batch:
    """A batch with one trial, and with letters that hardly get fewer when packed."""
    letters = "".join(random.Random(0).choices(string.ascii_letters, k=size))
    settled = Settled("add", case, "cpu", [], {"x": {"y": None}}, {"z": letters})
    return Batch([case, "b"], [settled], "2026-11-22T10:00:00+00:00")


def stored(place: Path) -> sqlite3.Connection:
    return sqlite3.connect(place / "outcomes.sqlite")


def test_batches_come_back_under_their_key(tmp_path: Path) -> None:
    Cache(tmp_path / "new").keep({"k": {"one": batch("a")}, "l": {"one": batch("c")}})
    again = Cache(tmp_path / "new")
    assert again.batches(["k"])["k"] == {"one": batch("a")}
    assert again.batches(["l"])["l"] == {"one": batch("c")}
    assert again.batches(["m"])["m"] == {}


def test_a_damaged_batch_is_dropped_and_the_others_are_not(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.keep({"k": {"one": batch("a"), "two": batch("c")}})
    with stored(tmp_path) as connection:
        ((content,),) = connection.execute(
            "select content from verdicts where batch='one'"
        )
        flipped = content[:40] + bytes([content[40] ^ 1]) + content[41:]
        connection.execute(
            "update verdicts set content=? where batch='one'", (flipped,)
        )
    assert cache.batches(["k"])["k"] == {"two": batch("c")}
    rows = stored(tmp_path).execute("select batch from verdicts").fetchall()
    assert rows == [("two",)]


def test_a_file_that_is_no_database_is_dropped(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    (tmp_path / "outcomes.sqlite").write_bytes(b"no database at all" * 99)
    with pytest.raises(Unusable, match="was damaged"):
        cache.batches(["k"])["k"]
    cache.keep({"k": {"one": batch()}})
    assert cache.batches(["k"])["k"] == {"one": batch()}


def test_the_least_recently_used_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path, most=4000)  # two of the three, at least 1400 each
    now = 1e9
    monkeypatch.setattr(storage.time, "time", lambda: now)
    for name in ("old", "new"):
        cache.keep({name: {"one": batch(size=2000)}})
        now += 2 * 86400
    assert cache.batches(["old"])["old"], "it is used again, and so the newest"
    cache.keep({"third": {"one": batch(size=2000)}})
    assert [bool(cache.batches([name])[name]) for name in ("old", "new", "third")] == [
        True,
        False,
        True,
    ]


def test_a_write_is_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path)
    cache.keep({"k": {"one": batch("a")}})

    monkeypatch.setattr(storage, "_MAKE_ROOM", "no such statement")
    with pytest.raises(Unusable, match="syntax error"):
        cache.keep({"k": {"one": batch("c"), "two": batch("c")}})
    assert cache.batches(["k"])["k"] == {"one": batch("a")}


def test_two_runs_at_once_keep_all(tmp_path: Path) -> None:
    def run(number: int) -> None:
        Cache(tmp_path).keep({f"k{number}": {"one": batch(str(number))}})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(run, range(24)))
    kept = [
        Cache(tmp_path).batches([f"k{number}"])[f"k{number}"] for number in range(24)
    ]
    assert kept == [{"one": batch(str(number))} for number in range(24)]


def test_a_folder_that_cannot_be_made_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Unusable, match="file"):
        Cache(tmp_path / "file" / "cache").keep({"k": {"one": batch()}})


def test_a_variable_moves_the_cache_or_turns_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert user_cache() is None, "in tests it is off"
    monkeypatch.setenv("GRADWATCH_CACHE", str(tmp_path / "here"))
    moved = user_cache()
    assert moved is not None
    moved.keep({"k": {"one": batch()}})
    assert (tmp_path / "here" / "outcomes.sqlite").is_file()
    monkeypatch.delenv("GRADWATCH_CACHE")
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / name)
    usual = user_cache()
    assert usual is not None
    usual.keep({"k": {"one": batch()}})
    assert (tmp_path / "gradwatch" / "outcomes.sqlite").is_file()
