"""What JAX compiled is read by the next worker, and no verdict depends on it."""

import os
import time
from pathlib import Path

import pytest

from gradwatch.harness.agreement import remembered
from gradwatch.harness.agreement.remembered import Remembered, make_room, programs
from gradwatch.harness.agreement.suite import Asked, agree
from gradwatch.harness.judging.cases import Trial, trials
from gradwatch.harness.workers.pool import Fleet
from gradwatch.impls.catalogue import load_op
from tests.frameworks import usable


def trial() -> Trial:
    return next(iter(trials(load_op("softmax"), dtypes=("float32",))))


def judged(folder: str) -> list[object]:
    with Fleet(programs=folder) as fleet:
        records = agree([trial()], ["jax_jit"], fleet=fleet, entries=()).records
    assert {record.verdict for record in records} == {"agree"}
    return [(one.tensor, one.ratio, one.radius, one.message) for one in records]


def contents(folder: str) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in Path(folder).iterdir()}


def halved(content: bytes) -> bytes:
    return content[: len(content) // 2]


def turned(content: bytes) -> bytes:
    return content[:-9] + bytes(255 - byte for byte in content[-9:])


def test_the_next_worker_reads_it_and_damage_loses_nothing(tmp_path: Path) -> None:
    usable("jax")
    folder = programs(tmp_path)
    first = judged(folder)
    kept = contents(folder)
    assert len(kept) >= 2, "a forward and a backward"
    assert judged(folder) == first
    assert contents(folder) == kept, "all of it was found"
    for damaged in (halved, turned):
        for file, content in kept.items():
            file.write_bytes(damaged(content))
        assert judged(folder) == first
    assert judged("") == first


def test_a_file_in_its_place_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "jax").touch()
    assert programs(tmp_path) == ""


def test_each_machine_has_its_own_which_is_the_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = programs(tmp_path)
    assert Path(here).stat().st_mode & 0o777 == 0o700
    assert programs(tmp_path) == here
    monkeypatch.setattr(remembered, "machine", lambda: ["another"])
    assert programs(tmp_path) not in ("", here)


def test_what_was_used_longest_ago_makes_room(tmp_path: Path) -> None:
    folder = Path(programs(tmp_path))
    now = time.time()
    for age in range(5):
        (folder / str(age)).write_bytes(bytes(100))
        os.utime(folder / str(age), (now - age, now - age))
    os.utime(folder / "4", (now + 1, now - 4))  # written first, but read last
    make_room(tmp_path.glob("jax/*/*"), most=250)
    assert {file.name for file in folder.iterdir()} == {"4", "0"}


def test_what_is_judged_afresh_is_compiled_afresh(tmp_path: Path) -> None:
    asked = Asked(ops=["add"], backends=["numpy_manual"])
    assert Remembered(asked, None).programs == ""
    assert Remembered(asked, tmp_path, fresh=True).programs == ""
    assert Remembered(asked, tmp_path).programs.startswith(str(tmp_path))
