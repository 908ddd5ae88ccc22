"""Writes docs/schema.json, the JSON Schema of all documents, by kind.

`python scripts/schema.py` runs it; the types are those of harness/project/records.py.
"""

from __future__ import annotations

import inspect
from typing import Any

import msgspec

from gradwatch.harness.project.documents import Document, replace_file
from gradwatch.harness.project.paths import SOURCE
from gradwatch.harness.project.records import KINDS

FILE = SOURCE / "docs" / "schema.json"
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> str:
    """The text of the file: the schema of each kind of document, under its name."""
    generic: Any = Document
    documents = [generic[kind.record, kind.summary] for kind in KINDS]
    kinds, shared = msgspec.json.schema_components(
        documents, ref_template="#/$defs/{name}"
    )
    for one in shared.values():  # Python 3.13 dedents docstrings, earlier ones do not
        if "description" in one:
            one["description"] = inspect.cleandoc(one["description"])
    named = {kind.name: one for kind, one in zip(KINDS, kinds, strict=True)}
    content = {"$schema": _DIALECT, "$defs": {**shared, **named}}
    return msgspec.json.format(msgspec.json.encode(content), indent=1).decode() + "\n"


if __name__ == "__main__":
    replace_file(FILE, schema())
