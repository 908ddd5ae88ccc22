"""Prints a comparison as Markdown, from an untrusted document.

    python3 scripts/comment.py comparison.json

Standard library only: a job that may write to pull requests installs nothing.
"""

import json
import math
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from gradwatch.harness.project.markdown import cell

#: Bytes, letters, rows: 24 ops have some 100 kB, GitHub's comments 65,536 letters.
LARGEST, LONGEST, ROWS = 4 << 20, 120, 200
VERDICTS = ("faster", "slower", "no difference", "not resolved")


class Unfit(ValueError):
    """The document is not one of `gradwatch compare`."""


def text(record: dict[str, object], field: str) -> str:
    """A text of a record, escaped for a table."""
    value = record.get(field, "")
    if not isinstance(value, str):
        raise Unfit(f"{field} is no text")
    printable = "".join(c if c.isprintable() else " " for c in value[:LONGEST])
    return cell(printable).replace("://", ":\u200b//").replace("&", "&amp;")


def number(record: dict[str, object], field: str) -> float:
    """A positive number of a record."""
    value = record.get(field)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unfit(f"{field} is no number")
    if not 0 < value < math.inf:
        raise Unfit(f"{field} is {value}")
    return float(value)


def row(record: object) -> str:
    """A line of the table."""
    if not isinstance(record, dict):
        raise Unfit("a record is no object")
    if record.get("verdict") not in VERDICTS:
        raise Unfit("a verdict is none of compare's")
    names = [text(record, f) for f in ("op", "case", "backend", "dtype", "phase")]
    ratio, low, high = (number(record, field) for field in ("ratio", "low", "high"))
    shown = [f"{ratio:.3g}", f"{low:.3g} to {high:.3g}", record["verdict"]]
    return f"| {' | '.join([*names, *shown])} |"


def failures(document: dict[str, object]) -> list[str]:
    """A line for each failed comparison, such as one with a wrong gradient."""
    summary = document.get("summary", {})
    failed = summary.get("failed", []) if isinstance(summary, dict) else None
    if not isinstance(failed, list):
        raise Unfit("it does not say what failed")
    return [f"- not compared: {text({'why': why}, 'why')}" for why in failed[:ROWS]]


def table(content: bytes) -> str:
    """The comment; slower ones first, and at most `ROWS` lines."""
    document = json.loads(content)
    if not isinstance(document, dict) or document.get("schema") != 1:
        raise Unfit("it is no document of schema 1")
    records = document.get("records")
    if not isinstance(records, list):
        raise Unfit("it has no records")
    lines = sorted(map(row, records), key=lambda line: "| slower |" not in line)
    names = "op", "case", "backend", "dtype", "phase", "ratio", "95 %", "verdict"
    head = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    more = (
        [f"\n{len(lines) - ROWS} more are on the job's page."] if lines[ROWS:] else []
    )
    told = f"{len(lines)} comparisons of head with base, slower ones first.\n"
    failed = failures(document)
    failed = ["", *failed] if failed else []
    return "\n".join([told, *head, *lines[:ROWS], *more, *failed])


def main(path: str) -> str:
    """The comment, or a line with the reason why there is none."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(number, "rb") as file:
        content = file.read(LARGEST + 1)
    if len(content) > LARGEST:
        return "The comparison is larger than 4 MB: it is not shown."
    try:
        return table(content)
    except (ValueError, RecursionError) as reason:
        return f"The comparison cannot be read ({cell(str(reason)[:LONGEST])})."


if __name__ == "__main__":
    print(main(sys.argv[1]))
