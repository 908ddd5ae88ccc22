"""Runs a night: its settings and its parts.

Most parts call another command in a process of its own, and read its document. If one
raises, the others still run. After a kill all parts run again, but the figures and
comparisons made by then are kept.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import shutil
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from junitparser import Error, Failure, Skipped, TestCase, TestSuite
from msgspec import structs

from gradwatch.harness.agreement import output, store
from gradwatch.harness.agreement.output import Judged, grouped
from gradwatch.harness.console.streams import ticking
from gradwatch.harness.history import asv_results
from gradwatch.harness.judging.defects import known
from gradwatch.harness.project import documents, git, records
from gradwatch.harness.project.documents import Document, Unreadable
from gradwatch.harness.project.machines import machine_name
from gradwatch.harness.project.markdown import cell, legal_xml
from gradwatch.harness.project.paths import PROJECT, ROOT
from gradwatch.harness.project.records import AgreeRecord, Kind, PartState, Problem
from gradwatch.harness.project.requested import Required, by_default
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.project.verdicts import PASSING
from gradwatch.harness.watch.alerts import WRONG, Alert, size
from gradwatch.harness.watch.search import survey
from gradwatch.harness.workers.evaluate import in_short
from gradwatch.harness.workers.lifetime import with_this_process
from gradwatch.impls.catalogue import op_names

#: The share of the budget for each part whose search has no end of its own.
SHARE = 0.25

PATIENCE = 2 * 3600.0  # seconds for a part in its own process: far more than it needs

#: Nights in which every op is judged once in second order, a share each by the date. A
#: prime that is neither 2 nor 7: if the night runs only on every other day or only on
#: weekdays, all shares still have their turn.
SHARES = 13


@dataclass(frozen=True)
class Result:
    """The result of a part: one line, and the problems that it found.

    Where it is `skipped`, or something `required` is missing, the line says why.
    `notes` inform the reader, and need no action. `run` adds the part's name, its state
    and its seconds.
    """

    line: str
    problems: Sequence[Problem] = ()
    notes: Sequence[str] = ()
    skipped: bool = False
    required: bool = False
    name: str = ""
    state: PartState = "passed"
    seconds: float = 0.0


class Ended(NamedTuple):
    """The exit code of a part's process, and the last line that it printed."""

    part: str
    code: int
    line: str

    @property
    def problems(self) -> list[Problem]:
        """The problem that the process failed, if it did."""
        what = f"exit code {self.code}"
        return [Problem(self.part, "", "", what, self.line)] if self.code else []


@dataclass(frozen=True)
class Night:
    """The settings of a nightly run.

    `budget` is in seconds, for the whole run; `results` is the folder with the history;
    `folder` is the one for all output.
    """

    folder: Path
    budget: float
    ops: Sequence[str]
    backends: Sequence[str]
    require: Sequence[str] = ()
    seed: int = 0
    jobs: int = 2
    results: Path = ROOT / "results"
    root: Path = ROOT

    def piece(self, name: str) -> Path:
        """The path of a part's document, whether it exists or not."""
        return self.folder / "parts" / f"{name}.json"

    def run(self, name: str, *call: str) -> Ended:
        """Run Python in a process that ends with this one; log to parts/<name>.log."""
        log = self.piece(name).with_suffix(".log")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w", encoding="utf-8") as said:
            done = subprocess.run(
                [sys.executable, *call],
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                timeout=PATIENCE,
                preexec_fn=with_this_process(),
            )
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        return Ended(name, done.returncode, lines[-1][:300] if lines else "")

    def document(
        self, name: str, kind: Kind[records.Record, records.Summary], *call: str
    ) -> tuple[Document[records.Record, records.Summary], Ended]:
        """Run one of our commands; return its document, and how it ended.

        Raises:
            Required: There is no document, since a requirement is missing.
            RuntimeError: There is no document for another reason.
        """
        file = self.piece(name)
        file.unlink(missing_ok=True)  # an old one must not pass for that of this run
        ended = self.run(name, "-m", "gradwatch", *call, "--json", str(file))
        if not file.exists():
            why = f"exit code {ended.code}: {ended.line or 'it said nothing'}"
            raise (Required if ended.code == 3 else RuntimeError)(why)
        return documents.read(file, kind), ended


