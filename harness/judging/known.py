"""Known outcomes: defects of a framework that are expected, each with its reason.

They are in one data file, known_outcomes.json. A run fails for a wrong verdict that no
entry lists, and also for an entry whose defect is gone.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradwatch.harness.project.verdicts import PASSING, VERDICTS
from gradwatch.impls.catalogue import op_names

if TYPE_CHECKING:  # workers judge too, and have no library for documents
    from gradwatch.harness.project.records import AgreeRecord

#: By op, backend and version of the framework.
Records = Mapping[tuple[str, str, str], Iterable["AgreeRecord"]]

FILE = Path(__file__).with_name("known_outcomes.json")

#: Verdicts on a case that has ended its worker.
FATAL = ("crash", "timeout")


@dataclass(frozen=True)
class Known:
    """One defect. `backend`, `case` and `tensor` may hold the wildcards * and ?.

    With the op "*" it is a property of a platform, such as flushing of subnormal
    numbers: declared once, with the cases in which it shows, for all ops.

    It covers only the framework versions and the device on which it was seen: a GPU has
    kernels of its own. `sometimes` marks one
    that depends on what lay in memory, or on the numbers that a seed draws: a run
    without it does not show that it is gone.
    """

    op: str
    backend: str
    case: str
    tensor: str
    verdict: str
    reason: str
    versions: Sequence[str] = field(default_factory=tuple)
    sometimes: bool = False
    order: str = "vjp"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS or self.verdict in PASSING:
            raise ValueError(f"known outcome of {self.op}: no defect {self.verdict!r}")
        if self.device not in ("cpu", "cuda"):
            raise ValueError(f"known outcome of {self.op}: no device {self.device!r}")

    def of(self, op: str) -> bool:
        """Whether it is about an op."""
        return self.op in (op, "*")

    def covers(self, record: AgreeRecord) -> bool:
        """Whether a record is of the op, backend, case, tensor and version named."""
        alike = (record.order, record.device) == (self.order, self.device)
        return alike and self.names(
            record.op,
            record.backend,
            record.framework_version,
            record.case,
            record.tensor,
        )

    def is_tested(self, records: Mapping[str, Records]) -> bool:
        """Whether it covers any of these, which are by op."""
        every = records.values() if self.op == "*" else [records.get(self.op, {})]
        return any(
            any(map(self.covers, some))
            for of_op in every
            for (op, backend, version), some in of_op.items()
            if self.runs(op, backend, version)
        )

    def runs(self, op: str, backend: str, version: str) -> bool:
        """Whether it is about an op on a backend in a version."""
        return (
            self.of(op)
            and version in self.versions
            and fnmatchcase(backend, self.backend)
        )

    def reaches(self, backend: str, case: str, order: str, device: str) -> bool:
        """Whether some version of a backend shows it in a case.

        Before a worker has started nobody knows which version it will run.
        """
        return (
            (order, device) == (self.order, self.device)
            and fnmatchcase(backend, self.backend)
            and matches(case, self.case)
        )

    def names(
        self, op: str, backend: str, version: str, case: str, tensor: str
    ) -> bool:
        """Whether it covers that tensor."""
        return (
            self.runs(op, backend, version)
            and matches(case, self.case)
            and fnmatchcase(tensor, self.tensor)
        )


def matches(case: str, pattern: str) -> bool:
    """Whether a case's name has a pattern, whose brackets are no character class."""
    return fnmatchcase(_literal(case), _literal(pattern))


def _literal(text: str) -> str:
    return text.replace("[", "(").replace("]", ")")


class Malformed(ValueError):
    """The data file cannot be read, or an entry is malformed; the message says how."""


def load(path: Path = FILE) -> tuple[Known, ...]:
    """The entries of the data file.

    Raises:
        Malformed: An entry is malformed, or the file is damaged or not there.
    """
    if path.exists() and not path.is_file():  # a FIFO would be waited for
        raise Malformed(f"{path.name}: not a regular file")
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(entries, list):
            raise ValueError("it is no list of entries")
        return tuple(_entry(number, fields) for number, fields in enumerate(entries))
    except RecursionError:
        raise Malformed(f"{path.name}: nested too deeply") from None
    except OSError as error:
        raise Malformed(f"{path.name}: {error.strerror}") from None
    except ValueError as error:
        raise Malformed(f"{path.name}: {error}") from None


def _entry(number: int, fields: Any) -> Known:
    if not isinstance(fields, dict):
        raise ValueError(f"entry {number} is no object")
    versions = fields.get("versions", [])
    sometimes = fields.get("sometimes", False)
    others = ("versions", "sometimes")
    texts = {name: value for name, value in fields.items() if name not in others}
    if not isinstance(sometimes, bool):
        raise ValueError(f"entry {number}: sometimes is neither true nor false")
    if not isinstance(versions, list) or not all(isinstance(v, str) for v in versions):
        raise ValueError(f"entry {number}: versions is no list of texts")
    for name, value in texts.items():
        if not isinstance(value, str):
            raise ValueError(f"entry {number}: {name} is no text")
    try:
        return Known(**fields)
    except TypeError as error:  # a field is missing, or is none
        raise ValueError(f"entry {number}: {error}") from None


def covered(record: AgreeRecord, known: Iterable[Known]) -> bool:
    """Whether an entry names a record's tensor, whatever its verdict."""
    return any(entry.covers(record) for entry in known)


def expected_verdict(record: AgreeRecord, known: Iterable[Known]) -> str:
    """The expected verdict of a record: that of an entry, or else `agree`.

    If several entries cover it, the one with the record's own verdict counts.
    """
    announced = [k.verdict for k in known if k.covers(record)]
    if record.verdict in announced:
        return record.verdict
    return next(iter(announced), "agree")


def as_expected(record: AgreeRecord) -> bool:
    """Whether a verdict is the expected one.

    An entry may cover many cases, and the defect need not occur in each of them.
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
    """Entries that were tested and whose defect occurred nowhere.

    A verdict of `unsupported` or `vacuous` does not test an entry, and no run tests one
    whose defect occurs only sometimes. A property of a platform need not show in each
    op, so only a run of all ops tests it.
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
    absent = (k for k in certain if not any(map(k.covers, showing[k.op, k.verdict])))
    return tuple(k for k in absent if k.is_tested(telling))
