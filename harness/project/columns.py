"""Records as columns: a field has one list, and a text is written once.

{"op": {"values": ["add", "mul"], "at": [0, 0, 1]}, "ratio": [0.5, null, 1.2], ...}: the
agreement of all ops is a quarter as long as record by record, and half as long once
compressed. The fields of a row are those of a record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from operator import attrgetter
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import fields


class Coded(Struct):
    """Different values, in the order in which they come, and which one each row has."""

    values: list[Any]
    at: list[Annotated[int, Meta(ge=0)]]


Column = list[Any] | Coded
Columns = dict[str, Column]

_NUMBERS = {float, int, bool, type(None)}


def columns(
    records: Sequence[Any], builtin: Callable[[Any], Any] | None = None
) -> Columns | None:
    """Records of one type as columns; None where they are not of one.

    `builtin` makes of a value what JSON has.
    """
    kinds = {type(record) for record in records}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind is None or not issubclass(kind, Struct) or kind.__struct_config__.tag:
        return None
    encoder = msgspec.json.Encoder(enc_hook=builtin)
    return {
        one.encode_name: _column([*map(attrgetter(one.name), records)], encoder)
        for one in fields(kind)
    }


def _column(listed: list[Any], encoder: msgspec.json.Encoder) -> Column:
    """Numbers as they are: most of them differ, and the equal 0.0 and -0.0 do, too."""
    kinds = {*map(type, listed)}
    if kinds <= _NUMBERS:
        return listed
    keys = listed if kinds == {str} else [_encoded(one, encoder) for one in listed]
    places: dict[Any, int] = defaultdict(count().__next__)
    at = [*map(places.__getitem__, keys)]  # millions of them: no loop of Python's
    if keys is listed:
        return Coded([*places], at)
    values = dict(zip(keys, listed, strict=True))
    return Coded([values[key] for key in places], at)


def _encoded(value: Any, encoder: msgspec.json.Encoder) -> bytes:
    """What tells a value from others that may be lists."""
    try:
        return encoder.encode(value)
    except UnicodeEncodeError:  # half a surrogate pair, in a framework's message
        return repr(value).encode("utf-8", "replace")


def rows(given: Mapping[str, Column]) -> Iterator[dict[str, Any]]:
    """The rows of columns, each as the fields of a record.

    Raises:
        ValueError: The columns are not equally long, or lack a value.
    """
    listed = [_listed(name, column) for name, column in given.items()]
    if len({*map(len, listed)}) > 1:
        raise ValueError("they are not equally long")
    for row in zip(*listed, strict=True):
        yield dict(zip(given, row, strict=True))


def _listed(name: str, column: Column) -> list[Any]:
    if not isinstance(column, Coded):
        return column
    try:
        return [*map(column.values.__getitem__, column.at)]
    except IndexError:
        raise ValueError(f"{name[:40]!r} lacks a value") from None
