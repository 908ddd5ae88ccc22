"""Known outcomes: defects of a framework that are expected, each with its reason.

An entry of outcomes.json is one defect, with clauses where it shows, such as
"isinf(weight)" or "like(case, '*tanh*')". A run fails for a wrong verdict that no entry
lists, and for an entry that it reaches and whose defect is gone. The defects of
drawn.json show in no case of the suite, but in problems that are drawn at random.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from types import CodeType
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct
from msgspec.structs import replace

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.precisions import PRECISIONS, Array
from gradwatch.harness.project import documents
from gradwatch.harness.project.records import AgreeRecord
from gradwatch.harness.project.verdicts import PASSING, VERDICTS
from gradwatch.impls.catalogue import is_ours, op_names

FILE, DRAWN = map(Path(__file__).with_name, ("outcomes.json", "drawn.json"))


class Known(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A defect, as the data file states it, or in one of its places.

    A place is an op, a backend, an order and a device. `backends` and `tensors` may
    hold the wildcards * and ?; the op "*" is a property of a platform. Only `versions`
    and `devices` where it was seen are covered. `where` are clauses that hold in a
    trial that shows it. `sometimes` is the reason why it may not show there, such as
    uninitialised memory: no run finds it gone.
    """

    reason: str
    ops: tuple[str, ...]
    backends: tuple[str, ...]
    verdicts: Annotated[tuple[str, ...], Meta(min_length=1)]
    versions: tuple[str, ...] = ()
    tensors: tuple[str, ...] = ("*",)
    where: tuple[str, ...] = ()
    orders: tuple[str, ...] = ("vjp",)
    devices: tuple[Literal["cpu", "cuda"], ...] = ("cpu",)
    sometimes: str = ""

    def __post_init__(self) -> None:
        for verdict in self.verdicts:
            if verdict not in VERDICTS or verdict in PASSING:
                raise ValueError(f"no defect {verdict!r}")
        for clause in self.where:
            compiled(clause)

    def __str__(self) -> str:
        said = (self.ops, self.backends, self.verdicts)
        return f"{' '.join(map(' or '.join, said))}: {self.reason}"

    def of(self, op: str) -> bool:
        """Whether the defect is one of an op."""
        return op in self.ops or "*" in self.ops

    def covers(self, record: AgreeRecord) -> bool:
        """Whether a record is of a place, tensor and version named; see `reaches`."""
        return (
            self._is_at(record.op, record.backend, record.order, record.device)
            and record.framework_version in self.versions
            and like(record.tensor, *self.tensors)
        )

    def is_expected_in(self, record: AgreeRecord) -> bool:
        """Whether a judged record was expected to show it."""
        return record.expected_verdict in self.verdicts and self.covers(record)

    def names(self, trial: Trial, backend: str, version: str, tensor: str) -> bool:
        """Whether it is about a tensor that a backend returns in a trial."""
        return (
            version in self.versions
            and self.reaches(backend, trial, trial.problem.device)
            and like(tensor, *self.tensors)
        )

    def reaches(self, backend: str, trial: Trial, device: str) -> bool:
        """Whether some version of a backend shows it in a trial.

        The version is not known before a worker has started. A user's own op may have
        the name of one of ours, and none of its defects.
        """
        place = trial.problem.op.name, backend, trial.order, device
        meant = self._is_at(*place) and ("*" in self.ops or is_ours(trial.op))
        return meant and holds(self.where, trial)

    def _is_at(self, op: str, backend: str, order: str, device: str) -> bool:
        there = order in self.orders and device in self.devices
        return there and self.of(op) and like(backend, *self.backends)


def load(path: Path = FILE) -> tuple[Known, ...]:
    """The defects of the data file, each in each of its places.

    Raises:
        Unreadable: An entry is malformed, or the file is damaged or not there.
    """
    return tuple(
        replace(one, ops=(op,), backends=(backend,), orders=(order,), devices=(device,))
        for one in documents.load(path, list[Known])
        for op, backend, order, device in product(
            one.ops, one.backends, one.orders, one.devices
        )
    )


