"""What files import is parsed once, and once more whenever it may have changed."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

import pytest

from gradwatch.harness.agreement.remembered.cache import Cache
from gradwatch.harness.agreement.remembered.imports import MOST, Imports
from gradwatch.harness.project import closure

FILE = b"import a.b\nfrom . import c\n"


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The contents that are parsed, in order."""
    contents, plain = list[bytes](), closure.imported

    def parse(content: bytes, package: str) -> tuple[str, ...]:
        contents.append(content)
        return plain(content, package)

    monkeypatch.setattr(closure, "imported", parse)
    return contents


def asked(place: Path, content: bytes = FILE, package: str = "d") -> list[str]:
    """What a run finds that ends well."""
    imports = Imports(Cache(place))
    found = sorted(imports(content, package))
    assert sorted(imports(content, package)) == found
    imports.keep()
    return found


def test_a_file_is_parsed_once(tmp_path: Path, parsed: list[bytes]) -> None:
    assert asked(tmp_path) == asked(tmp_path) == ["a.b", "d", "d.c"]
    assert parsed == [FILE]


@pytest.mark.parametrize(
    ("content", "package", "found"),
    [(FILE + b"import e\n", "d", ["a.b", "d", "d.c", "e"]), (FILE, "f", None)],
    ids=["another content", "in another package"],
)
def test_what_differs_is_parsed(
    tmp_path: Path,
    parsed: list[bytes],
    content: bytes,
    package: str,
    found: list[str] | None,
) -> None:
    asked(tmp_path)
    assert asked(tmp_path, content, package) == (found or ["a.b", "f", "f.c"])
    assert parsed == [FILE, content]


def test_another_python_or_parser_parses_again(
    tmp_path: Path, parsed: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked(tmp_path)
    monkeypatch.setattr(sys, "version", "4.0")
    asked(tmp_path)
    other = tmp_path / "closure.py"
    other.write_text("# changed")
    monkeypatch.setattr(closure, "__file__", str(other))
    asked(tmp_path)
    assert parsed == [FILE] * 3


def test_what_is_damaged_is_parsed_again(tmp_path: Path, parsed: list[bytes]) -> None:
    asked(tmp_path)
    with sqlite3.connect(tmp_path / "outcomes.sqlite") as connection:
        connection.execute("update outcomes set content = x'00' || substr(content, 2)")
    connection.close()
    assert asked(tmp_path) == asked(tmp_path)
    assert parsed == [FILE] * 2


def test_no_cache_that_can_be_used_costs_only_time(
    tmp_path: Path, parsed: list[bytes]
) -> None:
    (tmp_path / "file").touch()
    assert asked(tmp_path / "file") == asked(tmp_path / "file")
    assert parsed == [FILE] * 2


def test_the_oldest_make_room(tmp_path: Path, parsed: list[bytes]) -> None:
    imports = Imports(Cache(tmp_path))
    for i in range(MOST + 1):
        imports(b"import a%d" % i, "")
    imports.keep()
    parsed.clear()
    asked(tmp_path, b"import a1", "")
    assert not parsed
    asked(tmp_path, b"import a0", "")
    assert parsed == [b"import a0"]


def test_what_is_no_python_is_no_import(tmp_path: Path) -> None:
    with pytest.raises(SyntaxError):
        Imports(Cache(tmp_path))(b"import", "d")
