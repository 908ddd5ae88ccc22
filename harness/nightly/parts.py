"""The parts of a nightly run, in the order in which they run."""

from __future__ import annotations

import datetime
import importlib.util
import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path

from harness.agreement import store
from harness.agreement.output import Judged
from harness.agreement.remembered.outcomes import Remembered
from harness.agreement.remote import Asked, judge, judged
from harness.agreement.suite import Agreement, gone
from harness.history import asv_results
from harness.judging import known
from harness.judging.orders import SECOND
from harness.nightly import opinfo
from harness.nightly.journal import guarded
from harness.nightly.model import Night, Part, Result
from harness.nightly.process import child
from harness.project import documents, git
from harness.project.paths import PROJECT, ROOT
from harness.project.records import (
    AGREE,
    FUZZ,
    SELFTEST,
    AgreeRecord,
    FindingRecord,
    Problem,
)
from harness.project.verdicts import PASSING
from harness.watch.alerts import Alert, backend_of, size
from harness.watch.survey import survey, this_machine
from harness.workers.interpreters import Installed, installed
from harness.workers.isolated import Isolated
from impls.catalogue import framework_of, op_names

_COMMANDS = f"{str(__package__).rpartition('.')[0]}.commands"

CAMPAIGN = "tests.faults"  # docs/reliability.md
FAULTS = 60  # of each kind some, in less than a minute

DTYPES = ("float32", "float64")  # those of `gradwatch agree`
#: Frameworks whose defects of second order are all listed.
GONE_THROUGH = ("numpy", "torch", "autograd", "jax")


# Agreement ----------------------------------------------------------------------


def agreement(night: Night) -> Result:
    """Judge every op on every backend in all regimes; the journal keeps each op."""
    have = lru_cache(_installed)  # asked once a night, not for each op
    with Isolated(judge) as child:
        read = partial(documents.read_whole, kind=AGREE)
        pieces = [
            night.journal.once(
                f"agree-{op}", partial(_judged, night, op, child, have), read
            )
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


def _installed(frameworks: tuple[str, ...]) -> Mapping[str, Installed]:
    return installed(list(frameworks))


def _judged(
    night: Night,
    op: str,
    child: Isolated,
    have: Callable[[tuple[str, ...]], Mapping[str, Installed]],
) -> Judged:
    asked = Asked(
        ops=[op],
        backends=night.backends,
        dtypes=DTYPES,
        seed=night.seed,
        jobs=night.jobs,
        sampled=True,
    )
    remembered = Remembered(asked, night.cache, have=lambda names: have(tuple(names)))
    agreed = judged(asked, child, remembered=remembered)
    return documents.document(agreed.records, agreed.summary())


def second_orders(night: Night) -> Result:
    """Judge forward mode and the double backward of a share of the ops, by the date."""
    turn = datetime.date.today().toordinal() % opinfo.SHARES
    asked = Asked(
        ops=night.ops[turn :: opinfo.SHARES],
        backends=[b for b in night.backends if framework_of(b) in GONE_THROUGH],
        dtypes=DTYPES,
        orders=SECOND,
        seed=night.seed,
        jobs=night.jobs,
        sampled=True,
    )
    if not asked.ops:
        return Result("", skipped="none of these ops has its turn")
    with Isolated(judge) as child:
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
    """What has no ratio at all, such as a crash, is worst."""
    return math.inf if record.distance is None else record.distance


def _gone(agreed: Agreement) -> list[Problem]:
    return [
        Problem("agree", k.op, k.backend, f"{k.tensor} known defect is gone", k.reason)
        for k in agreed.gone
    ]


# Times --------------------------------------------------------------------------


def times(night: Night) -> Result:
    """Measure the commit for the history, with asv; skipped if files are changed."""
    changed = git.changed_files(night.root)
    if changed:
        some = ", ".join(changed[:3])
        why = f"{len(changed)} files differ from the commit ({some})"
        return Result("", skipped=f"{why}: nothing goes into the history")
    folder = night.results / "asv"
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder.name}: the results folder cannot be written")
    commit = git.commit_of("HEAD", night.root)
    ops = "|".join(night.ops)
    call = ["-m", "asv", "run", "--skip-existing"]
    call += ["--bench", rf"^bench_(speed|accuracy)[.]({ops})[.]", "HEAD^!"]
    safe = night.folder / "parts" / "asv-copies"
    with guarded(lambda: _written(folder, commit), safe):
        code, tail = child(night, "time", call)
    machine = this_machine(night.results)
    entries = [
        series.at(commit)
        for series in asv_results.read(folder, git.commits(night.root), [])
        if series.machine == machine
    ]
    states = Counter(entry.state for entry in entries if entry)
    line = f"{states['measured']:,} figures of {commit[:10]}, {states['failed']} failed"
    problems = []
    if code or not states["measured"]:
        told_why = tail or "nothing was measured"
        problems = [Problem("time", "", "", "asv run", told_why)]
    return Result(line, problems)