def expect(
    judged: Mapping[str, Sequence[AgreeRecord]],
    entries: Iterable[Known],
    trial: Trial,
    device: str,
) -> None:
    """Say in the records of a trial, by backend, which verdicts are expected."""
    of_op = [entry for entry in entries if entry.of(trial.problem.op.name)]
    for backend, records in judged.items():
        reaching = [one for one in of_op if one.reaches(backend, trial, device)]
        for record in records:
            record.expected_verdict = expected_verdict(record, reaching)


def expected_verdict(record: AgreeRecord, known: Iterable[Known]) -> str:
    """The verdict that the entries of a record's trial announce, or else `agree`.

    If several cover the record, the one with the record's own verdict counts.
    """
    announced = [verdict for k in known if k.covers(record) for verdict in k.verdicts]
    if record.verdict in announced:
        return record.verdict
    return next(iter(announced), "agree")


def as_expected(record: AgreeRecord) -> bool:
    """Whether a verdict is the expected one: a defect need not occur in each case."""
    return record.verdict in PASSING or record.verdict == record.expected_verdict


def unexpected(records: Iterable[AgreeRecord]) -> list[AgreeRecord]:
    """The records whose verdict is not the expected one."""
    return [record for record in records if not as_expected(record)]


def gone(records: Sequence[AgreeRecord], known: Iterable[Known]) -> tuple[Known, ...]:
    """Entries that were reached and whose defect occurred nowhere.

    A verdict of `unsupported` or `vacuous` does not test an entry. A property of a
    platform need not show in each op, so only a run of all ops tests it.
    """
    announced = [r for r in records if r.expected_verdict not in PASSING]
    everything = {record.op for record in records} >= set(op_names())
    absent = []
    for one in known:
        if one.sometimes or ("*" in one.ops and not everything):
            continue
        of_it = [record for record in announced if one.is_expected_in(record)]
        shown = any(record.verdict in one.verdicts for record in of_it)
        tested = any(r.verdict not in ("unsupported", "vacuous") for r in of_it)
        if tested and not shown:
            absent.append(one)
    return tuple(absent)


def holds(clauses: Sequence[str], trial: Trial) -> bool:
    """Whether all clauses hold in a trial."""
    names = names_in(trial) if clauses else {}
    with np.errstate(all="ignore"):
        return all(np.any(eval(compiled(one), names)) for one in clauses)


@functools.cache
def compiled(clause: str) -> CodeType:
    """The code of a clause; ValueError if it is no expression."""
    try:
        return compile(clause, "where", "eval")
    except (SyntaxError, ValueError):
        raise ValueError(f"no expression: {clause!r}") from None


def names_in(trial: Trial) -> dict[str, Any]:
    """The names that clauses may use: arrays in float64, `x` the first floating one."""
    problem, precision = trial.problem, PRECISIONS[trial.problem.dtype]
    given = {
        name: a.astype(np.float64) if a.dtype.kind == "f" else a
        for name, a in problem.inputs.items()
    }
    floating = [given[n] for n, a in problem.inputs.items() if a.dtype.kind == "f"]
    x = floating[0]
    dys, tangents = (
        [a.astype(np.float64) for a in arrays if a is not None]
        for arrays in (problem.cotangents, problem.tangents.values())
    )

    def some(condition: Callable[[Array], Array]) -> bool:
        """Whether the condition holds for an element of a floating input."""
        return any(condition(a).any() for a in floating)

    def products(*others: Array) -> list[Array]:
        """Products of x with arrays of its shape, or of shape ()."""
        return [x * a for a in others if a.shape in (x.shape, ())]

    return {
        **_FUNCTIONS,
        **problem.attributes,
        **given,
        "x": x,
        "dys": dys,
        "tangents": tangents,
        "empty": problem.empty,
        "regime": trial.regime,
        "case": trial.case,
        "layout": trial.layout,
        "dtype": problem.dtype,
        "name": trial.name,
        "some": some,
        "products": products,
        "smallest": precision.smallest,
        "largest": precision.largest,
        "roundoff": precision.roundoff,
    }


def like(name: str, *patterns: str) -> bool:
    """Whether a name matches a pattern, in which brackets are plain characters."""
    plain = str.maketrans("[]", "()")
    name, *patterns_ = (text.translate(plain) for text in (name, *patterns))
    return any(fnmatchcase(name, one) for one in patterns_)


_FUNCTIONS = {**vars(np), "like": like, "__builtins__": {}}
