"""Parts of a nightly run that judge gradients, and a share of their derivatives."""

from __future__ import annotations

import datetime
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from functools import partial

from gradwatch.harness.agreement.output import Judged
from gradwatch.harness.agreement.remembered import Remembered
from gradwatch.harness.agreement.remote import judge, judged
from gradwatch.harness.agreement.suite import Agreement, Asked, gone
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.orders import SECOND
from gradwatch.harness.nightly import opinfo
from gradwatch.harness.nightly.model import Night, Result
from gradwatch.harness.project import documents
from gradwatch.harness.project.records import (
    AGREE,
    AgreeRecord,
    Problem,
)
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.workers.child import Child

DTYPES = ("float32", "float64")  # those of `gradwatch agree`


def agreement(night: Night) -> Result:
    """Judge every op on every backend in all regimes; the journal keeps each op."""
    with Child(judge) as child:
        read = partial(documents.read, kind=AGREE)
        pieces = [
            night.journal.once(f"agree-{op}", partial(_judged, night, op, child), read)
            for op in night.ops
        ]
    agreed = _together(pieces)
    content = documents.document(agreed.records, agreed.summary())
    documents.write(content, night.journal.path("agree"))
    summary = agreed.summary()
    line = f"{summary.judged:,} tensors judged, {summary.unexpected} unexpected"
    if agreed.recalled:
        since = min(agreed.remembered.values())
        line += f"; {agreed.recalled:,} remembered, judged since {since}"
    problems = [*_unexpected(agreed), *_gone(agreed)]
    lacking = [
        f"{b} is required, but {agreed.missing[b]}"
        for b in night.require
        if b in agreed.missing
    ]
    if not agreed.judged:
        lacking.append("nothing was judged")
    return Result(line, problems, notes=_absent(agreed), required="; ".join(lacking))


def _absent(agreed: Agreement) -> list[str]:
    """The backends that cannot run; those with the same reason share a line."""
    backends = defaultdict(list)
    for backend, why in sorted(agreed.missing.items()):
        backends[why].append(backend)
    return [f"{', '.join(names)}: {why}" for why, names in backends.items()]


def _judged(
    night: Night,
    op: str,
    child: Child,
) -> Judged:
    asked = Asked(
        ops=[op],
        backends=night.backends,
        dtypes=DTYPES,
        seed=night.seed,
        jobs=night.jobs,
        sampled=True,
    )
    remembered = Remembered(asked, night.cache)
    agreed = judged(asked, child, remembered=remembered)
    return documents.document(agreed.records, agreed.summary())


def second_orders(night: Night) -> Result:
    """Judge forward mode and the double backward of a share of the ops, by the date."""
    turn = datetime.date.today().toordinal() % opinfo.SHARES
    asked = Asked(
        ops=night.ops[turn :: opinfo.SHARES],
        backends=[b for b in night.backends if traits_of(b).second_order_listed],
        dtypes=DTYPES,
        orders=SECOND,
        seed=night.seed,
        jobs=night.jobs,
        sampled=True,
    )
    if not asked.ops:
        return Result("", skipped="none of these ops has its turn")
    with Child(judge) as child:
        agreed = judged(asked, child)
    summary = agreed.summary()
    line = f"{summary.judged:,} tensors of {', '.join(asked.ops)} judged,"
    line += f" {summary.unexpected} unexpected"
    return Result(line, [*_unexpected(agreed), *_gone(agreed)])


def _together(pieces: Sequence[Judged]) -> Agreement:
    """The pieces as one run; that a known defect has gone is a matter of all."""
    agreed = Agreement()
    for piece in pieces:
        summary = piece.summary
        agreed.records += piece.records
        agreed.pairs |= summary.pairs
        agreed.missing |= summary.missing
        agreed.unrepeatable += summary.unrepeatable
        agreed.recalled += summary.recalled
        agreed.remembered |= summary.remembered
    agreed.gone = gone(agreed.records, known.load())
    return agreed


def _unexpected(agreed: Agreement) -> list[Problem]:
    """One for each op and backend: its worst tensor."""
    worst: dict[tuple[str, str], AgreeRecord] = {}
    for record in agreed.unexpected:
        place = (record.op, record.backend)
        worst[place] = max(worst.get(place, record), record, key=_distance)
    count = Counter((r.op, r.backend) for r in agreed.unexpected)
    return [
        Problem(
            "agree",
            *place,
            f"{record.tensor} {record.verdict}",
            f"{record.case}: {record.message} ({count[place]} tensors)",
        )
        for place, record in worst.items()
    ]


def _distance(record: AgreeRecord) -> float:
    """The distance of a record; infinite without a ratio, as after a crash."""
    return math.inf if record.distance is None else record.distance


def _gone(agreed: Agreement) -> list[Problem]:
    return [
        Problem("agree", k.op, k.backend, f"{k.tensor} known defect is gone", k.reason)
        for k in agreed.gone
    ]
