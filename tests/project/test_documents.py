"""The document: strict JSON, replaced atomically, and never silently misread."""

import json
import os

import pytest

from harness.project import documents
from harness.project.documents import Unreadable
from harness.project.records import AGREE
from tests.histories import git, repository


def test_what_is_not_finite_becomes_null(tmp_path):
    target = tmp_path / "run.json"
    values = {"ratio": float("inf"), "got": float("nan"), "index": (1, 2), "ok": 0.5}
    documents.write(documents.document([values], {}), target)
    assert "NaN" not in target.read_text()
    (record,) = json.loads(target.read_text())["records"]
    assert record == {"ratio": None, "got": None, "index": [1, 2], "ok": 0.5}


def test_the_surroundings_name_neither_path_nor_host():
    told = documents.dumps(documents.surroundings())
    assert os.sep + "home" not in told
    assert os.uname().nodename not in told
    assert {"machine", "python", "commit", "dirty", "date", "cores"} <= set(
        json.loads(told)
    )


@pytest.mark.parametrize(
    ("changed", "dirty"),
    [("impls/ops/square.py", True), ("results/asv/square.json", False)],
)
def test_results_that_are_not_committed_make_no_dirty_tree(
    tmp_path, monkeypatch, changed, dirty
):
    repository(tmp_path, ["square"])
    (tmp_path / "results" / "asv").mkdir(parents=True)
    (tmp_path / "results" / "asv" / "square.json").write_text("{}")
    git(tmp_path, "add", "results")
    git(tmp_path, "commit", "-q", "-m", "results")
    monkeypatch.setattr(documents, "ROOT", tmp_path)
    assert not documents.surroundings().dirty
    (tmp_path / changed).write_text("changed")
    assert documents.surroundings().dirty == dirty


def test_the_machine_has_the_name_that_it_is_given(monkeypatch):
    monkeypatch.setenv("GRADWATCH_MACHINE", "h200")
    assert documents.surroundings().machine == "h200"


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "no such file"),
        ('{"schema": 1, "records": [', "not readable as JSON"),
        ("[1, 2]", "Expected `object`, got `array`"),
        ("{}", "no gradwatch document"),
        ('{"schema": 2}', "schema 2, this version reads 1"),
        ("\udcff", "not readable"),
    ],
    ids=["missing", "truncated", "foreign", "empty", "newer", "binary"],
)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path, content, told):
    source = tmp_path / "run.json"
    if content is not None:
        source.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(Unreadable, match=told) as caught:
        documents.read(source, AGREE)
    assert "run.json" in str(caught.value)


def test_a_full_disk_leaves_the_old_file_and_no_half_of_the_new(tmp_path, monkeypatch):
    target = tmp_path / "run.json"
    target.write_text("old")

    def full(handle):
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        documents.replace_file(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.json"]


def test_an_interrupt_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "run.json"
    target.write_text("old")

    def interrupted(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        documents.replace_file(target, "new")
    assert (target.read_text(), os.listdir(tmp_path)) == ("old", ["run.json"])
