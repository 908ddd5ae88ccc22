"""Outcomes of earlier runs, in place of judging the same again.

An outcome is remembered under the hash of all that it depends on. Not remembered is
what may be chance or the load's fault: a crash or an error that no known outcome lists,
a timeout, a backend that fails to start, an unexpected verdict where a known outcome
occurs only sometimes, and a result that a second run did not repeat.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

from gradwatch.harness.agreement.remembered.brief import brief
from gradwatch.harness.agreement.remembered.cache import Batch, Cache, Unusable
from gradwatch.harness.agreement.remembered.imports import Imports
from gradwatch.harness.agreement.remembered.ingredients import NotRemembered, keys
from gradwatch.harness.agreement.remembered.programs import make_room, programs
from gradwatch.harness.agreement.sampling import explained
from gradwatch.harness.agreement.suite import Agreement, Settled
from gradwatch.harness.judging import known
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.workers.pythons.interpreters import Inventory

if TYPE_CHECKING:
    from gradwatch.harness.agreement.remote import Asked

_FLEETING = ("error", "crash", "timeout")

#: What the key of a brief ends with; see `remembered.brief`.
_BRIEF = "-brief"


class Remembered:
    """What earlier runs have judged of what is asked, and what this one judges.

    `dates` says of each op of which something was recalled when the oldest of it was
    judged; `why_not`, why nothing is remembered, where that was not wished. Without a
    cache nothing is read or written; `fresh`, nothing is read. `programs` is where
    JAX keeps what it compiles; "" if nowhere. With `in_brief` only those records
    of an op are taken that a screen needs.
    """

    def __init__(
        self,
        asked: Asked,
        cache: Cache | None = None,
        *,
        fresh: bool = False,
        in_brief: bool = False,
        have: Inventory | None = None,
    ) -> None:
        self.dates: dict[str, str] = {}
        self.why_not = ""
        self.programs = programs(cache.place) if cache and not fresh else ""
        self._asked, self._keys = asked, dict[str, str]()
        self._absent = self._known = frozenset[str]()
        self._batches: dict[str, dict[str, Batch]] = {}
        self._briefs: dict[str, Batch] = {}
        self._brief = _all_of(asked) if in_brief else ""
        self._planned: dict[str, dict[str, list[str]]] = {}
        self._judged: dict[tuple[str, str], Settled] = {}
        self._entries = known.load()
        self._sometimes = [entry for entry in self._entries if entry.sometimes]
        self._cache, self._have = cache, have or Inventory()
        if cache is None:
            return
        self._imports = Imports(cache)
        try:
            self._keys, self._absent = self._now()
            self._known = frozenset() if fresh else cache.known()
        except (NotRemembered, Unusable) as error:
            self.why_not = str(error)

    def _now(self) -> tuple[dict[str, str], frozenset[str]]:
        asked = self._asked
        if {*asked.devices} != {"cpu"}:
            raise NotRemembered("only outcomes on the CPU are remembered")
        what = asked.ops, asked.backends, asked.seed
        known_by, absent = keys(*what, have=self._have, imports=self._imports)
        part = "-sampled" if asked.sampled and explained(asked.backends) else ""
        part += "-first" if part and asked.first_case else ""
        return {op: f"{key}{part}" for op, key in known_by.items()}, absent

    def is_new(self, op: str) -> bool:
        """Whether nothing is remembered of an op as it is now."""
        return self._keys.get(op) not in self._known

    def recalled(self) -> Iterator[Settled]:
        """What is remembered of what is asked; reads it."""
        self._read()
        for op, batch in self._briefs.items():
            self.dates[op] = batch.date
            yield from batch.settled
        for op, batches in self._batches.items():
            for batch in filter(None, map(batches.get, self._names())):
                wanted = {*self._wanted(batch)}
                for settled in batch.settled:
                    if settled.case in wanted:
                        oldest = min(self.dates.get(op, batch.date), batch.date)
                        self.dates[op] = oldest
                        yield settled

    def _read(self) -> None:
        if self._cache is None:
            return
        try:
            for op, key in self._keys.items():
                if one := self._in_brief(key, self._cache):
                    self._briefs[op] = one
                elif key in self._known:
                    self._batches[op] = self._cache.batches(key)
        except Unusable as error:
            self.why_not, self._batches, self._briefs = str(error), {}, {}

    def _in_brief(self, key: str, cache: Cache) -> Batch | None:
        """What decides of an op, where that was asked before and is enough."""
        if not self._brief or f"{key}{_BRIEF}" not in self._known:
            return None
        return cache.batches(f"{key}{_BRIEF}").get(self._brief)

    def whole(self, op: str) -> bool:
        """Whether all that is asked of an op is remembered, as far as it was read."""
        return op in self._briefs or self._is_whole(self._batches.get(op, {}))

    def plan(self, op: str, names: Mapping[str, list[str]]) -> None:
        """Take in the names of an op's trials, by batch."""
        self._planned[op] = {batch: [] for batch in self._names()} | {**names}

    def learn(self, settled: Settled) -> None:
        """Take in a trial that has been judged."""
        self._judged[settled.case, settled.device] = settled

    def keep(self, failed: Collection[str], agreement: Agreement) -> None:
        """Write down what was learnt of the ops that have not failed.

        Nothing, where a file has changed meanwhile: which one was judged is not known.
        """
        if self._cache is None:
            return
        self._imports.keep()
        if self._asked.cases or not self._keys:
            return
        try:
            if self.programs and self._judged:
                make_room(self._cache.place)
            new = self._new(failed) if self._judged else {}
            rows = {self._keys[op]: batches for op, batches in new.items()}
            rows |= self._new_briefs(new, agreement) if self._brief else {}
            if rows:
                self._cache.keep(rows)
        except (NotRemembered, Unusable) as error:
            self.why_not = self.why_not or str(error)

    def _new(self, failed: Collection[str]) -> dict[str, dict[str, Batch]]:
        """What was judged, by op and batch."""
        now, _ = self._now()
        return {
            op: self._written(op, plan)
            for op, plan in self._planned.items()
            if op not in failed and op in now and now[op] == self._keys[op]
        }

    def _new_briefs(
        self, new: Mapping[str, Mapping[str, Batch]], agreement: Agreement
    ) -> dict[str, dict[str, Batch]]:
        """Briefs of the ops of which all is remembered from now on, by their keys."""
        records = defaultdict[str, list[AgreeRecord]](list)
        for one in agreement.records:
            records[one.op].append(one)
        return {
            f"{self._keys[op]}{_BRIEF}": {
                self._brief: self._briefly(op, of_op, agreement)
            }
            for op, of_op in records.items()
            if self._is_whole({**self._batches.get(op, {}), **new.get(op, {})})
        }

    def _briefly(
        self, op: str, records: Sequence[AgreeRecord], agreement: Agreement
    ) -> Batch:
        entries = [entry for entry in self._entries if entry.of(op)]
        missing = {b: why for b, why in agreement.missing.items() if b in self._absent}
        settled = brief(op, records, entries, agreement.pairs.get(op, {}), missing)
        return Batch([], [settled], self.dates.get(op, _today()))

    def _is_whole(self, batches: Mapping[str, Batch]) -> bool:
        """Whether all that is asked of an op is in its batches."""
        asked = [batches.get(name) for name in self._names()]
        return all(
            one and {*self._wanted(one)} <= {settled.case for settled in one.settled}
            for one in asked
        )

    def _written(self, op: str, plan: Mapping[str, list[str]]) -> dict[str, Batch]:
        batches, today = {}, _today()
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


def _all_of(asked: Asked) -> str:
    """The name of what is asked of an op, where that is whole batches; else ""."""
    if asked.cases or asked.first_case:
        return ""
    parts = asked.devices, asked.dtypes, asked.regimes, asked.orders
    return "; ".join(",".join(sorted(part)) for part in parts)


def _today() -> str:
    return datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds")


def batch_name(device: str, dtype: str, regime: str, order: str) -> str:
    """The name of a batch: "cpu float32 normal vjp"."""
    return f"{device} {dtype} {regime} {order}"


def asked_for(case: str, patterns: Collection[str]) -> bool:
    """Whether a case has one of the patterns, or none is asked for."""
    return not patterns or any(known.matches(case, pattern) for pattern in patterns)
