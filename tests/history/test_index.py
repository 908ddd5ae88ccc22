"""The index of the history is only a cache: with it the files say what they say."""

import json
import math
import os
import sqlite3
import threading

import numpy as np
import pytest

from gradwatch.harness.history import asv_results, remembered
from gradwatch.harness.history.changepoints import find_changes
from gradwatch.harness.history.recorded import asv_files, cached, index
from gradwatch.harness.history.remembered import remembering
from gradwatch.harness.project.documents import Unreadable
from scripts.studies import growth
from tests.histories import crept, noisy, stepped

COMMITS = 6


@pytest.fixture(autouse=True)
def settled(monkeypatch):
    """Files that were written just now are old enough to be told apart."""
    monkeypatch.setattr(index, "_TICK", -(1 << 62))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A history in the shape of a recorded commit, and its commits."""
    folder = tmp_path_factory.mktemp("growth")
    growth.make(folder, COMMITS, every=20)
    commits = growth.git(folder, "rev-list", "--reverse", "main").split()
    return folder / "results" / "asv", commits


@pytest.fixture
def folder(made, tmp_path):
    """A copy of it, without an index."""
    for file in made[0].rglob("*.json"):
        copy = tmp_path / file.relative_to(made[0])
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture
def parsed(monkeypatch):
    """The names of the result files that are parsed."""
    names = []

    def recorded(file):
        names.append(file.name)
        return asv_files.recorded(file)

    monkeypatch.setattr(index, "recorded", recorded)
    return names


def files(folder):
    return sorted((folder / growth.MACHINE).glob("*-*.json"))


def plain(folder, commits, troubles=None):
    """All that is read, as values that can be compared."""
    return [
        (one.machine, one.environment, one.name, one.unit, one.versions, one.entries)
        for one in asv_results.read(folder, commits, troubles)
    ]


def by_hand(folder, commits):
    """State and value by series and commit, from the JSON alone."""
    cells = {}
    for file in files(folder):
        content = json.loads(file.read_text())
        at = content["result_columns"].index
        for name, row in content["results"].items():
            points = [()]
            for values in row[at("params")]:
                points = [(*p, v) for p in points for v in values]
            results = row[at("result")] or [None] * len(points)
            for point, value in zip(points, results, strict=True):
                key = content["env_name"], name, point, content["commit_hash"]
                cells[key] = "failed" if value is None else value
    return cells


def test_a_series_has_what_the_files_have(folder, made):
    expected = by_hand(folder, made[1])
    seen = {}
    for one in asv_results.read(folder, made[1]):
        point = tuple(map(repr, one.parameters.values()))
        for entry in one.entries:
            value = {"failed": "failed", "n/a": math.nan}.get(entry.state, entry.value)
            seen[one.environment, one.benchmark, point, entry.commit] = value
    assert seen.keys() == expected.keys()
    assert all(
        v == expected[k] or (v != v and expected[k] != expected[k])
        for k, v in seen.items()
    )
    assert any(v != v for v in seen.values())


def test_files_are_read_once(folder, made, parsed):
    first = plain(folder, made[1])
    assert len(parsed) == len(files(folder))
    parsed.clear()
    assert plain(folder, made[1]) == first
    assert parsed == []


def test_a_new_commit_is_one_more_file(folder, made, parsed):
    last = files(folder)[-1]
    content = last.read_bytes()
    last.unlink()
    asv_results.read(folder, made[1])
    last.write_bytes(content)
    parsed.clear()
    with_it = plain(folder, made[1])
    assert parsed == [last.name]
    (folder / index.FOLDER / "results.sqlite").unlink()
    assert with_it == plain(folder, made[1])


def test_a_changed_file_is_read_again(folder, made, parsed):
    before = plain(folder, made[1])
    file = files(folder)[0]
    text = file.read_text()
    about = file.stat()
    file.write_text(
        text.replace('"requirements": {"numpy"', '"requirements": {"numqy"')
    )
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))  # as `cp -p` would
    assert file.stat().st_size == about.st_size
    parsed.clear()
    assert plain(folder, made[1]) != before
    assert parsed == [file.name]


def test_a_file_that_is_too_new_is_read_again(folder, made, parsed, monkeypatch):
    monkeypatch.setattr(index, "_TICK", 3_600_000_000_000)  # an hour
    first = plain(folder, made[1])
    parsed.clear()
    assert plain(folder, made[1]) == first
    assert len(parsed) == len(files(folder))


def test_a_deleted_file_is_gone(folder, made):
    asv_results.read(folder, made[1])
    gone = files(folder)[0]
    commit = json.loads(gone.read_text())["commit_hash"]
    environment = json.loads(gone.read_text())["env_name"]
    gone.unlink()
    for one in asv_results.read(folder, made[1]):
        assert one.environment != environment or one.at(commit) is None


def test_a_damaged_file_is_told_of_each_time_and_costs_itself(folder, made):
    asv_results.read(folder, made[1])
    file = files(folder)[0]
    file.write_bytes(file.read_bytes()[:1000])
    for _ in range(2):
        troubles = []
        assert asv_results.read(folder, made[1], troubles)
        assert [file.name in str(trouble) for trouble in troubles] == [True]
    with pytest.raises(Unreadable, match=file.name):
        asv_results.read(folder, made[1])


def test_the_order_of_the_commits_is_asked_of_every_call(folder, made):
    there, back = made[1], made[1][::-1]
    plain(folder, there)
    (one, *_) = asv_results.read(folder, back)
    ranks = [back.index(entry.commit) for entry in one.entries]
    assert ranks == sorted(ranks)


def _flip(file):
    content = bytearray(file.read_bytes())
    for place in range(5000, len(content), 1000):
        content[place] ^= 1
    file.write_bytes(content)


def _other_version(file):
    with sqlite3.connect(file) as database:
        database.execute("pragma user_version = 7")
    database.close()


def _no_table(file):
    with sqlite3.connect(file) as database:
        database.execute("drop table files")
    database.close()


def _other_figures(file):
    with sqlite3.connect(file) as database:
        database.execute("update files set figures = zeroblob(length(figures))")
    database.close()


@pytest.mark.parametrize(
    "damage",
    [
        _flip,
        _other_version,
        _no_table,
        _other_figures,
        lambda file: file.write_bytes(b""),
        lambda file: file.write_bytes(b"no database"),
        lambda file: file.write_bytes(file.read_bytes()[:9000]),
    ],
    ids=["flipped", "version", "table", "figures", "empty", "foreign", "cut"],
)
def test_a_damaged_index_is_made_anew(folder, made, parsed, damage):
    first = plain(folder, made[1])
    damage(folder / index.FOLDER / "results.sqlite")
    assert plain(folder, made[1]) == first
    parsed.clear()
    assert plain(folder, made[1]) == first
    assert parsed == []


@pytest.mark.parametrize("place", [".index", ".index/results.sqlite"])
def test_without_a_place_for_the_index_the_history_is_read_all_the_same(
    folder, made, place
):
    first = plain(folder, made[1])
    blocked = folder / place
    for file in (folder / ".index").iterdir():
        file.unlink()
    (folder / ".index").rmdir()
    if place == ".index":
        blocked.write_text("not a folder")
    else:
        blocked.mkdir(parents=True)
    assert plain(folder, made[1]) == first


def test_while_another_process_adds_files_the_history_is_read(
    folder, made, monkeypatch
):
    monkeypatch.setattr(cached, "_PATIENCE", 0.05)
    first = plain(folder, made[1])
    new = files(folder)[0]
    new.write_bytes(new.read_bytes())
    other = sqlite3.connect(folder / index.FOLDER / "results.sqlite")
    other.execute("begin immediate")
    assert plain(folder, made[1]) == first
    other.close()


def test_several_readers_at_once_read_the_same(folder, made):
    read = []
    threads = [
        threading.Thread(target=lambda: read.append(plain(folder, made[1])))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read) == 4
    assert all(one == read[0] for one in read)


def test_git_leaves_the_index_out(folder, made):
    asv_results.read(folder, made[1])
    growth.git(folder, "init", "-q")
    status = growth.git(folder, "status", "--porcelain", "--untracked-files=all")
    assert "machine.json" in status
    assert index.FOLDER not in status


# --- text that looks like a number that JSON has not -------------------------------


@pytest.mark.parametrize("word", ["NaN", "-Infinity", "Infinity"])
def test_such_a_word_in_a_text_stays_one(folder, made, word):
    for file in files(folder):
        text = file.read_text().replace("'float32'", f"'{word}'")
        file.write_text(text)
    given = {one.parameters.get("dtype") for one in asv_results.read(folder, made[1])}
    assert word in given
    assert "float32" not in given


# --- the memory of changes ---------------------------------------------------------


SERIES = [
    stepped(noisy(60, seed=1), 30, 0.2),
    crept(noisy(200, seed=2), 0.3),
    noisy(40, seed=3),
    np.array([1.0, 2.0]),
]


def test_remembered_changes_are_those_that_are_found(tmp_path):
    expected = [find_changes(values) for values in SERIES]
    assert any(expected)
    for _ in range(2):
        with remembering(tmp_path) as find:
            assert [find(values) for values in SERIES] == expected


def test_a_series_is_searched_once_and_again_with_a_new_run(tmp_path, monkeypatch):
    searched = []
    monkeypatch.setattr(
        remembered, "find_changes", lambda v: searched.append(len(v)) or find_changes(v)
    )
    longer = np.append(SERIES[0], SERIES[0][-1])
    for values in (SERIES[0], SERIES[0], longer):
        with remembering(tmp_path) as find:
            find(values)
    assert searched == [60, 61]


def test_another_algorithm_remembers_nothing(tmp_path, monkeypatch):
    with remembering(tmp_path) as find:
        find(SERIES[0])
    monkeypatch.setattr(remembered, "algorithm", lambda: b"another")
    monkeypatch.setattr(remembered, "find_changes", lambda _: ())
    with remembering(tmp_path) as find:
        assert find(SERIES[0]) == ()


def test_a_damaged_memory_is_made_anew(tmp_path):
    with remembering(tmp_path) as find:
        expected = find(SERIES[0])
    with sqlite3.connect(tmp_path / index.FOLDER / "changes.sqlite") as database:
        database.execute("update changes set content = x'90'")  # no change at all
    database.close()
    with remembering(tmp_path) as find:
        assert find(SERIES[0]) == expected


def test_what_nobody_asks_for_is_forgotten(tmp_path, monkeypatch):
    with remembering(tmp_path) as find:
        find(SERIES[0])
    later = remembered.time.time() + 31 * 86_400
    monkeypatch.setattr(remembered.time, "time", lambda: later)
    with remembering(tmp_path) as find:
        find(SERIES[1])
    with sqlite3.connect(tmp_path / index.FOLDER / "changes.sqlite") as database:
        assert database.execute("select count(*) from changes").fetchone() == (1,)
    database.close()
