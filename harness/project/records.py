"""The types of all records and summaries.

A document is `{"schema": 1, "environment": ..., "summary": ..., "records": [...]}`; a
`Kind` has the types of the last two. A field that older documents lack has a default;
an unknown one is ignored. docs/schema.json is generated from here.
Numbers that are not finite are null in JSON and None here. Times are in seconds.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Literal, TypeVar

from msgspec import Meta, Struct, field

from gradwatch.harness.project.verdicts import NUMBERLESS, Verdict

Phase = Literal["forward", "backward"]
Positive = Annotated[float, Meta(gt=0)]
Date = Annotated[str, Meta(pattern=r"^(\d{4}-\d\d-\d\d(T[\d:.]+(Z|[+-][\d:]+)?)?)?$")]
Number = float | None  # None: not finite, or not known


def finite(value: float) -> Number:
    """A number of a record: None if it is not finite."""
    return float(value) if math.isfinite(value) else None


class Environment(Struct, kw_only=True):
    """The machine, versions, commit and date of a document; no path, no host name.

    dirty: whether files differed from the commit. date: ISO 8601.
    """

    machine: str = "unnamed"
    cpu: str = ""
    cores: int = 0
    system: str = ""
    python: str = ""
    commit: str = ""
    dirty: bool = False
    date: Date = ""


class CaseRecord(Struct, kw_only=True):
    """A result for a case of an op, on a device and in a precision.

    date, commit: where they are not its document's.
    """

    op: str
    case: str
    device: str
    dtype: str
    date: Date = ""
    commit: str = ""


# Agreement ------------------------------------------------------------------------


class AgreeRecord(CaseRecord, kw_only=True):
    """The verdict on one tensor of one case on one backend.

    tensor: "dx" for the gradient of x, the name of an output or state, "all" for a run
    without any. ratio: the largest error in rounding radii; limit: the allowed one;
    ratio and radius have six digits. got, expected, radius: at worst_index;
    radius_kind says whether the radius is the bound or the spread, or of the tensor as
    a whole (norm, projection). compute: the widest precision of intermediate values
    with which the tensor is consistent. vacuous: the share of elements that the
    comparison cannot judge. message: the verdict in a sentence, empty where the tensor
    agrees. diagnosis: the mistake in the right backward that results in this tensor,
    where one is known, for unexpected verdicts. order: vjp (the gradient), jvp or
    hvp, whose tensors are called jvp.y, hvp.dx, hvp.ddy (harness/judging/orders.py).
    flags: the case's attributes that are true or false ("training", "not-training"),
    and "empty".
    """

    regime: str
    backend: str
    framework: str
    framework_version: str
    tensor: str
    verdict: Verdict
    expected_verdict: str = "agree"
    ratio: Number = None
    limit: Number = None
    radius: Number = None
    radius_kind: str = "bound"
    compute: str = ""
    got: Number = None
    expected: Number = None
    worst_index: list[int] = []
    vacuous: Number = 0.0
    convention: str = ""
    message: str = ""
    diagnosis: str = ""
    flags: list[str] = []
    order: str = "vjp"

    @property
    def distance(self) -> Number:
        """The ratio: inf where it is not finite, None where nothing was compared."""
        if self.verdict in NUMBERLESS:
            return None
        return math.inf if self.ratio is None else self.ratio

    @property
    def story(self) -> str:
        """The message, then the diagnosis."""
        named = f"diagnosis: {self.diagnosis}" if self.diagnosis else ""
        return "; ".join(filter(None, (self.message, named)))

    @property
    def listed(self) -> bool:
        """Whether it shows a known defect."""
        return self.verdict == self.expected_verdict != "agree"


class AgreeSummary(Struct, kw_only=True):
    """Counts of a run of the agreement suite.

    missing: why a backend did not run. sampled: the part judged of a backend that was
    judged in part, and why. pairs: for each op and pair of backends the largest |a - b|
    over the sum of both radii; null is infinite. unrepeatable: cases of which a second
    run was not bitwise equal. machines: the hosts that judged, if not this machine.
    """

    judged: int = 0
    verdicts: dict[str, int] = {}
    vacuous_share: float = 0.0
    unexpected: int = 0
    gone: list[str] = []
    missing: dict[str, str] = {}
    sampled: dict[str, str] = {}
    unrepeatable: list[str] = []
    pairs: dict[str, dict[str, dict[str, Number]]] = {}
    machines: list[str] = []
    seconds: Number = None
    seed: int | None = None


class CheckRecord(Struct, kw_only=True):
    """One function that was checked, by `gradwatch check` or in a test.

    name: of the function and its reference. test: the name of the test, or "". told:
    the outcome in a line; message: of the worst tensor, where it does not pass.
    tensors: how many judgements. date, commit: where they are not its document's.
    """

    name: str
    passes: bool
    told: str
    message: str = ""
    test: str = ""
    device: str = "cpu"
    tensors: int = 0
    date: Date = ""
    commit: str = ""


class FindingRecord(Struct, kw_only=True):
    """A disagreement that the fuzzer found and shrank: a line of an index of findings.

    record: of the worst tensor. part: the first that fails: forward, backward, state,
    or run for all. shapes: of the inputs. script: the file that reproduces it.
    """

    record: AgreeRecord
    part: str = ""
    shapes: dict[str, list[int]] = {}
    seed: int = 0
    script: str = ""

    @property
    def place(self) -> str:
        """The part, precision and flags in which it fails, as part of its name."""
        record = self.record
        rounds = record.verdict == "nonfinite" or bool(record.radius)
        dtype = record.dtype if rounds and record.tensor != "all" else ""
        return "-".join(filter(None, [self.part, dtype, *record.flags]))

    @property
    def id(self) -> str:
        """The name of its site: two with equal ones are the same finding."""
        record = self.record
        name = f"{record.op}-{record.backend}-{record.verdict}-{self.place}"
        return re.sub(r"[^A-Za-z0-9_]+", "-", name).strip("-")

    @property
    def elements(self) -> int:
        """The number of elements of the largest input."""
        return max(map(math.prod, self.shapes.values()), default=0)


class FuzzSummary(Struct, kw_only=True):
    """Counts of a run of the fuzzer; failed: by op, why its page could not be run."""

    tried: int = 0
    findings: int = 0
    seed: int = 0
    failed: dict[str, str] = {}


# Times ----------------------------------------------------------------------------


class TimeRecord(CaseRecord, kw_only=True):
    """The time of one phase on one backend: the median with its 95 % interval.

    samples: seconds per call, evenly spread over the `taken` ones. faults: page faults
    per call. first: the first forward and backward. bytes, flops: the least that the
    formula needs. doubts: why the figure may mislead.
    """

    backend: str
    framework: str = ""
    framework_version: str = ""
    threads: int | None = None
    phase: Phase
    seconds: Positive
    low: Positive
    high: Positive
    samples: list[float] = []
    taken: int | None = None
    faults: Number = None
    doubts: list[str] = []
    first: Number = None
    bytes: int | None = None
    flops: int | None = None


class TimeSummary(Struct, kw_only=True):
    """untimed: why an "op case dtype backend" has no time."""

    timed: int = 0
    untimed: dict[str, str] = {}


class CompareRecord(CaseRecord, kw_only=True):
    """The time of b over that of a, with its interval and the noise of either side.

    pairs: of fresh processes, 1 for one process. backend: where both sides are commits
    or versions. short: why it is not resolved. seconds: of the comparison.
    """

    a: str
    b: str
    backend: str = ""
    phase: Phase
    ratio: Positive
    low: Positive
    high: Positive
    level: Number = None
    verdict: str
    pairs: int = 1
    noise: Number = None
    noise_low: Number = None
    noise_high: Number = None
    a_seconds: Number = None
    b_seconds: Number = None
    short: str = ""
    seconds: Number = None


class CompareSummary(Struct, kw_only=True):
    """The number of verdicts of each kind; failed: comparisons that were impossible."""

    faster: int = 0
    slower: int = 0
    no_difference: int = field(default=0, name="no difference")
    not_resolved: int = field(default=0, name="not resolved")
    failed: list[str] = []


# The judges tested by planted errors -----------------------------------------------

Shares = dict[str, float]  # by judge


class PlantedRecord(Struct, kw_only=True):
    """One planted error in one precision: its runs, and how many each judge caught.

    silent: runs that no comparison could judge. counted: those in which the error
    exceeds the unit roundoff. asked, caught: how many of these, by judge. diagnosed,
    named: how many had a diagnosis, and how many the right one.
    """

    op: str
    mistake: str
    dtype: str
    runs: int = 0
    silent: int = 0
    counted: int = 0
    asked: dict[str, int] = {}
    caught: dict[str, int] = {}
    diagnosed: int = 0
    named: int = 0


class Detection(Struct, kw_only=True):
    """The share of planted errors that each judge catches, by precision and effect."""

    dtype: str
    effect: str
    runs: int
    caught: Shares


class CaughtMistakes(Struct, kw_only=True):
    """The runs of a mistake, or of a kind of them, and how many were caught, or named.

    A run of a double backward counts if a tensor moves by 1e-6 or more.
    """

    mistake: str
    runs: int
    caught: int


class FalseAlarms(Struct, kw_only=True):
    """The share of a precision's right tensors that each judge rejects."""

    dtype: str
    tensors: int
    accused: Shares


