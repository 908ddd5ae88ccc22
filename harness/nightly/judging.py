"""Parts of a nightly run that judge gradients, and a share of their derivatives."""

from __future__ import annotations

import datetime
import math
from collections import Counter, defaultdict
from functools import partial
from typing import Any

from gradwatch.harness.agreement.remembered import Remembered
from gradwatch.harness.agreement.remote import judge, judged
from gradwatch.harness.agreement.suite import Agreement, Asked, gone
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.orders import SECOND
from gradwatch.harness.nightly import opinfo
from gradwatch.harness.nightly.model import Night, Result
from gradwatch.harness.project import documents
from gradwatch.harness.project.records import AgreeRecord, Problem
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.workers.child import Child


def agreement(night: Night) -> Result:
    """Judge every op on every backend in all regimes; the journal keeps each op."""
    agreed, read = Agreement(), partial(documents.load, kind=Agreement)
    with Child(judge) as child:
        for op in night.ops:
            make = partial(_judge_op, night, op, child)
            agreed.add(night.journal.once(f"agree-{op}", make, read))
    agreed.gone = gone(agreed.records, known.load())  # a matter of all ops
    summary = agreed.summary()
    content = documents.document(agreed.records, summary)
    documents.write(content, night.journal.path("agree"))
    line = f"{summary.judged:,} tensors judged, {summary.unexpected} unexpected"
    if agreed.recalled:
        since = min(agreed.remembered.values())
        line += f"; {agreed.recalled:,} remembered, judged since {since}"
    lacking = [
        f"{b} is required, but {agreed.missing[b]}"
        for b in night.require
        if b in agreed.missing
    ]
    if not agreed.judged:
        lacking.append("nothing was judged")
    required = "; ".join(lacking)
    return Result(line, _problems(agreed), notes=_absent(agreed), required=required)


def _absent(agreed: Agreement) -> list[str]:
    """The backends that cannot run; those with the same reason share a line."""
    backends = defaultdict(list)
    for backend, why in sorted(agreed.missing.items()):
        backends[why].append(backend)
    return [f"{', '.join(names)}: {why}" for why, names in backends.items()]


def _judge_op(night: Night, op: str, child: Child) -> Agreement:
    asked = _asked(night, ops=[op], backends=night.backends)
    agreed = judged(asked, child, remembered=Remembered(asked, night.cache))
    agreed.gone = ()
    return agreed


def _asked(night: Night, **fields: Any) -> Asked:
    return Asked(seed=night.seed, jobs=night.jobs, sampled=True, **fields)


def second_orders(night: Night) -> Result:
    """Judge forward mode and the double backward of a share of the ops, by the date."""
    turn = datetime.date.today().toordinal() % opinfo.SHARES
    backends = [b for b in night.backends if traits_of(b).second_order_listed]
    ops = night.ops[turn :: opinfo.SHARES]
    if not ops:
        return Result("", skipped="none of these ops has its turn")
    with Child(judge) as child:
        agreed = judged(_asked(night, ops=ops, backends=backends, orders=SECOND), child)
    summary = agreed.summary()
    line = f"{summary.judged:,} tensors of {', '.join(ops)} judged,"
    return Result(f"{line} {summary.unexpected} unexpected", _problems(agreed))


def _problems(agreed: Agreement) -> list[Problem]:
    """One for each op and backend, its worst tensor; and each defect that has gone."""
    worst: dict[tuple[str, str], AgreeRecord] = {}
    for record in agreed.unexpected:
        place = (record.op, record.backend)
        worst[place] = max(worst.get(place, record), record, key=_distance)
    count = Counter((r.op, r.backend) for r in agreed.unexpected)
    unexpected = [
        Problem(
            "agree",
            *place,
            f"{record.tensor} {record.verdict}",
            f"{record.case}: {record.story} ({count[place]} tensors)",
        )
        for place, record in worst.items()
    ]
    return unexpected + [
        Problem("agree", k.op, k.backend, f"{k.tensor} known defect is gone", k.reason)
        for k in agreed.gone
    ]


def _distance(record: AgreeRecord) -> float:
    """The distance of a record; infinite without a ratio, as after a crash."""
    return math.inf if record.distance is None else record.distance
