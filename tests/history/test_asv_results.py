"""The recorded history: read strictly, never mixed."""

import datetime
import itertools
import json
import math

import pytest
from asv.results import Results
from asv.runner import BenchmarkResult

from gradwatch.harness.history import asv_results
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.machines import RECORDED

NAME = "bench_sizes.add.time_backward"
BENCHMARK = {
    "name": NAME,
    "params": [["'1024'"], ["'float32'"], ["'cpu'", "'cuda'"], ["'numpy_manual'"]],
    "param_names": ["size", "dtype", "device", "backend"],
    "unit": "seconds",
    "type": "time",
    "version": "1",
}
TRAITS = {
    "machine": "cpu-2core",
    "arch": "x86_64",
    "cpu": "One CPU",
    "num_cpu": "2",
    "os": "Linux",
    "ram": "1",
}


@pytest.fixture
def folder(tmp_path):
    """A results folder of asv with its list of benchmarks."""
    (tmp_path / "benchmarks.json").write_text(
        json.dumps({NAME: BENCHMARK, "version": 2})
    )
    return tmp_path


def record(folder, commit, values, samples=(None, None), **traits):
    """Write a result as asv does; return its file."""
    machine = {**TRAITS, **traits}
    result = Results(
        {**machine, "python": "3.11", "numpy": "2.4.6"},
        {"numpy": "2.4.6"},
        commit,
        1_700_000_000_000,
        "3.11",
        "prebuilt-py3.11-numpy2.4.6",
        {},
    )
    numbers = [None if s is None else 1 for s in samples]
    outcome = BenchmarkResult(list(values), list(samples), numbers, 0, "", None)
    result.add_result(BENCHMARK, outcome)
    result.save(str(folder))
    about = folder / machine["machine"] / "machine.json"
    about.write_text(json.dumps({**machine, "version": 1}))
    (file,) = about.parent.glob(f"{commit[:8]}-*.json")
    return file


def read(folder, order=()):
    """What is read where no file is unreadable."""
    troubles = []
    found = asv_results.read(folder, order, troubles)
    if troubles:
        raise troubles[0]
    return found


A, B, C = ("a" * 40, "b" * 40, "c" * 40)


# --- reading ---------------------------------------------------------------------


def test_no_results_are_no_series(tmp_path):
    assert read(tmp_path / "nowhere") == ()


def test_a_series_knows_what_it_is_of(folder):
    record(folder, A, [2.0, 1.0])
    cpu, cuda = read(folder, [A])
    assert (cpu.machine, cpu.environment) == ("cpu-2core", "prebuilt-py3.11-numpy2.4.6")
    assert cpu.benchmark == "bench_sizes.add.time_backward"
    assert (cpu.op, cpu.metric) == ("add", "time_backward")
    assert cpu.parameters == {
        "size": "1024",
        "dtype": "float32",
        "device": "cpu",
        "backend": "numpy_manual",
    }
    assert (cpu.unit, cpu.versions) == ("seconds", {"numpy": "2.4.6"})
    assert cuda.parameters["device"] == "cuda"


@pytest.mark.parametrize(
    ("value", "entries"),
    [(2.5, [2.5]), (math.nan, []), (None, [None]), (math.inf, [None])],
    ids=["measured", "n/a", "failed", "infinite"],
)
def test_not_available_and_failed_are_told_apart(folder, value, entries):
    record(folder, A, [1.0, 1.0])
    record(folder, B, [value, 1.0])
    assert [entry.value for entry in read(folder, [A, B])[0].entries] == [1.0, *entries]


def test_an_entry_has_its_median_and_interval(folder):
    samples = [float(n) for n in range(1, 102)]
    record(folder, A, [True, 1.0], [samples, None])
    (entry,) = read(folder, [A])[0].entries
    assert entry.value == 51.0
    assert 1 < entry.low < 51 < entry.high < 101
    assert entry.date == datetime.datetime(
        2023, 11, 14, 22, 13, 20, tzinfo=datetime.timezone.utc
    )


def test_entries_stand_in_the_order_of_the_commits(folder):
    for commit, value in ((A, 1.0), (B, 2.0), (C, 3.0)):
        record(folder, commit, [value, 1.0])
    (series, _) = read(folder, [C, A, B])
    assert [entry.value for entry in series.entries] == [3.0, 1.0, 2.0]


def test_a_commit_at_which_it_was_not_available_has_no_entry(folder):
    record(folder, A, [math.nan, 1.0])
    record(folder, B, [5.0, 1.0])
    series = next(s for s in read(folder, [A, B]) if s.parameters["device"] == "cpu")
    assert [(entry.commit, entry.value) for entry in series.entries] == [(B, 5.0)]