class Accused(Struct, kw_only=True):
    """A right tensor that the judge rejects."""

    case: str
    backend: str
    tensor: str
    ratio: Number


class Requirement(Struct):
    """A requirement on the judge, the figure found, and whether it is met."""

    required: str
    found: str
    met: bool


class SelftestSummary(Struct, kw_only=True):
    """The tables of a selftest; `missing` says why a backend took no part."""

    planted: int = 0
    ops: int = 0
    runs: int = 0
    counted: int = 0
    detection: list[Detection] = []
    second_order: list[CaughtMistakes] = []
    named: list[CaughtMistakes] = []
    false_alarms: list[FalseAlarms] = []
    accused: list[Accused] = []
    requirements: list[Requirement] = []
    missing: dict[str, str] = {}
    seconds: Number = None
    seed: int | None = None


class NoSummary(Struct):
    """The empty summary of a document without one."""


# The history -----------------------------------------------------------------------


AlertKind = Literal["step", "drift", "creep"]
AlertState = Literal["confirmed", "suspected", "cleared", "accepted"]


class AlertRecord(Struct, kw_only=True):
    """A series that has changed its level; see docs/watch.md.

    range: from the newest measured commit at the old level to the first at the new.
    candidates: the number of commits that may be the cause. low, high: the 95 %
    interval of relative_change. why: the reason for state. fails: whether the run is
    not as expected.
    """

    series: str
    machine: str
    environment: str
    op: str
    backend: str
    metric: str
    unit: str
    kind: AlertKind
    commit: str
    subject: str = ""
    range: str
    candidates: int
    relative_change: Number
    low: Number
    high: Number
    confidence: Number
    worse: bool
    state: AlertState
    suspected: bool
    fails: bool
    why: str = ""
    repro: str = ""


