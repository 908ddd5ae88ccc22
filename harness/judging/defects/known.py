"""Known outcomes: defects of a framework that are expected, each with its reason.

They are in one data file, outcomes.json: one entry is one defect, with where it
shows (see `where`). A run fails for a wrong verdict that no entry lists, and also
for an entry that it reaches and whose defect is gone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.judging.defects.where import checked, holds
from gradwatch.harness.judging.judgement import FLUSHED
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.project.verdicts import PASSING, VERDICTS
from gradwatch.impls.catalogue import op_names

if TYPE_CHECKING:  # workers judge too, and have no library for documents
    from gradwatch.harness.project.records import AgreeRecord

#: By op, backend and version of the framework.
Records = Mapping[tuple[str, str, str], Iterable["AgreeRecord"]]

FILE = Path(__file__).with_name("outcomes.json")


@dataclass(frozen=True)
class Known:
    """One defect in one op and order, on one backend and device.

    `backend` and `tensors` may hold the wildcards * and ?. With the op "*" it is a
    property of a platform: declared once for all ops. It covers only the framework
    versions and the device on which it was seen: a GPU has kernels of its own. `where`
    are clauses that hold in a trial that shows it. `sometimes` is the reason why it may
    not show there, such as memory that nobody has written: no run finds it gone.
    """

    op: str
    backend: str
    verdicts: Sequence[str]
    reason: str
    versions: Sequence[str] = ()
    tensors: Sequence[str] = ("*",)
    where: Sequence[str] = ()
    order: str = "vjp"
    device: str = "cpu"
    sometimes: str = ""

    def __post_init__(self) -> None:
        for verdict in self.verdicts:
            if verdict not in VERDICTS or verdict in PASSING:
                raise ValueError(f"known outcome of {self.op}: no defect {verdict!r}")
        if not self.verdicts:
            raise ValueError(f"known outcome of {self.op}: no verdict")
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"known outcome of {self.op}: no device {self.device!r}")
        for clause in self.where:
            checked(clause)

    @property
    def verdict(self) -> str:
        """Its verdicts, in words."""
        return " or ".join(self.verdicts)

    @property
    def tensor(self) -> str:
        """Its tensors, in words."""
        return " or ".join(self.tensors)

    def of(self, op: str) -> bool:
        """Whether it is about an op."""
        return self.op in (op, "*")

    def covers(self, record: AgreeRecord) -> bool:
        """Whether a record is of the op, backend, tensor and version named.

        Whether the defect shows in that trial is another question; see `reaches`.
        """
        return (
            (record.order, record.device) == (self.order, self.device)
            and self.runs(record.op, record.backend, record.framework_version)
            and any(fnmatchcase(record.tensor, one) for one in self.tensors)
        )

    def is_tested(self, records: Mapping[str, Records]) -> bool:
        """Whether it is expected in any of these, which are by op."""
        every = records.values() if self.op == "*" else [records.get(self.op, {})]
        return any(
            any(self.is_expected_in(record) for record in some)
            for of_op in every
            for (op, backend, version), some in of_op.items()
            if self.runs(op, backend, version)
        )

    def is_expected_in(self, record: AgreeRecord) -> bool:
        """Whether a judged record was expected to show it."""
        return record.expected_verdict in self.verdicts and self.covers(record)

    def runs(self, op: str, backend: str, version: str) -> bool:
        """Whether it is about an op on a backend in a version."""
        return (
            self.of(op)
            and version in self.versions
            and fnmatchcase(backend, self.backend)
        )

    def names(self, trial: Trial, backend: str, version: str, tensor: str) -> bool:
        """Whether it is about a tensor that a backend returns in a trial."""
        return (
            self.runs(trial.problem.op.name, backend, version)
            and self.reaches(backend, trial, trial.problem.device)
            and any(fnmatchcase(tensor, one) for one in self.tensors)
        )

    def reaches(self, backend: str, trial: Trial, device: str) -> bool:
        """Whether some version of a backend shows it in a trial of its op.

        Before a worker has started nobody knows which version it will run.
        """
        return (
            (trial.order, device) == (self.order, self.device)
            and fnmatchcase(backend, self.backend)
            and holds(self.where, trial)
        )


class Malformed(ValueError):
    """The data file cannot be read, or an entry is malformed; the message says how."""

    exit_code = 2


def load(path: Path = FILE) -> tuple[Known, ...]:
    """The defects of the data file, each on each of its ops, backends and orders.

    Raises:
        Malformed: An entry is malformed, or the file is damaged or not there.
    """
    stated = entries(path)
    try:
        return tuple(one for place in enumerate(stated) for one in expanded(*place))
    except ValueError as error:
        raise Malformed(f"{path.name}: {error}") from None


def entries(path: Path = FILE) -> list[Any]:
    """The entries of the data file as they stand there.

    Raises:
        Malformed: The file is damaged or not there.
    """
    if path.exists() and not path.is_file():  # a FIFO would be waited for
        raise Malformed(f"{path.name}: not a regular file")
    try:
        stated = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise Malformed(f"{path.name}: nested too deeply") from None
    except OSError as error:
        raise Malformed(f"{path.name}: {error.strerror}") from None
    except ValueError as error:
        raise Malformed(f"{path.name}: {error}") from None
    if not isinstance(stated, list):
        raise Malformed(f"{path.name}: it is no list of entries")
    return stated


#: The fields of an entry, with what goes without saying; None where it is required.
FIELDS: Mapping[str, Any] = {
    "reason": None,
    "backends": None,
    "ops": None,
    "verdicts": None,
    "tensors": ("*",),
    "orders": ("vjp",),
    "devices": ("cpu",),
    "versions": (),
    "where": (),
    "sometimes": "",
}


_LISTS = FIELDS.keys() - {"reason", "sometimes"}


def expanded(number: int, fields: Any) -> Iterator[Known]:
    """An entry on each of its ops, backends, orders and devices.

    Raises:
        ValueError: It is malformed; the message says how.
    """
    if not isinstance(fields, dict):
        raise ValueError(f"entry {number} is no object")
    if unknown := sorted(fields.keys() - FIELDS.keys()):
        raise ValueError(f"entry {number}: no field {unknown[0]!r}")
    given = {**FIELDS, **fields}
    for name, value in given.items():
        if name not in _LISTS:
            if not isinstance(value, str):
                raise ValueError(f"entry {number}: {name} is no text")
        elif not isinstance(value, list | tuple) or not all(
            isinstance(one, str) for one in value
        ):
            raise ValueError(f"entry {number}: {name} is no list of texts")
    lists = {name: tuple(value) for name, value in given.items() if name in _LISTS}
    places = [lists[name] for name in ("ops", "backends", "orders", "devices")]
    for op, backend, order, device in product(*places):
        yield Known(
            op=op,
            backend=backend,
            verdicts=lists["verdicts"],
            reason=given["reason"],
            versions=lists["versions"],
            tensors=lists["tensors"],
            where=lists["where"],
            order=order,
            device=device,
            sometimes=given["sometimes"],
        )


def covered(record: AgreeRecord, known: Iterable[Known]) -> bool:
    """Whether an entry names a record's tensor, whatever its verdict."""
    return any(entry.covers(record) for entry in known)


