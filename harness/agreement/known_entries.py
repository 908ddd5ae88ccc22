"""Generates the known outcomes, which the agreement suite expects, from findings.

A defect that fails in every run of the suite is covered by the widest clauses (regime,
case, dtype) of whose cases most fail. One that fails only in some runs is covered by
clauses with at least one case that fails in all runs, so that no entry depends on a
seed. A property of the numbers from `judging.defects.where` is put in by hand.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from gradwatch.harness.agreement.findings import Finding
from gradwatch.harness.agreement.store import headline
from gradwatch.harness.judging.defects.known import FIELDS
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.project.verdicts import PASSING

Clauses = tuple[str, ...]
Failing = dict[str, set[int]]  # failing cases, and the runs in which they fail

MOST = 2 / 3  # share of a pattern's cases that must fail, or it could hide new defects


class Unconfirmed(Exception):
    """The suite failed in cases that no finding covers; the message names them."""


def announced(
    runs: Sequence[Sequence[AgreeRecord]], findings: Sequence[Finding]
) -> list[dict[str, Any]]:
    """Entries for the data file, from runs of the whole suite with several seeds.

    Raises:
        Unconfirmed: A case failed that no finding covers.
    """
    unconfirmed = sorted(
        f"{r.case} {r.backend} {r.verdict}"
        for run in runs
        for r in run
        if _wrong(r) and not _confirming(r, findings)
    )
    if unconfirmed:
        raise Unconfirmed("no finding confirms " + "; ".join(unconfirmed[:5]))
    entries = []
    for (op, backend, verdict), wrong in _groups(runs).items():
        tested = _by_case(r for run in runs for r in run if _of(r, op, backend))
        tensors = sorted({r.tensor for _, r in wrong})
        for where in _patterns(wrong, tested, len(runs)):
            (example, *_) = (r for _, r in wrong if where in _candidates(r))
            entries.append(
                {
                    "reason": headline(_confirming(example, findings)[0]),
                    "backends": [backend],
                    "ops": [op],
                    "verdicts": [verdict],
                    "tensors": tensors if len(tensors) == 1 else ["*"],
                    "versions": sorted({r.framework_version for _, r in wrong}),
                    "where": [*where],
                }
            )
    return entries


def text(entries: Iterable[Mapping[str, Any]]) -> str:
    """The data file: a line for each field, without what goes without saying."""
    blocks = [
        ",\n".join(
            f"  {json.dumps(name)}: {json.dumps(value)}"
            for name, value in entry.items()
            if FIELDS[name] is None or [*value] != [*FIELDS[name]]
        )
        for entry in entries
    ]
    return "[\n" + ",\n".join(f" {{\n{block}\n }}" for block in blocks) + "\n]\n"


def _wrong(record: AgreeRecord) -> bool:
    return record.verdict not in PASSING


def _of(record: AgreeRecord, op: str, backend: str) -> bool:
    return (record.op, record.backend) == (op, backend)


def _groups(
    runs: Sequence[Sequence[AgreeRecord]],
) -> dict[tuple[str, str, str], list[tuple[int, AgreeRecord]]]:
    groups: dict[tuple[str, str, str], list[tuple[int, AgreeRecord]]] = defaultdict(
        list
    )
    for number, run in enumerate(runs):
        for r in filter(_wrong, run):
            groups[r.op, r.backend, r.verdict].append((number, r))
    return dict(sorted(groups.items()))


def _by_case(records: Iterable[AgreeRecord]) -> dict[str, AgreeRecord]:
    return {record.case: record for record in records}


def _confirming(record: AgreeRecord, findings: Sequence[Finding]) -> list[Finding]:
    """Findings that can be the same defect, the most likely first."""
    numeric = ("disagree", "nonfinite")
    alike = [
        f
        for f in findings
        if (f.site.op, f.site.backend) == (record.op, record.backend)
        and (
            f.site.verdict == record.verdict
            or (f.site.verdict in numeric and record.verdict in numeric)
        )
    ]
    return sorted(
        alike,
        key=lambda f: (
            len({*f.site.flags} ^ {*record.flags}),
            f.record.dtype != record.dtype,
            f.site.verdict != record.verdict,
            f.site.id,
        ),
    )


def _candidates(record: AgreeRecord) -> list[Clauses]:
    """The clauses that hold for a case, the widest first."""
    op, regime, dtype = record.op, record.regime, record.dtype
    case = record.case[len(f"{op}[{regime}-") : -len(f"-{dtype}]")]
    of_regime, of_dtype = f"regime {regime}", f"dtype {dtype}"
    return [
        (),
        (of_dtype,),
        (f"case {case}",),
        (of_regime,),
        (f"case {case}", of_dtype),
        (of_regime, of_dtype),
        (f"name {record.case}",),
    ]


def _patterns(
    wrong: Sequence[tuple[int, AgreeRecord]],
    tested: Mapping[str, AgreeRecord],
    runs: int,
) -> Iterator[Clauses]:
    failing: Failing = defaultdict(set)
    for number, record in wrong:
        failing[record.case].add(number)
    matches: dict[Clauses, set[str]] = defaultdict(set)
    for case, record in tested.items():
        for pattern in _candidates(record):
            matches[pattern].add(case)
    always = [case for case, seen in failing.items() if len(seen) == runs]
    chosen: dict[Clauses, set[str]] = {}
    for case in [*always, *failing]:
        if not any(case in covered for covered in chosen.values()):
            pattern = _pattern(tested[case], matches, set(always), set(failing))
            chosen[pattern] = matches[pattern]
    for pattern, cases in chosen.items():
        if not any(cases < wider for wider in chosen.values()):
            yield pattern


def _pattern(
    record: AgreeRecord,
    matches: Mapping[Clauses, set[str]],
    always: set[str],
    failing: set[str],
) -> Clauses:
    candidates = _candidates(record)
    if record.case in always:
        for pattern in candidates:
            if len(matches[pattern] & failing) >= MOST * len(matches[pattern]):
                return pattern
    for pattern in reversed(candidates):
        if matches[pattern] & always:
            return pattern
    return candidates[-1]