class WatchSummary(Struct, kw_only=True):
    """reference: the release that changes are counted from. states: alerts of each.

    warnings: a line for each series or file that could not be examined.
    """

    series: int = 0
    reference: str = ""
    failing: int = 0
    states: dict[str, int] = {}
    warnings: list[str] = []


class ConfirmationRecord(Struct):
    """A comparison of two commits: key names series and commits; null is infinite."""

    key: str
    ratio: Positive | None
    low: Positive | None
    high: Positive | None


# A night ---------------------------------------------------------------------------


class Problem(Struct, frozen=True):
    """A result of a night that is not as expected.

    what: the tensor, the metric or the like. told: a line about it. new: whether the
    night before lacked it; two are the same if all fields but told and new are equal.
    """

    part: str
    op: str
    backend: str
    what: str
    told: str
    new: bool = False

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The fields that identify the same problem on another night."""
        return self.part, self.op, self.backend, self.what


PartState = Literal["passed", "failed", "broken", "skipped"]


class PartRecord(Struct, frozen=True):
    """The end of a part of a night, and its seconds; "broken" is one that raised."""

    name: str
    state: PartState
    told: str
    seconds: float


class NightlySummary(Struct, kw_only=True):
    """The parts of a night; the numbers of new and known problems; those gone."""

    parts: list[PartRecord] = []
    new: int = 0
    known: int = 0
    gone: list[Problem] = []


# Kinds -----------------------------------------------------------------------------

Record = TypeVar("Record", bound=Struct)
Summary = TypeVar("Summary", bound=Struct)


@dataclass(frozen=True)
class Kind(Generic[Record, Summary]):
    """A kind of document: the command that writes it, and the types in it.

    key: a newer record replaces an older one in results/latest that has equal fields
    of these names; without any, a newer document replaces the older one.
    """

    name: str
    record: type[Record]
    summary: type[Summary]
    key: tuple[str, ...] = ()


_CASE = ("op", "case", "backend", "device")

AGREE = Kind("agree", AgreeRecord, AgreeSummary, (*_CASE, "order"))
CHECK = Kind("check", CheckRecord, NoSummary, ("test", "name", "device"))
FUZZ = Kind("fuzz", FindingRecord, FuzzSummary)
TIME = Kind("time", TimeRecord, TimeSummary, (*_CASE, "dtype"))
_COMPARED = ("a", "b", *_CASE, "dtype", "phase")
COMPARE = Kind("compare", CompareRecord, CompareSummary, _COMPARED)
SELFTEST = Kind("selftest", PlantedRecord, SelftestSummary)
WATCH = Kind("watch", AlertRecord, WatchSummary)
CONFIRMATIONS = Kind("confirmations", ConfirmationRecord, NoSummary)
NIGHTLY = Kind("nightly", Problem, NightlySummary)
KINDS: tuple[Kind[Any, Any], ...] = (
    *(AGREE, CHECK, FUZZ, TIME, COMPARE, SELFTEST),
    *(WATCH, CONFIRMATIONS, NIGHTLY),
)
