"""No file in the results folder ends the dashboard: each costs itself, and is named."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from gradwatch.harness.dashboard import matrix
from gradwatch.harness.dashboard.matrix import read_results
from gradwatch.harness.dashboard.site import write_site
from tests import damage
from tests.dashboard.browser import invented

MUTANTS = 15  # of each file


@pytest.mark.parametrize("folder", ["latest", f"recorded/{invented.MACHINE}"])
def test_a_compressed_document_is_shown_as_any_other(tmp_path, folder):
    made = [invented.agree_record("add", "numpy_manual")]
    for name in ("agree.json", "agree.json.gz"):
        file = tmp_path / folder / name
        invented.write_document(file, made, invented.environment(1), missing={})
    plain, packed = read_results(tmp_path).sources
    assert (plain.kind, plain.records) == (packed.kind, packed.records)
    assert packed.file == f"{folder}/agree.json.gz"


@pytest.mark.parametrize("name", [name for name in damage.FILES if name != "missing"])
def test_a_damaged_file_is_one_line_and_the_rest_is_shown(tmp_path, name):
    make, why = damage.FILES[name]
    invented.write_time(tmp_path, 5)
    make(tmp_path / "latest" / "agree.json")
    results = read_results(tmp_path)
    assert any(len(source.records) > 100 for source in results.sources)
    (trouble,) = results.troubles
    assert trouble.file == "latest/agree.json"
    assert why in trouble.why
    assert "\n" not in trouble.why


@pytest.fixture
def quick(monkeypatch):
    """A site of one op, which takes a tenth of a second."""
    monkeypatch.setattr(matrix, "op_names", lambda: ("add",))


def _agree(folder: Path) -> Path:
    file = folder / "latest" / "agree.json"
    names = ("numpy_graph", "numpy_manual")
    made = [invented.agree_record("add", name) for name in names]
    pairs = {"add": {names[0]: {names[1]: 0.5}}}
    about = invented.environment(1)
    invented.write_document(
        file, made, about, missing={"torch_custom": "no"}, pairs=pairs
    )
    return file


def _time(folder: Path) -> Path:
    file = folder / "latest" / "time.json"
    made = [invented.time_record("add", "numpy_graph")]
    untimed = {"add 64 float32 torch_custom": "error: no"}
    invented.write_document(file, made, invented.environment(1), untimed=untimed)
    return file


def _finding(folder: Path) -> Path:
    invented.write_finding(folder, "add")
    return folder / "findings" / "index.json"


def _history(folder: Path) -> Path:
    invented.write_history(folder, 2)
    return sorted((folder / "asv" / invented.MACHINE).glob("*-*.json"))[0]


def _benchmarks(folder: Path) -> Path:
    invented.write_history(folder, 2)
    return folder / "asv" / "benchmarks.json"


@pytest.mark.slow
@pytest.mark.parametrize("made", [_agree, _time, _finding, _history, _benchmarks])
def test_no_single_field_of_a_file_ends_the_site(tmp_path, quick, made):
    results = tmp_path / "results"
    file = made(results)
    sound = json.loads(file.read_text())
    for seed in range(MUTANTS):
        file.write_text(text := damage.mutant(sound, Random(seed)))
        try:
            write_site(results, tmp_path / "html")
        except Exception as error:
            raise AssertionError(f"seed {seed}: {text[:300]}") from error