def expected_verdict(record: AgreeRecord, known: Iterable[Known]) -> str:
    """The expected verdict of a record: that of an entry, or else `agree`.

    `known` are the entries that reach its trial. If several cover the record, the one
    with the record's own verdict counts.
    """
    announced = [verdict for k in known if k.covers(record) for verdict in k.verdicts]
    if record.verdict in announced:
        return record.verdict
    return next(iter(announced), "agree")


def as_expected(record: AgreeRecord) -> bool:
    """Whether a verdict is the expected one.

    An entry may reach many cases, and the defect need not occur in each of them.
    """
    return record.verdict in PASSING or record.verdict == record.expected_verdict


def unexpected(records: Iterable[AgreeRecord]) -> list[AgreeRecord]:
    """Those whose verdict is not the expected one; of many, few have failed."""
    failed = (record for record in records if record.verdict not in PASSING)
    return [record for record in failed if not as_expected(record)]


def tells(record: AgreeRecord) -> bool:
    """Whether a record says anything of a defect: it was judged, and not vacuous."""
    return record.verdict not in ("unsupported", "vacuous")


def gone(records: Sequence[AgreeRecord], known: Iterable[Known]) -> tuple[Known, ...]:
    """Entries that were reached and whose defect occurred nowhere.

    A verdict of `unsupported` or `vacuous` does not test an entry. A property of a
    platform need not show in each op, so only a run of all ops tests it.
    """
    telling: dict[str, dict[tuple[str, str, str], list[AgreeRecord]]] = {}
    showing = defaultdict[tuple[str, str], list["AgreeRecord"]](list)
    for record in records:
        if record.verdict not in PASSING:
            for op in (record.op, "*"):
                showing[op, record.verdict].append(record)
        if tells(record):
            of = (record.op, record.backend, record.framework_version)
            telling.setdefault(record.op, {}).setdefault(of, []).append(record)
    everything = {record.op for record in records} >= set(op_names())
    certain = (k for k in known if not k.sometimes and (everything or k.op != "*"))
    # Few records show a defect, so whether it is still there is asked first.
    absent = (
        k
        for k in certain
        if not any(
            k.is_expected_in(r)
            for verdict in k.verdicts
            for r in showing[k.op, verdict]
        )
    )
    return tuple(k for k in absent if k.is_tested(telling))


# Declared properties of platforms ------------------------------------------------

#: Ops whose subnormal numbers were judged before a declaration counts as tested. Half
#: of all ops have a comparison or a sum on which it shows.
ENOUGH = 10


@dataclass(frozen=True)
class Flushing:
    """A framework that takes subnormal numbers for zero on the CPU, and why.

    The other fields are those by which a known outcome is shown.
    """

    framework: str
    reason: str
    op: str = "every op"
    tensor: str = "every tensor"

    @property
    def backend(self) -> str:
        """The backends that it covers."""
        return f"{self.framework}_*"


def unseen(records: Iterable[AgreeRecord]) -> tuple[Flushing, ...]:
    """Declarations that were tested and showed nowhere: they are no longer true.

    One is tested where subnormal values were judged.
    """
    ops: dict[str, set[str]] = defaultdict(set)
    shown = set()
    for record in records:
        subnormal = record.regime == "subnormal" and record.dtype != "float16"
        if subnormal and tells(record):
            ops[record.framework].add(record.op)
        if record.convention == FLUSHED:
            shown.add(record.framework)
    return tuple(
        Flushing(name, traits_of(name).flushes)
        for name in sorted(ops.keys() - shown)
        if len(ops[name]) >= ENOUGH and traits_of(name).flushes
    )