Part = Callable[[Night], Result]


def run(
    night: Night,
    parts: Mapping[str, Part],
    progress: Callable[[Result], None] = lambda done: None,
) -> list[Result]:
    """Run all parts, even if one of them fails, in an empty folder."""
    shutil.rmtree(night.folder / "parts", ignore_errors=True)
    finished = list[Result]()
    for name, part in parts.items():
        start = time.monotonic()
        state: PartState = "failed"
        try:
            with ticking(partial("nightly: {}".format, name)):
                result = part(night)
            if not (result.problems or result.required):
                state = "skipped" if result.skipped else "passed"
        except Required as lacking:
            result = Result(str(lacking), required=True)
        except Exception as error:  # noqa: BLE001  # whatever a part raises is reported
            reason, state = in_short(error), "broken"
            result = Result(reason, [Problem(name, "", "", "part", reason)])
        seconds = time.monotonic() - start
        finished.append(replace(result, name=name, state=state, seconds=seconds))
        progress(finished[-1])
    return finished


# The parts ----------------------------------------------------------------------

_FOR_OURS = Result("it is for the ops of gradwatch itself", skipped=True)


def _narrowed(night: Night, ops: Sequence[str] = ()) -> list[str]:
    """The options for some ops and backends, of the night by default; none for all."""
    ops = ops or (night.ops if {*night.ops} != {*op_names()} else ())
    backends = night.backends if {*night.backends} != {*by_default()} else ()
    return [*_each("op", ops), *_each("backend", backends)]


def _each(option: str, names: Sequence[str]) -> list[str]:
    return [word for name in names for word in (f"--{option}", name)]


# Judging ------------------------------------------------------------------------


def agreement(night: Night) -> Result:
    """Judge every op on every backend in all regimes."""
    return _judged(night, "agree", *_narrowed(night), *_each("require", night.require))


def second_orders(night: Night) -> Result:
    """Judge forward mode and the double backward of a share of the ops, by the date.

    Skipped in a project with ops of its own, whose known outcomes are first-order.
    """
    ops = night.ops[datetime.date.today().toordinal() % SHARES :: SHARES]
    if PROJECT.table:
        return _FOR_OURS
    if not ops:
        return Result("none of these ops has its turn", skipped=True)
    return _judged(night, "second", *_narrowed(night, ops), "--order", "jvp,hvp")


def _judged(night: Night, part: str, *options: str) -> Result:
    """Run `agree`, and report the unexpected records of its document."""
    options += ("--seed", str(night.seed), "--jobs", str(night.jobs))
    content, ended = night.document(part, records.AGREE, "agree", *options)
    summary, judged = content.summary, {record.verdict for record in content.records}
    line = f"{summary.judged:,} tensors judged, {summary.unexpected} unexpected"
    required = ended.code == 3 or judged <= {"unsupported"}
    if required:
        line = ended.line if ended.code == 3 else "nothing was judged"
    lacking = sorted({*night.backends} & {*summary.missing})
    notes = [f"{backend}: {summary.missing[backend]}" for backend in lacking]
    return Result(line, _problems(content.records), notes=notes, required=required)


