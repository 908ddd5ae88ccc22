"""The name of a machine."""

import json
import os

import pytest

from gradwatch.harness.project import machines
from gradwatch.harness.project.machines import OtherMachine

HERE = {"arch": "x86_64", "cpu": "One CPU", "num_cpu": "2", "ram": "24 GiB"}


@pytest.fixture(autouse=True)
def _unnamed(monkeypatch):
    monkeypatch.delenv("GRADWATCH_MACHINE", raising=False)


@pytest.fixture
def name_of(monkeypatch):
    """The name of a machine by its folder, and by what it is."""

    def name(folder, about):
        monkeypatch.setattr(machines, "traits", lambda: about)
        return machines.machine_name(folder)

    return name


@pytest.fixture
def folder(tmp_path):
    """Recorded: another machine of the plain name, and this one under another."""
    for name, about in (
        ("cpu-2core", {**HERE, "cpu": "Another"}),
        ("lab", {**HERE, "os": "Linux 6", "ram": "23 GiB"}),
    ):
        file = tmp_path / name / "machine.json"
        file.parent.mkdir()
        file.write_text(json.dumps({**about, "machine": name, "version": 1}))
    return tmp_path


def test_a_machine_has_the_name_under_which_it_was_recorded(folder, name_of):
    assert name_of(folder, {**HERE, "os": "Linux 7"}) == "lab"


@pytest.mark.parametrize("differing", [{"arch": "arm64"}, {"cpu": "A third"}])
def test_another_processor_is_another_machine(folder, name_of, differing):
    assert name_of(folder, {**HERE, **differing}) == "cpu-2core-2"


def test_a_stranger_s_history_gives_no_name(folder, name_of):
    assert name_of(folder, {**HERE, "num_cpu": "8"}) == "cpu-8core"


def test_a_given_name_that_is_another_machine_s_is_refused(
    folder, name_of, monkeypatch
):
    monkeypatch.setenv("GRADWATCH_MACHINE", "cpu-2core")
    assert name_of(folder, {**HERE, "cpu": "Another"}) == "cpu-2core"
    with pytest.raises(OtherMachine, match="cpu 'Another', here 'One CPU'"):
        name_of(folder, HERE)


#: A pipe would never answer, and what follows on the device fills the memory.
DAMAGES = {
    "a list": lambda file: file.write_text("[1]"),
    "deep": lambda file: file.write_text("[" * 100_000),
    "a pipe": os.mkfifo,
    "a device": lambda file: file.symlink_to("/dev/zero"),
    "a gigabyte": lambda file: (file.touch(), os.truncate(file, 1 << 30)),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_file_is_no_machine_s(folder, name_of, how):
    file = folder / "lab" / "machine.json"
    file.unlink()
    DAMAGES[how](file)
    assert name_of(folder, HERE) == "cpu-2core-2"