def test_two_machines_are_two_series(folder):
    record(folder, A, [1.0, 1.0])
    record(folder, A, [9.0, 1.0], machine="h200")
    found = {s.machine: s.entries[0].value for s in read(folder, [A])[::2]}
    assert found == {"cpu-2core": 1.0, "h200": 9.0}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda text: text[: len(text) // 2], "not readable as JSON"),
        (lambda text: "", "not readable as JSON"),
        (lambda text: "[]", "not a file of asv"),
        (lambda text: text.replace('"version": 2', '"version": 3'), "not of version"),
        (
            lambda text: text.replace('"env_name"', '"name"'),
            "missing required field `env_name`",
        ),
        (lambda text: text.replace("1700000000000", "1" * 20), r"\$\.date"),
        (lambda text: text.replace(A, B), "is of commit bbbbbbbb"),
        (lambda text: text.replace('"cpu-2core"', '"h200"'), "of machine 'h200'"),
        (lambda text: text.replace("[1.5, 2.5]", "[1.5]"), "has not 2 figures"),
        (
            lambda text: text.replace("[1.5, 2.5]", '[1.5, "2"]'),
            r"result\[1\]",
        ),
    ],
    ids=[
        *("cut", "empty", "list", "newer", "lacking", "date"),
        *("commit", "machine", "short", "text"),
    ],
)
def test_a_damaged_file_is_told_of_by_name(folder, damage, message):
    file = record(folder, A, [1.5, 2.5])
    text = file.read_text()
    file.write_text(damage(text))
    assert file.read_text() != text
    with pytest.raises(Unreadable, match=message) as told:
        read(folder, [A])
    assert file.name in str(told.value)


@pytest.mark.parametrize("lists", [(1100, 3), (1000, 7)])
def test_more_combinations_than_fit_into_memory_are_refused(folder, lists):
    file = record(folder, A, [1.0, 1.0])
    content = json.loads(file.read_text())
    (row,) = content["results"].values()
    row[0] = None
    row[1] = [[str(n) for n in range(lists[0])]] * lists[1]
    file.write_text(json.dumps(content))
    with pytest.raises(Unreadable, match="combinations") as told:
        read(folder, [A])
    assert file.name in str(told.value)


def test_a_damaged_file_costs_only_itself(folder):
    for commit in (A, B):
        file = record(folder, commit, [1.0, 1.0])
    file.write_bytes(file.read_bytes()[:100])
    troubles = []
    (one, _) = asv_results.read(folder, [A, B], troubles)
    assert [entry.commit for entry in one.entries] == [A]
    assert [file.name in str(trouble) for trouble in troubles] == [True]


@pytest.mark.parametrize("word", ["NaN", "-Infinity", "Infinity"])
def test_a_text_that_looks_like_no_number_stays_one(folder, word):
    file = record(folder, A, [1.0, 1.0])
    file.write_text(file.read_text().replace("'float32'", f"'{word}'"))
    assert {one.parameters["dtype"] for one in read(folder, [A])} == {word}


def test_series_have_what_recorded_files_have():
    """Compared with the JSON alone, of a commit with a file in three environments."""
    place, commit = RECORDED / "cpu-2core-epyc", "5d37d685"
    files = sorted(place.glob(f"{commit}-*.json"))
    expected, seen = {}, {}
    for file in files:
        content = json.loads(file.read_text())
        at = content["result_columns"].index
        for name, row in content["results"].items():
            points = list(itertools.product(*row[at("params")]))
            values = row[at("result")] or [None] * len(points)
            for point, value in zip(points, values, strict=True):
                if value is None or not math.isnan(value):
                    expected[content["env_name"], name, point] = value
    for one in read(place.parent):
        for entry in one.entries:
            if one.machine == place.name and entry.commit.startswith(commit):
                point = tuple(map(repr, one.parameters.values()))
                seen[one.environment, one.benchmark, point] = entry.value
    assert len(files) == 3
    assert seen == expected
    assert len(seen) > 1000


@pytest.mark.parametrize("name", ["benchmarks.json", "cpu-2core/machine.json"])
def test_results_without_what_describes_them_are_refused(folder, name):
    record(folder, A, [1.0, 1.0])
    (folder / name).unlink()
    with pytest.raises(Unreadable, match="No such file"):
        read(folder, [A])


def test_a_second_file_of_the_same_commit_is_refused(folder):
    file = record(folder, A, [1.0, 1.0])  # asv would take the mean of the two
    file.with_name(file.name.replace(".json", "-copy.json")).write_text(
        file.read_text()
    )
    with pytest.raises(Unreadable, match="the same commit"):
        read(folder, [A])


def test_an_interval_of_asv_below_zero_is_none(folder):
    """asv takes five samples for normal: other processes make them anything but."""
    disturbed = [8.8e-4, 9e-4, 9.3e-4, 4.9e-3, 1.3e-2]
    record(folder, "a" * 40, [9.3e-4, None], [disturbed, None])
    (series,) = [s for s in read(folder) if s.entries[0].value is not None]
    (entry,) = series.entries
    assert (entry.value, entry.low, entry.high) == (9.3e-4, None, None)