def _written(folder: Path, commit: str) -> list[Path]:
    """The files that asv can write while it measures a commit."""
    own = folder.glob(f"*/{commit[:8]}-*.json")
    return [*own, *folder.glob("*/machine.json"), *folder.glob("benchmarks.json")]


# The history --------------------------------------------------------------------


def watch(night: Night) -> Result:
    """Search the history for changes; measure again what got worse, as time allows."""
    end = time.monotonic() + night.share
    surveyed = survey(
        night.results,
        confirming=True,
        enough=lambda: time.monotonic() > end,
        root=night.root,
    )
    documents.write(surveyed.document(), night.journal.path("watch"))
    problems = [
        Problem("watch", *place, _detail(alerts, night.root))
        for place, alerts in _by_place(surveyed.failing).items()
    ]
    states = Counter(a.state for a in surveyed.alerts if a.worse)
    better = sum(not a.worse and a.state != "accepted" for a in surveyed.alerts)
    line = f"{surveyed.series:,} series, {len(surveyed.failing)} worse"
    line += f", {states['suspected']} suspected, {better} better"
    return Result(line, problems, notes=surveyed.warnings)


def _by_place(alerts: Sequence[Alert]) -> dict[tuple[str, str, str], list[Alert]]:
    """Alerts by op, backend and kind; one change can affect several dtypes at once."""
    several = defaultdict(list)
    for alert in alerts:
        what = f"{alert.series.metric} {alert.kind} {alert.where}"
        several[alert.series.op, backend_of(alert.series), what].append(alert)
    return several


def _detail(alerts: Sequence[Alert], root: Path) -> str:
    """The worst alert in full, and the number of others."""
    alert, *others = alerts
    line = f"{alert.series.name} {size(alert.relative_change)}"
    line += f" ({size(alert.low)} to {size(alert.high)}), {alert.why}"
    if alert.candidates == 1:
        line += f"; {git.subject(alert.commit, root)}"
    return f"{line} (and {len(others)} more series)" if others else line


# Other commands -----------------------------------------------------------------


def selftest(night: Night) -> Result:
    """Plant wrong backwards and check that the judge rejects them.

    That is a matter of the judge and of our own ops: in a project with ops of its own
    it is skipped.
    """
    if PROJECT.table:
        return Result(
            "", skipped="it tests the judge, with the ops of gradwatch itself"
        )
    options = ["--quick", "--jobs", str(night.jobs), "--seed", str(night.seed)]
    result = _command(night, "selftest", [*options, *_ops(night)])
    file = night.journal.path("selftest")
    if result.skipped or not file.exists():
        return result
    summary = documents.read(file, SELFTEST).summary
    unmet = [
        Problem("selftest", "", "", one.required, one.found)
        for one in summary.requirements
        if not one.met
    ]
    line = f"{summary.planted:,} planted errors in {summary.runs:,} runs"
    return Result(line, unmet or result.problems)


