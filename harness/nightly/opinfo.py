"""The part of the night that judges a share of PyTorch's own gradients.

scripts/studies/opinfo.py tries every entry of PyTorch's OpInfo database, which takes
too long for one night. Each night tries one of `SHARES` shares, by its date; all
entries come round in `SHARES` nights. The script lies in this checkout alone, so that
there is no such part in a project elsewhere. It records of each entry its name, of its
samples what is judged and which are not, why, and the script in results/pytorch that
explains what disagrees, if any.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gradwatch.harness.nightly.night import Night, Result
from gradwatch.harness.project import documents
from gradwatch.harness.project.records import Problem
from gradwatch.harness.project.verdicts import PASSING
from gradwatch.impls.catalogue import op_names

SCRIPT = Path("scripts", "studies", "opinfo.py")
DTYPES = ("float64", "float32")

#: Nights until every entry has been tried. A prime that is neither 2 nor 7: where the
#: night runs on every other day or on weekdays alone, all shares still come round.
SHARES = 13

#: Why a sample was not judged, where that may be a fault of ours (others are the
#: operator's nature, such as complex numbers; docs/pytorch.md lists them).
FAULTS = ("error", "time", "samples")


Entry = dict[str, Any]
Entries = dict[str, list[Entry]]  # by precision


def share_of(date: datetime.date) -> int:
    """Which share is tried on a night; the next night tries the next one."""
    return date.toordinal() % SHARES


def pytorch_gradients(night: Night) -> Result:
    """Judge this night's share of OpInfo; a disagreement without a finding is new.

    After a kill, entries that are recorded already are not judged again.
    """
    if {*op_names()} - {*night.ops}:
        return Result("", skipped="only some ops are asked for, and none is PyTorch's")
    tonight = share_of(datetime.date.today())
    problems, entries = list[Problem](), Entries()
    for dtype in DTYPES:
        file = night.piece(f"opinfo-{dtype}")
        share = ("--share", f"{tonight}/{SHARES}", "--out", str(file), "--continue")
        ended = night.run(f"opinfo-{dtype}", str(SCRIPT), dtype, *share)
        if ended.code:
            what = f"{dtype}: exit code {ended.code}"
            problems.append(Problem("opinfo", "", "", what, ended.line))
        # It may have ended before its first entry.
        entries[dtype] = documents.load(file, list[Entry]) if file.exists() else []
        for entry in entries[dtype]:
            if (wrong := _wrong(entry)) and not entry["finding"]:
                what = f"{dtype} {wrong[0]['tensor']} {wrong[0]['verdict']}"
                line = f"{wrong[0]['message']} ({len(wrong)} tensors)"
                place = (f"OpInfo {entry['name']}", "PyTorch")
                problems.append(Problem("opinfo", *place, what, line))
    return _result(tonight, entries, problems)


def _verdicts(entry: Entry) -> list[dict[str, Any]]:
    """The verdicts on all samples of an entry."""
    return [one for sample in entry["samples"] for one in sample["judged"]]


def _wrong(entry: Entry) -> list[dict[str, Any]]:
    """Every verdict that does not pass."""
    return [one for one in _verdicts(entry) if one["verdict"] not in PASSING]


def _result(tonight: int, entries: Entries, problems: list[Problem]) -> Result:
    """The line, and what is missing: a precision of which nothing was judged."""
    tensors = {d: sum(map(len, map(_verdicts, some))) for d, some in entries.items()}
    every = [entry for some in entries.values() for entry in some]
    count = len({entry["name"] for entry in every})
    line = f"{sum(tensors.values()):,} tensors of {count} OpInfo entries judged"
    line += f" (share {tonight} of {SHARES}), {len(problems)} unexplained"
    nothing = ", ".join(dtype for dtype, judged in tensors.items() if not judged)
    required = f"nothing was judged in {nothing}" if nothing else ""
    return Result(line, problems, notes=[*_notes(entries)], required=required)


def _notes(entries: Entries) -> Iterator[str]:
    """Samples that could have been judged and were not, then defects that are gone.

    Those are listed, and agree in all precisions.
    """
    faults = Counter(
        f"OpInfo {entry['name']}, {dtype}: not judged ({one['kind']}: {one['why']})"
        for dtype, recorded in entries.items()
        for entry in recorded
        for one in entry["not"]
        if one["kind"] in FAULTS
    )
    yield from (f"{line}, {count} samples" for line, count in faults.items())
    every = [entry for recorded in entries.values() for entry in recorded]
    listed = {e["name"]: e["finding"] for e in every if e["finding"]}
    for name in sorted({*listed} - {e["name"] for e in every if _wrong(e)}):
        script = f"results/pytorch/{listed[name]}.py"
        yield f"OpInfo {name} agrees, though {script} lists a defect"
