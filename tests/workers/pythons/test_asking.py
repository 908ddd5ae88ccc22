"""What a Python says that it has: all of it, by lists of files that cannot lie."""

import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gradwatch.harness.workers.pythons.interpreters import ask

HERE = Path(sys.executable)


def distribution(folder: Path, name: str, record: str | None) -> Path:
    """What an installer leaves of a package, with or without a list of files."""
    place = folder / name
    place.mkdir()
    metadata = "METADATA" if name.endswith("dist-info") else "PKG-INFO"
    (place / metadata).write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    if record is not None:
        (place / "RECORD").write_text(record)
    return place


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder from which the asked Python imports."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_frameworks_are_asked_for_together():
    facts = ask(HERE, ["numpy", "torch", "none_such"])
    assert facts.frameworks == ["numpy", "torch"]
    assert facts.numpy == importlib.metadata.version("numpy")
    assert facts.python == sys.version
    assert not facts.installed


#: In a process of its own: what a test imports may add a folder to the path.
LISTED = """
import importlib.metadata, json
every = importlib.metadata.distributions()
print(json.dumps([[one.name, one.version] for one in every]))
"""


def test_all_that_is_installed_is_listed_as_importlib_lists_it():
    done = subprocess.run([HERE, "-c", LISTED], capture_output=True, check=True)
    listed = {(_plain(name), version) for name, version in json.loads(done.stdout)}
    found = {(_plain(name), version) for name, version, _ in ask_all().installed}
    assert found == {one for one in listed if one[0] != "gradwatch"}


def _plain(name):
    """A name as installers compare it (packaging specification "Names")."""
    return re.sub(r"[-_.]+", "-", name).lower()


def ask_all():
    return ask(HERE, [], contents=True)


def test_the_hash_is_that_of_the_list_of_files(place):
    distribution(place, "mine-1.0.dist-info", "mine.py,sha256=abc,3\n")
    hashed = hashlib.sha256(b"mine.py,sha256=abc,3\n").hexdigest()
    facts = ask_all()
    assert ("mine", "1.0", hashed) in facts.installed
    assert "mine" not in facts.unlisted


@pytest.mark.parametrize("name", ["mine-1.0.dist-info", "mine.egg-info"])
def test_what_lists_no_files_is_named(place, name):
    distribution(place, name, None)
    assert "mine" in ask_all().unlisted


def test_what_is_worked_on_elsewhere_is_named(place):
    info = distribution(place, "mine-1.0.dist-info", "mine.pth,sha256=abc,3\n")
    origin = {"url": "file:///mine", "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(origin))
    assert "mine" in ask_all().unlisted


def test_an_archive_of_packages_is_named(tmp_path, monkeypatch):
    archive = tmp_path / "packages.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("mine.py", "")
    monkeypatch.setenv("PYTHONPATH", str(archive))
    assert "packages.zip" in ask_all().unlisted
