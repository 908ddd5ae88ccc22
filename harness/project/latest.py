"""What the last runs found, merged in results/latest of their project.

Of each op, backend and case the newest verdict counts; one that was not found with the
others of its document has the date and the commit of its own. Outside of a project, and
where GRADWATCH_RESULTS is "off", nothing is kept.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Sequence
from typing import Any, cast

from gradwatch.harness.project import documents
from gradwatch.harness.project.documents import Document, Unreadable
from gradwatch.harness.project.lock import Busy, alone
from gradwatch.harness.project.paths import PROJECT, ROOT
from gradwatch.harness.project.records import Kind, Record, Summary
from gradwatch.impls.catalogue import op_names

LATEST = ROOT / "results" / "latest"

#: Is "off" where a run leaves no trace.
VARIABLE = "GRADWATCH_RESULTS"

_PATIENCE = 60.0  # seconds, for another run that is writing


def is_kept() -> bool:
    """Whether there is a project, and its runs leave a trace."""
    return not PROJECT.problem and os.environ.get(VARIABLE) != "off"


#: The summary of two documents: the earlier, the newer, and the records of both.
Combined = Callable[[Summary, Summary, Sequence[Record]], Summary]


def keep(
    kind: Kind[Record, Summary],
    content: Document[Record, Summary],
    combined: Combined[Summary, Record] = lambda before, now, records: now,
) -> str:
    """Merge a document into that of its kind; return why it was not kept, or "".

    What another machine found before is moved aside, under that machine's name.
    """
    if not is_kept():
        return ""
    file = LATEST / f"{kind.name}.json.gz"
    try:
        with alone(LATEST / f".{kind.name}.lock", f"writing {file.name}", _PATIENCE):
            if file.exists():
                before = documents.read(file, kind)
                if before.environment.machine == content.environment.machine:
                    content = merged(kind, before, content, combined)
                else:
                    other = f"{kind.name}-{before.environment.machine}.json.gz"
                    file.rename(LATEST / other)
            documents.write(content, file)
    except (Unreadable, Busy) as error:
        return f"not kept in results/latest: {error}"
    except OSError as error:
        return f"not kept: {error.strerror or error}: {error.filename or file}"
    return ""


def merged(
    kind: Kind[Record, Summary],
    before: Document[Record, Summary],
    now: Document[Record, Summary],
    combined: Combined[Summary, Record],
) -> Document[Record, Summary]:
    """Return the newer document, with what only the earlier one says."""
    if not kind.key:
        return now
    key = operator.attrgetter(*kind.key)
    newer, there = set(map(key, now.records)), {"", *op_names()}
    about, records = before.environment, list[Any]()
    for one in cast("Sequence[Any]", before.records):
        if key(one) not in newer and getattr(one, "op", "") in there:
            if not one.date:
                one.date, one.commit = about.date, about.commit
            records.append(one)
    records += now.records
    summary = combined(before.summary, now.summary, records)
    return Document(now.environment, summary, records)