def _problems(records: Sequence[AgreeRecord]) -> list[Problem]:
    """A problem for the worst tensor of each op and backend, and each defect gone."""
    wrong = (
        record
        for record in known.unexpected(records)
        if record.order == "vjp" or traits_of(record.backend).second_order_listed
    )
    problems = []
    for place, several in grouped(wrong, attrgetter("op", "backend")).items():
        worst = several[0]
        story = f"{worst.case}: {worst.story} ({len(several)} tensors)"
        what = f"{worst.tensor} {worst.verdict}"
        problems.append(Problem("agree", *place, what, story))
    for one in known.gone(records, known.load()):  # each in one place
        what = f"{' or '.join(one.tensors)} known defect is gone"
        (op,), (backend,) = one.ops, one.backends
        problems.append(Problem("agree", op, backend, what, one.reason))
    return problems


def selftest(night: Night) -> Result:
    """Plant wrong backwards and check that the judge rejects them.

    Skipped in a project with ops of its own: it tests the judge, with our ops.
    """
    if PROJECT.table:
        return _FOR_OURS
    options = ("--quick", "--jobs", str(night.jobs), "--seed", str(night.seed))
    content, ended = night.document(
        "selftest", records.SELFTEST, "selftest", *options, *_each("op", night.ops)
    )
    unmet = [
        Problem("selftest", "", "", one.required, one.found)
        for one in content.summary.requirements
        if not one.met
    ]
    summary = content.summary
    line = f"{summary.planted:,} planted errors in {summary.runs:,} runs"
    return Result(line, unmet or ended.problems)


def fuzz(night: Night) -> Result:
    """Search for failures with the fuzzer, for a share of the budget.

    Findings are written to findings/ in the output folder. A finding is a problem if it
    is no known outcome and results/findings has none for that op and backend: a
    recorded defect shows up in other tensors and verdicts every night.
    """
    folder = night.folder / "findings"
    options = ["--budget", f"{night.budget * SHARE:.0f}", "--seed", str(night.seed)]
    options += ["--folder", str(folder), *_narrowed(night)]
    content, ended = night.document("fuzz", records.FUZZ, "fuzz", *options)
    kept, troubles = store.load(night.results / "findings")
    recorded = {(one.record.op, one.record.backend) for one in kept}
    listed, problems = known.load(), list[Problem]()
    for one in content.records:
        record, seen = one.record, f"{one.record.tensor} {one.record.verdict}"
        if record.verdict in PASSING or (record.op, record.backend) in recorded:
            continue
        if known.expected_verdict(record, listed) != record.verdict:
            what, story = f"{seen} ({one.place})", f"findings/{one.script}"
            story += f": {record.story}"
            problems.append(Problem("fuzz", record.op, record.backend, what, story))
    line = f"{content.summary.tried:,} trials, {len(problems)} of"
    line += f" {len(content.records)} findings are new"
    return Result(line, problems or ended.problems, notes=troubles)


# Measuring ----------------------------------------------------------------------


def times(night: Night) -> Result:
    """Measure the commit for the history, with asv; skipped if files are changed."""
    changed = git.changed_files(night.root)
    if changed:
        some = ", ".join(changed[:3])
        why = f"{len(changed)} files differ from the commit ({some})"
        return Result(f"{why}: nothing goes into the history", skipped=True)
    folder = night.results / "asv"
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise PermissionError(f"{folder.name}: the results folder cannot be written")
    commit = git.commit_of("HEAD", night.root)
    bench = rf"^bench_(speed|accuracy)[.]({'|'.join(night.ops)})[.]"
    call = ("-m", "asv", "run", "--skip-existing", "--bench", bench, "HEAD^!")
    ended = night.run("time", *call)
    machine = machine_name(folder)
    failed = [
        entry.value is None
        for series in asv_results.read(folder, git.commits(night.root), [])
        for entry in series.entries
        if (series.machine, entry.commit) == (machine, commit)
    ]
    measured = failed.count(False)
    line = f"{measured:,} figures of {commit[:10]}, {sum(failed)} failed"
    nothing = [Problem("time", "", "", "asv run", "nothing was measured")]
    return Result(line, ended.problems or ([] if measured else nothing))