def fuzz(night: Night) -> Result:
    """Search for failures with the fuzzer, for a share of the budget.

    Findings are written to findings/ in the output folder. A finding is a problem if it
    is no known outcome and results/findings has none for that op and backend: a
    recorded defect shows up in other tensors and verdicts every night.
    """
    folder = night.folder / "findings"
    options = ["--budget", f"{night.share:.0f}", "--seed", str(night.seed)]
    options += ["--folder", str(folder), *_ops(night), *_backends(night)]
    result = _command(night, "fuzz", options)
    if result.skipped or result.problems:
        return result
    content = documents.read(night.journal.path("fuzz"), FUZZ)
    listed = known.load()
    kept, troubles = store.load(night.results / "findings")
    recorded = {(finding.site.op, finding.site.backend) for finding in kept}
    fresh = [
        finding
        for finding in content.records
        if finding.verdict not in PASSING
        and (finding.op, finding.backend) not in recorded
        and known.expected_verdict(finding.record, listed) != finding.verdict
    ]
    line = f"{content.summary.tried:,} trials, {len(fresh)} of"
    line += f" {len(content.records)} findings are new"
    return Result(line, [_new_finding(finding) for finding in fresh], notes=troubles)


def _new_finding(finding: FindingRecord) -> Problem:
    return Problem(
        "fuzz",
        finding.op,
        finding.backend,
        f"{finding.record.tensor} {finding.verdict} ({finding.place})",
        f"findings/{finding.id}/repro.py: {finding.record.message}",
    )


def dashboard(night: Night) -> Result:
    """Write the dashboard from the history and this night's verdicts."""
    target = night.folder / "dashboard"
    view = _view(night)
    call = ["-m", "gradwatch", "report"]
    call += ["--results", str(view), "--output", str(target)]
    code, tail = child(night, "report", call)
    if code:
        problem = Problem("report", "", "", f"exit code {code}", tail)
        return Result("no dashboard", [problem])
    return Result(f"{target.name}/index.html")


def _view(night: Night) -> Path:
    """The results folder, as links, with this night's verdicts as the latest."""
    view = night.journal.folder / "view"
    (view / "latest").mkdir(parents=True, exist_ok=True)
    shown = {name: night.results / name for name in ("asv", "recorded", "findings")}
    for part in ("agree", "watch"):
        shown[f"latest/{part}.json"] = night.journal.path(part)
    for name, there in shown.items():
        (view / name).unlink(missing_ok=True)
        if there.exists():
            (view / name).symlink_to(there.resolve())
    return view


def _ops(night: Night) -> list[str]:
    return [word for op in night.ops for word in ("--op", op)]


def _backends(night: Night) -> list[str]:
    return [word for name in night.backends for word in ("--backend", name)]


def _command(night: Night, name: str, options: Sequence[str]) -> Result:
    """Run one of our commands in its own process; its exit code decides the result."""
    if importlib.util.find_spec(f"{_COMMANDS}.{name}") is None:
        return Result("", skipped=f"there is no `gradwatch {name}`")
    file = night.journal.path(name)
    file.unlink(
        missing_ok=True
    )  # a command that ends early must not pass by an old one
    call = ["-m", "gradwatch", name, *options, "--json", str(file)]
    code, tail = child(night, name, call)
    if code == 0 and file.exists():
        return Result("all as expected")
    line = f"exit code {code}" if code else "it ended without a document"
    return Result(line, [Problem(name, "", "", line, tail)])


def faults(night: Night) -> Result:
    """Inject a short campaign of faults, with another seed each day."""
    if {*night.ops} != {*op_names()}:
        return Result("", skipped="only some ops were asked for")
    seed = datetime.date.today().toordinal()
    call = ["-m", CAMPAIGN, "--faults", str(FAULTS), "--seed", str(seed)]
    code, tail = child(night, "faults", call)
    if code:
        problem = Problem("faults", "", "", f"exit code {code}", tail)
        return Result(f"exit code {code}: {tail}", [problem])
    return Result(tail)


def parts_of(root: Path) -> dict[str, Part]:
    """The parts by name; three of them are of this checkout and not of a project's."""
    swept: dict[str, Part] = {
        "second": second_orders,
        "opinfo": opinfo.pytorch_gradients,
    }
    injected: dict[str, Part] = {"faults": faults}
    return {
        "agree": agreement,
        "selftest": selftest,
        "fuzz": fuzz,
        **(swept if (root / opinfo.SCRIPT).is_file() else {}),
        **(injected if root.joinpath(*CAMPAIGN.split(".")).is_dir() else {}),
        "time": times,
        "watch": watch,
        "report": dashboard,
    }


PARTS = parts_of(ROOT)
