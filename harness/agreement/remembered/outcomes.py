"""Outcomes of earlier runs, in place of judging the same again.

An outcome is remembered under the hash of all that it depends on. Not remembered is
what may be chance or the load's fault: a crash or an error that no known outcome lists,
a timeout, a backend that fails to start, an unexpected verdict where a known outcome
occurs only sometimes, and a result that a second run did not repeat.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import TYPE_CHECKING

from gradwatch.harness.agreement.remembered.cache import Batch, Cache, Unusable
from gradwatch.harness.agreement.remembered.ingredients import NotRemembered, keys
from gradwatch.harness.agreement.remembered.programs import make_room, programs
from gradwatch.harness.agreement.sampling import explained
from gradwatch.harness.agreement.suite import Settled
from gradwatch.harness.judging.defects import known
from gradwatch.harness.judging.defects.where import matches
from gradwatch.harness.project.records import AgreeRecord

if TYPE_CHECKING:
    from gradwatch.harness.agreement.remote import Asked

_FLEETING = ("error", "crash", "timeout")


class Remembered:
    """What earlier runs have judged of what is asked, and what this one judges.

    `dates` says of each op of which something was recalled when the oldest of it was
    judged; `why_not`, why nothing is remembered, where that was not wished. Without a
    cache nothing is read or written; `fresh`, nothing is read. `programs` is where
    JAX keeps what it compiles; "" if nowhere.
    """

    def __init__(
        self,
        asked: Asked,
        cache: Cache | None = None,
        *,
        fresh: bool = False,
    ) -> None:
        self.dates: dict[str, str] = {}
        self.why_not = ""
        self.programs = programs(cache.place) if cache and not fresh else ""
        self._asked, self._cache = asked, cache
        self._keys, self._absent = dict[str, str](), frozenset[str]()
        self._batches: dict[str, dict[str, Batch]] = {}
        self._planned: dict[str, dict[str, list[str]]] = {}
        self._judged: dict[tuple[str, str], Settled] = {}
        self._sometimes = [entry for entry in known.load() if entry.sometimes]
        if cache is None:
            return
        try:
            self._keys, self._absent = self._now()
            if not fresh:
                found = cache.batches(self._keys.values())
                self._batches = {op: found[key] for op, key in self._keys.items()}
        except (NotRemembered, Unusable) as error:
            self.why_not = str(error)

    def _now(self) -> tuple[dict[str, str], frozenset[str]]:
        asked = self._asked
        if {*asked.devices} != {"cpu"}:
            raise NotRemembered("only outcomes on the CPU are remembered")
        by_op, absent = keys(asked.ops, asked.backends, asked.seed)
        part = "-sampled" if asked.sampled and explained(asked.backends) else ""
        part += "-first" if part and asked.first_case else ""
        return {op: f"{key}{part}" for op, key in by_op.items()}, absent

    def recalled(self) -> Iterator[Settled]:
        """The trials that are asked for and remembered."""
        for op, batches in self._batches.items():
            for batch in filter(None, map(batches.get, self._names())):
                wanted = {*self._wanted(batch)}
                for settled in batch.settled:
                    if settled.case in wanted:
                        self.dates[op] = min(self.dates.get(op, batch.date), batch.date)
                        yield settled

    def whole(self, op: str) -> bool:
        """Whether all that is asked of an op is remembered."""
        batches = self._batches.get(op, {})
        asked = [batches.get(name) for name in self._names()]
        return all(
            one and {*self._wanted(one)} <= {settled.case for settled in one.settled}
            for one in asked
        )

    def plan(self, op: str, names: Mapping[str, list[str]]) -> None:
        """Take in the names of an op's trials, by batch."""
        self._planned[op] = {batch: [] for batch in self._names()} | {**names}

    def learn(self, settled: Settled) -> None:
        """Take in a trial that has been judged."""
        self._judged[settled.case, settled.device] = settled

    def keep(self, failed: Collection[str]) -> None:
        """Write down what was learnt of the ops that have not failed.

        Nothing, where a file has changed meanwhile: which one was judged is not known.
        """
        if not (self._cache and self._keys and self._judged) or self._asked.cases:
            return
        try:
            if self.programs:
                make_room(self._cache.place)
            now, _ = self._now()
            self._cache.keep(
                {
                    now[op]: self._written(op, plan)
                    for op, plan in self._planned.items()
                    if op not in failed and now.get(op) == self._keys[op]
                }
            )
        except (NotRemembered, Unusable) as error:
            self.why_not = self.why_not or str(error)

    def _written(self, op: str, plan: Mapping[str, list[str]]) -> dict[str, Batch]:
        today = datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds")
        batches = {}
        for name, names in plan.items():
            old = self._batches.get(op, {}).get(name)
            device = name.partition(" ")[0]
            new = [self._judged.get((case, device)) for case in names]
            lasting = [one for one in new if one and self._is_lasting(one)]
            if old is None or lasting:
                settled = [*(old.settled if old else ()), *lasting]
                batches[name] = Batch(names, settled, old.date if old else today)
        return batches

    def _is_lasting(self, settled: Settled) -> bool:
        """Whether another run would give the same."""
        return (
            {*settled.missing} <= self._absent
            and not settled.unrepeatable
            and not any(map(self._by_chance, settled.records))
        )

    def _by_chance(self, record: AgreeRecord) -> bool:
        """Whether chance or the load may have had a part in a verdict."""
        if record.verdict in _FLEETING:
            return not record.listed or record.verdict == "timeout"
        return not known.as_expected(record) and known.covered(record, self._sometimes)

    def _names(self) -> list[str]:
        """The batches that are asked for."""
        asked = self._asked
        parts = asked.devices, asked.dtypes, asked.regimes, asked.orders
        return [batch_name(*one) for one in product(*parts)]

    def _wanted(self, batch: Batch) -> list[str]:
        """The names of those trials of a batch that are asked for."""
        asked = self._asked
        names = [name for name in batch.names if asked_for(name, asked.cases)]
        return names[:1] if asked.first_case else names


def batch_name(device: str, dtype: str, regime: str, order: str) -> str:
    """The name of a batch: "cpu float32 normal vjp"."""
    return f"{device} {dtype} {regime} {order}"


def asked_for(case: str, patterns: Collection[str]) -> bool:
    """Whether a case has one of the patterns, or none is asked for."""
    return not patterns or any(matches(case, pattern) for pattern in patterns)