def watch(night: Night) -> Result:
    """Search the history for changes; measure worse times again, as time allows."""
    end = time.monotonic() + night.budget * SHARE
    surveyed = survey(
        night.results,
        confirming=True,
        enough=lambda: time.monotonic() > end,
        root=night.root,
    )
    documents.write(surveyed.document(), night.piece("watch"))
    documents.keep(records.WATCH, surveyed.document())
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
        if alert.why == WRONG:
            what = f"wrong since {alert.commit[:10]}"
        several[alert.series.op, alert.series.backend, what].append(alert)
    return several


def _detail(alerts: Sequence[Alert], root: Path) -> str:
    """The worst alert in full, and the number of others."""
    alert, *others = alerts
    line = f"{alert.series.name} {size(alert.relative_change)}"
    line += f" ({size(alert.low)} to {size(alert.high)}), {alert.why}"
    if alert.candidates == 1:
        line += f"; {git.subject(alert.commit, root)}"
    return f"{line} (and {len(others)} more series)" if others else line


# Showing ------------------------------------------------------------------------


def dashboard(night: Night) -> Result:
    """Write the dashboard, with the results of the other parts."""
    target = night.folder / "dashboard"
    places = ("--results", str(night.results), "--output", str(target))
    ended = night.run("report", "-m", "gradwatch", "report", *places)
    return Result(f"{target.name}/index.html", ended.problems)


#: The parts by name, in the order in which they run.
PARTS: dict[str, Part] = {
    "agree": agreement,
    "selftest": selftest,
    "fuzz": fuzz,
    "second": second_orders,
    "time": times,
    "watch": watch,
    "report": dashboard,
}


#: The most problems listed in full; nobody reads longer lists.
SHOWN = 10
LONGEST = 300  # characters of one problem

_SIGNS = {"passed": "✓", "failed": "✗", "broken": "✗", "skipped": "–"}


@dataclass(frozen=True)
class Report:
    """A finished nightly run, and the problems of the one before.

    `notes` say why the document of that run cannot be read.
    """

    parts: Sequence[Result]
    before: Sequence[records.Problem] = ()
    notes: Sequence[str] = ()
    environment: records.Environment = field(default_factory=documents.surroundings)

    @cached_property
    def problems(self) -> list[records.Problem]:
        """The problems of all parts; those that the night before lacked come first."""
        before = {one.key for one in self.before}
        found = [problem for done in self.parts for problem in done.problems]
        found = [structs.replace(p, new=p.key not in before) for p in found]
        return sorted(found, key=lambda problem: not problem.new)

    @property
    def new(self) -> list[records.Problem]:
        """The problems that the night before did not have."""
        return [problem for problem in self.problems if problem.new]

    @property
    def gone(self) -> list[records.Problem]:
        """The problems that only the night before had."""
        now = {problem.key for problem in self.problems}
        return [problem for problem in self.before if problem.key not in now]

    @property
    def exit_code(self) -> int:
        """3 if a required backend is missing, 1 if anything is not as expected."""
        if any(done.required for done in self.parts):
            return 3
        return 1 if self.problems else 0


def problems_of(file: Path) -> tuple[list[records.Problem], list[str]]:
    """The problems in a previous night's document, and a line if it is damaged."""
    found, troubles = documents.kept(file, records.NIGHTLY)
    return found, [f"{one}: nothing to compare with, all is new" for one in troubles]


def write(report: Report, night: Night) -> None:
    """Write the document, the XML and the summary; each file is replaced atomically."""
    summary = records.NightlySummary(
        parts=[
            records.PartRecord(d.name, d.state, d.line, d.seconds) for d in report.parts
        ],
        new=len(report.new),
        known=len(report.problems) - len(report.new),
        gone=report.gone,
    )
    verdicts: Judged | None = None
    with contextlib.suppress(Unreadable):  # that part was not done
        verdicts = documents.read(night.piece("agree"), records.AGREE)
    documents.replace_file(night.folder / "junit.xml", junit(report, verdicts))
    documents.replace_file(night.folder / "summary.md", markdown(report))
    content = documents.document(report.problems, summary, report.environment)
    documents.write(content, night.folder / "nightly.json")


