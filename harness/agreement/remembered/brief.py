"""The few records of an op that decide what a screen shows, and a count of the others.

A run over all ops has a quarter of a million records. Where no document is asked for,
the table, the counts and the exit code need about thirty of an op: those that failed,
the worst and one of each verdict for each backend, and those that test what is expected
of a defect or of a platform. The others are counted by verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from gradwatch.harness.agreement.overall import badness
from gradwatch.harness.agreement.suite import Settled
from gradwatch.harness.judging import known, platforms
from gradwatch.harness.judging.known import Known
from gradwatch.harness.project.records import AgreeRecord, Number
from gradwatch.harness.project.verdicts import PASSING

Pairs = Mapping[str, Mapping[str, Number]]


def brief(
    op: str,
    records: Sequence[AgreeRecord],
    entries: Iterable[Known],
    pairs: Pairs,
    missing: Mapping[str, str],
) -> Settled:
    """An op in one piece, for which tables, counts and the exit code are the same.

    Args:
        op: The op.
        records: All of its records.
        entries: The known outcomes that are about it.
        pairs: The worst ratio of each pair of backends.
        missing: The backends that did not run, and why.
    """
    deciding = {id(one) for one in _deciding(records, entries)}
    kept = [one for one in records if id(one) in deciding]  # in their order
    others = Counter(one.verdict for one in records if id(one) not in deciding)
    of_pairs = {name: dict(row) for name, row in pairs.items()}
    return Settled(op, "", "", kept, of_pairs, dict(missing), others=dict(others))


def _deciding(
    records: Sequence[AgreeRecord], entries: Iterable[Known]
) -> Iterator[AgreeRecord]:
    """The records that decide; some several times."""
    yield from (one for one in records if one.verdict not in PASSING)
    verdicts, worst = dict[tuple[str, str], AgreeRecord](), dict[str, AgreeRecord]()
    for one in records:
        verdicts.setdefault((one.backend, one.verdict), one)
        worst[one.backend] = max(worst.get(one.backend, one), one, key=badness)
    yield from (*verdicts.values(), *worst.values())
    telling = [one for one in records if known.tells(one)]
    for entry in entries:
        yield from filter(None, [next(filter(entry.covers, telling), None)])
    for tells in (platforms.tells, platforms.shows):
        yield from {one.framework: one for one in records if tells(one)}.values()
