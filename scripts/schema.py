"""Writes docs/schema.md, the schema of all documents, from harness/project/records.py.

`python scripts/schema.py` runs it.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo, fields

from gradwatch.harness.project import records
from gradwatch.harness.project.documents import SCHEMA, replace_file
from gradwatch.harness.project.paths import SOURCE

PAGE = SOURCE / "docs" / "schema.md"

_OPENING = f"""# The documents

`--json F` writes one document, as every file below results/ and nightly/ is:

    {{"schema": {SCHEMA}, "environment": {{...}}, "summary": {{...}}, "records": [...]}}

A file whose name ends in `.gz` is the same, compressed.

It is strict JSON: a number that is not finite is null. Readers pass over fields that
they do not know, and take the default of one that is not there. A damaged file, or one
of another schema, is refused with a line that says where, and left as it is; of earlier
results, up to 999 odd records are left out and counted. This page is generated from
`harness/project/records.py` by `python scripts/schema.py`.
"""


_FIELDS = """Below each name stand its fields with their types, and the default that a
reader takes for a missing field. A field with a question mark is only there where it is
known.
"""


def page() -> str:
    """The whole page, in Markdown."""
    parts = [_OPENING, _FIELDS, *_section("environment", records.Environment)]
    shown: set[type] = {records.Environment}
    for kind in records.KINDS:
        parts.append(f"## {kind.name}\n")
        waiting = [kind.summary, *_structs(kind.record)]
        while waiting:
            struct = waiting.pop(0)
            if struct not in shown:
                shown.add(struct)
                parts += _section(struct.__name__, struct)
                waiting += [s for one in fields(struct) for s in _structs(one.type)]
    return "\n".join(parts).rstrip() + "\n"


def _section(title: str, struct: type[Struct]) -> Iterator[str]:
    yield f"### {title}\n\n{inspect.cleandoc(struct.__doc__ or '')}\n"
    if fields(struct):
        yield "\n".join(("```text", *map(_line, fields(struct)), "```")) + "\n"


def _line(one: FieldInfo) -> str:
    default = "" if one.required else f" = {_default(one)}"
    return f"{one.encode_name}: {_name(one.type)}{default}"


def _default(one: FieldInfo) -> str:
    made = one.default if one.default_factory is NODEFAULT else one.default_factory()
    return msgspec.json.encode(made).decode()


def _name(kind: Any) -> str:
    """A type in JSON's words."""
    if typing.get_origin(kind) is typing.Annotated:
        return _name(typing.get_args(kind)[0])
    if typing.get_origin(kind) is typing.Literal:
        return " or ".join(f'"{value}"' for value in typing.get_args(kind))
    parts = [_name(part) for part in typing.get_args(kind)]
    if typing.get_origin(kind) is list:
        return f"list of {parts[0]}"
    if typing.get_origin(kind) is dict:
        return f"object of {parts[1]}"
    if parts:
        return " or ".join(dict.fromkeys(parts))
    words = {str: "text", float: "number", int: "integer", bool: "boolean"}
    return words.get(kind, "null" if kind is type(None) else _plain(kind))


def _plain(kind: Any) -> str:
    return "anything" if kind is Any else str(kind.__name__)


def _structs(kind: Any) -> list[type[Struct]]:
    """The records within a type."""
    if isinstance(kind, type) and issubclass(kind, Struct):
        return [kind]
    return [struct for part in typing.get_args(kind) for struct in _structs(part)]


def main(target: Path = PAGE) -> None:
    """Write the page."""
    replace_file(target, page())


if __name__ == "__main__":
    main()
