"""The document: strict JSON, replaced atomically, and never silently misread."""

import contextlib
import gzip
import json
import os
import tracemalloc
from random import Random

import msgspec
import numpy as np
import pytest
from msgspec.structs import fields

from gradwatch.harness.project import documents, records
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import (
    AGREE,
    TIME,
    AgreeRecord,
    AgreeSummary,
    TimeSummary,
)
from scripts import schema
from tests import damage
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
        (None, "No such file"),
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


def test_a_pipe_or_a_device_is_written_to_and_stays_one(tmp_path):
    target = tmp_path / "pipe"
    os.mkfifo(target)
    reader = os.open(target, os.O_RDONLY | os.O_NONBLOCK)
    documents.write({"a": 1}, target)
    assert target.is_fifo()
    assert json.loads(os.read(reader, 100)) == {"a": 1}
    os.close(reader)


def test_an_interrupt_while_writing_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "run.json"
    target.write_text("old")

    def interrupted(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        documents.replace_file(target, "new")
    assert (target.read_text(), os.listdir(tmp_path)) == ("old", ["run.json"])


@pytest.mark.parametrize("name", damage.FILES)
def test_each_kind_of_damage_is_one_line_with_the_name_of_the_file(tmp_path, name):
    make, why = damage.FILES[name]
    file = tmp_path / "run.json"
    make(file)
    with pytest.raises(Unreadable) as refused:
        documents.read(file, AGREE)
    line = str(refused.value)
    assert line.startswith(f"{file}: ")
    assert why in line
    assert "\n" not in line


@pytest.mark.parametrize("kind", records.KINDS, ids=lambda kind: kind.name)
def test_no_single_field_of_a_document_ends_in_a_traceback(tmp_path, kind):
    about = {"machine": "m", "date": "2026-11-21T12:00:00+00:00", "cores": 2}
    sound = {"schema": 1, "environment": about, "records": damage.rows(kind)}
    sound["summary"] = msgspec.to_builtins(kind.summary())
    file = tmp_path / "run.json"
    file.write_text(json.dumps(sound))
    documents.read(file, kind)
    for seed in range(200):
        file.write_text(damage.mutant(sound, Random(seed)))
        with contextlib.suppress(Unreadable):
            documents.read(file, kind)


@pytest.mark.parametrize("damaged", ["records", "summary", "environment"])
def test_a_document_with_one_odd_field_is_refused_with_the_place(tmp_path, damaged):
    row = {"op": "dot", "case": "64", "backend": "numpy_manual", "device": "cpu"}
    row |= {"dtype": "float32", "phase": "forward", "seconds": 1.0, "low": 1.0}
    parts = {"environment": {}, "summary": {"timed": 3}}
    parts["records"] = [{**row, "high": high} for high in (1.0, "high", 2.0)]
    file = tmp_path / "time.json"
    places = {"records": "$.records[1].high", "summary": "$.summary.untimed"}
    if damaged != "records":
        parts["records"] = []
        parts[damaged] = {"untimed": "text", "date": "yesterday"}
    file.write_text(json.dumps({"schema": 1, **parts}))
    with pytest.raises(Unreadable) as refused:
        documents.read(file, TIME)
    assert str(refused.value).startswith(f"{file}: Expected ")
    assert places.get(damaged, "$.environment.date") in str(refused.value)


def test_reading_ends_at_the_first_odd_record(tmp_path):
    """However many follow, nothing of them is built: memory is that of the bytes."""
    file = tmp_path / "run.json"
    content = {"schema": 1, "environment": {}, "summary": {}}
    content["records"] = [*damage.rows(AGREE), *[{}] * 100_000]
    file.write_text(json.dumps(content))
    tracemalloc.start()
    with pytest.raises(Unreadable, match=r"records\[2\]"):
        documents.read(file, AGREE)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 2 * file.stat().st_size


def test_half_a_surrogate_pair_is_written_as_what_can_be_read(tmp_path):
    file = tmp_path / "run.json"
    summary = TimeSummary(untimed={"dot": "half \ud800 a pair"})
    documents.write(documents.document([], summary), file)
    assert documents.read(file, TIME).summary.untimed == {"dot": "half ? a pair"}


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_what_is_read_is_what_was_written(tmp_path, name):
    file = tmp_path / name
    place = {"op": "dot", "case": "64", "regime": "normal", "backend": "numpy_manual"}
    place |= {"framework": "numpy", "framework_version": "2", "device": "cpu"}
    row = AgreeRecord(
        **place, dtype="float64", tensor="da", verdict="agree", ratio=np.float64(1.5)
    )
    written = documents.document([row], AgreeSummary(judged=1))
    documents.write(written, file)
    read = documents.read(file, AGREE)
    assert (read.records, read.summary) == (written.records, written.summary)
    assert read.environment == written.environment


PLACE = {"op": "dot", "case": "64", "regime": "normal", "backend": "numpy_manual"}
PLACE |= {"framework": "numpy", "framework_version": "2", "device": "cpu"}
PLACE |= {"dtype": "float64", "tensor": "da", "verdict": "agree"}


def test_a_compressed_document_is_much_smaller_and_the_same_bytes_again(tmp_path):
    written = documents.document([AgreeRecord(**PLACE)] * 1000, AgreeSummary(judged=1))
    plain, packed = tmp_path / "run.json", tmp_path / "run.json.gz"
    for file in (plain, packed):
        documents.write(written, file)
    assert packed.stat().st_size < plain.stat().st_size / 20
    before = packed.read_bytes()
    documents.write(written, packed)
    assert packed.read_bytes() == before


ODD = [
    {"got": -0.0, "expected": 0.0, "worst_index": [0, 1]},
    {"got": 0.0, "expected": None, "worst_index": []},
    {"got": 0.1 + 0.2, "message": "", "flags": ["a", "b"]},
    {"got": None, "message": "[]", "flags": ["[]"]},
]


def test_a_document_keeps_the_sign_of_a_zero_and_every_digit(tmp_path):
    listed = [AgreeRecord(**PLACE, **fields) for fields in ODD]
    file = tmp_path / "agree.json.gz"
    documents.write(documents.document(listed, AgreeSummary()), file)
    read = documents.read(file, AGREE)
    assert read.records == listed
    assert [repr(record.got) for record in read.records] == [
        repr(fields["got"]) for fields in ODD
    ]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (gzip.compress(b"{}" * 1000)[:-20], "not readable as gzip"),
        (b"\x1f\x8b no such thing", "not readable as gzip"),
        (gzip.compress(b"{"), "not readable as JSON"),
        (gzip.compress(b" " * 2000), "when expanded"),
    ],
    ids=["cut", "foreign", "json", "long"],
)
def test_a_damaged_compressed_document_is_one_line(tmp_path, monkeypatch, content, why):
    monkeypatch.setattr(documents, "LONGEST", 1999 if why == "when expanded" else 9999)
    file = tmp_path / "run.json.gz"
    file.write_bytes(content)
    with pytest.raises(Unreadable, match=why) as told:
        documents.read(file, AGREE)
    assert str(told.value).startswith(f"{file}: ")


def test_the_schema_is_current_and_knows_each_kind():
    written = (ROOT / "docs" / "schema.json").read_text(encoding="utf-8")
    assert written == schema.schema(), "python scripts/schema.py writes it anew"
    assert {kind.name for kind in records.KINDS} <= {*json.loads(written)["$defs"]}


def test_a_record_is_one_line_with_all_its_fields(tmp_path):
    asked = [one.name for one in fields(AgreeRecord) if one.required]
    about = {name: "x" for name in asked if name != "verdict"}
    judged = AgreeRecord(**about, verdict="agree", ratio=0.5, vacuous=0.0)
    missed = AgreeRecord(**about, verdict="disagree", vacuous=1.0, message="a\nb")
    content = documents.document([judged, missed], AgreeSummary())
    target = tmp_path / "agree.json"
    documents.write(content, target)
    lines = target.read_text().splitlines()
    rows = [json.loads(line.rstrip(",")) for line in lines if '"verdict"' in line]
    assert [set(row) for row in rows] == [{*AgreeRecord.__struct_fields__}] * 2
    assert [row["message"] for row in rows] == ["", "a\nb"]
    assert documents.read(target, AGREE).records == content.records