def shown(done: Result) -> str:
    """The state, result and seconds of a part in a line."""
    return f"{_SIGNS[done.state]} {done.name}: {done.line} ({done.seconds:.0f} s)"


# Markdown -----------------------------------------------------------------------


def markdown(report: Report) -> str:
    """The summary: new problems, known ones, then a line for each part."""
    lines = [_headline(report), ""]
    for title, problems in (
        ("New", report.new),
        ("Known since an earlier night", report.problems[len(report.new) :]),
        ("Gone since the last night", report.gone),
    ):
        if problems:
            lines += [f"**{title}: {len(problems)}**", "", *_listed(problems), ""]
    lines += ["| part | result | seconds |", "|---|---|--:|"]
    for d in report.parts:
        ended = f"{_SIGNS[d.state]} {d.state}: {cell(d.line)}"
        lines.append(f"| {d.name} | {ended} | {d.seconds:.0f} |")
    notes = [*report.notes, *(note for done in report.parts for note in done.notes)]
    lines += ["", *(f"- {cell(note)}" for note in notes)] if notes else []
    about = report.environment
    changed = "with changed files" if about.dirty else ""
    commit = f"commit {about.commit[:10] or 'unknown'}"
    foot = ", ".join(filter(None, (commit, changed, about.machine, about.date)))
    return "\n".join([*lines, "", f"<sub>{foot}</sub>"]) + "\n"


def _headline(report: Report) -> str:
    """The first line; many readers see no other."""
    problems = report.problems
    lacking = [f"{d.name}: {cell(d.line)}" for d in report.parts if d.required]
    if lacking and not problems:  # a green line must mean that all was judged
        return f"**Not judged: {'; '.join(lacking)}**"
    if not problems:
        shown = ("agree", "watch")
        lines = [d.line for d in report.parts if d.name in shown and d.line]
        return f"**All as expected**: {'; '.join(lines) or 'no part found a problem'}"
    since = (p for p in report.new or problems if p.what.startswith("wrong since"))
    first = next(since, problems[0])  # the one with a commit, if there is one
    place = " on ".join(part for part in (first.op, first.backend) if part)
    more = len(problems) - 1
    kind = "New" if report.new else "Still"
    headline = f"**{kind}: {place or first.part}: {cell(first.what)}**"
    return headline + (f" and {more} more" if more else "")


def _listed(problems: Sequence[records.Problem]) -> Iterator[str]:
    for problem in problems[:SHOWN]:
        place = " on ".join(part for part in (problem.op, problem.backend) if part)
        name = f"**{place}** " if place else ""
        detail = cell(problem.told)
        detail = detail if len(detail) <= LONGEST else f"{detail[:LONGEST]}…"
        yield f"- {name}`{problem.part}`: {cell(problem.what)}: {detail}"
    if len(problems) > SHOWN:
        yield f"- and {len(problems) - SHOWN} more (nightly.json has them)"


# JUnit XML ----------------------------------------------------------------------


def junit(report: Report, agreement: Judged | None) -> str:
    """The suite of `agree`, and another with a case for each part and its problems."""
    parts = TestSuite("parts")
    for done in report.parts:
        # Rounded: the schema allows no exponent in a time.
        case = TestCase(done.name, "gradwatch.nightly", round(done.seconds, 3))
        if done.state == "skipped":
            case.result = [Skipped(legal_xml(done.line))]
        elif done.state != "passed":
            kind = Error if done.state == "broken" else Failure
            fault = kind(legal_xml(done.line), done.state)
            fault.text = legal_xml("\n".join(p.told for p in done.problems))
            case.result = [fault]
        parts.add_testcase(case)
    return output.junit(*([output.suite_of(agreement)] if agreement else []), parts)
