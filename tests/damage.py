"""Damaged JSON: whole files of it, and one field of a sound document at a time."""

from __future__ import annotations

import contextlib
import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Literal, get_args, get_origin

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from gradwatch.harness.project.records import Kind

_SOUND = {"schema": 1, "environment": {}, "summary": {}, "records": []}
_DEEP, _LONG = "[" * 100_000, "9" * 5_000


def _text(**parts: Any) -> Callable[[Path], object]:
    """A document with some parts replaced; "DEEP" and "LONG" stand for raw JSON."""
    text = json.dumps({**_SOUND, **parts})
    text = text.replace('"DEEP"', _DEEP).replace('"LONG"', _LONG)
    return lambda file: file.write_text(text)


def _long(file: Path) -> None:
    """700 MB that take no room on the disk."""
    file.write_text("{")
    os.truncate(file, 700 << 20)


#: The inputs of reference/faults.md, point 6, and what a line on them says.
FILES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda file: None, "No such file"),
    "empty": (lambda file: file.write_text(""), "not readable as JSON"),
    "cut short": (lambda file: file.write_text('{"schema": 1, "rec'), "not readable"),
    "binary": (lambda file: file.write_bytes(b"\xff\xfe\x00{"), "not readable"),
    "other version": (_text(schema=99), "schema 99"),
    "only brackets": (lambda file: file.write_text(_DEEP), "Expected `object`"),
    "deep": (_text(records="DEEP"), "nested too deeply"),
    "long integer": (_text(environment={"cores": "LONG"}), "cores"),
    "a day": (_text(environment={"date": "yesterday"}), "date"),
    "surrogate": (_text(environment={"machine": "\ud800"}), "not readable"),
    "no records": (_text(records=7), "Expected `array`"),
    "odd records": (_text(records=[1, 2, 3]), "$.records[0]"),
    "no environment": (_text(environment=[]), "Expected `object`"),
    "700 MB": (_long, "more than 256 MB long"),
    "a pipe": (os.mkfifo, "not a regular file"),
    "a folder": (lambda file: file.mkdir(), "not a regular file"),
}

_ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1e308, "", "yesterday", "\ud800", "a\x00b", "<b>&"),
    *([], {}, [[[1]]], {"a": {"b": None}}, "DEEP", "LONG", "NaN", ["x"] * 3),
)


def rows(kind: Kind[Any, Any]) -> list[Any]:
    """Two sound records with the fields that they need; of several types, none."""
    return [_sound(kind.record)] * 2 if isinstance(kind.record, type) else []


def _sound(kind: Any) -> Any:
    """A value of a type, as JSON has it."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        needed = [one for one in fields(kind) if one.required]
        row = {one.encode_name: _sound(one.type) for one in needed}
        return row | {"verdict": "agree"} if "verdict" in row else row
    if get_origin(kind) is Literal:
        return get_args(kind)[0]
    for value in ("a", 1, False):
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(value, kind)
    raise TypeError(kind)


def mutant(document: Any, random: Random) -> str:
    """The document as text, with one field that is odd, gone or of another name."""
    changed = copy.deepcopy(document)
    place, key = random.choice(list(_places(changed)))
    how = random.randrange(6)
    if how == 0:
        del place[key]
    elif how == 1 and isinstance(place, dict):
        place[f"{key}_"] = place.pop(key)
    else:
        place[key] = copy.deepcopy(random.choice(_ODD))
    text = json.dumps(changed)
    for name, raw in (("DEEP", _DEEP), ("LONG", _LONG), ("NaN", "NaN")):
        text = text.replace(f'"{name}"', raw)
    return text


def _places(value: Any) -> Any:
    """Every list and object in it, with the keys of each."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, (dict, list)):
            yield from _places(inner)
