"""`gradwatch fuzz`: searches for failures, shrinks them, writes reports."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
import msgspec
import numpy as np
from msgspec import Struct, structs

from gradwatch.harness.agreement import store
from gradwatch.harness.agreement.output import grouped
from gradwatch.harness.agreement.store import details, headline, repro
from gradwatch.harness.agreement.suite import verdicts
from gradwatch.harness.console import options as options
from gradwatch.harness.console.terminal import ending, many, output, progress, say
from gradwatch.harness.judging import cases
from gradwatch.harness.judging.cases import REFUSALS, REGIMES, Regime, Trial, admits
from gradwatch.harness.judging.cases import trial as make_trial
from gradwatch.harness.judging.reference import reference
from gradwatch.harness.project import documents
from gradwatch.harness.project.descent import cuts, descend, plainer
from gradwatch.harness.project.records import AgreeRecord, FindingRecord, FuzzSummary
from gradwatch.harness.project.requested import Required
from gradwatch.harness.project.verdicts import PASSING
from gradwatch.harness.workers.pool import Fleet, Task
from gradwatch.harness.workers.process import Child, Failed, Link
from gradwatch.impls.catalogue import framework_of, load_op
from gradwatch.impls.contract import Case, Op

BATCH = 20  # trials: about a second, mostly for OneFlow
RISKY = 10  # one in so many may kill a worker; a new worker takes seconds
TIMEOUT = 20.0  # seconds for a trial: thousands of times longer than usual
SHRINKING = 15.0  # seconds at most for one finding
LONGEST = 4  # enough for all axes of a matrix product to differ
MOST = 256  # elements of an input: larger ones take longer and find nothing more
TRIES = 50  # cases drawn for one that the op admits

Rng = np.random.Generator
#: A trial, and the finding it shows.
Suspect = tuple[Trial, FindingRecord]


def draw(op: Op, source: str, seed: int) -> list[Trial]:
    """Draw the trials of a seed that the op admits, each with a unique name.

    One in `RISKY` can crash a worker: it has an empty input or is an odd case.
    """
    rng, drawn = np.random.default_rng(seed), list[Trial]()
    for i in range(BATCH):
        tried = (_draw_case(rng, op, not (i + 1) % RISKY) for _ in range(TRIES))
        if (case := next(filter(None, tried), None)) is None:
            continue
        values, laid, given = (_one(rng, [*REGIMES.values()]) for _ in range(3))
        mixture = Regime(
            "fuzz",
            # A stride of 0 takes values that are repeated.
            (laid if laid.layout == "expanded" else values).values,
            cotangent=given.cotangent,
            layout=laid.layout,
            cotangent_layout=given.cotangent_layout,
            first_only=values.first_only,
        )
        dtype, own = _one(rng, ("float32", "float64")), int(rng.integers(2**32))
        trial = make_trial(op, case, mixture, dtype, own, source)
        drawn.append(replace(trial, case=f"{trial.case}#{len(drawn)}"))
    return drawn


@dataclass
class Hunt:
    """A run of the fuzzer; `seen` are the ids of known findings.

    `at` guards the code of an op's page at a case. `judged` counts verdicts; `missing`
    says why a backend gave none; `broken` are ops whose formula has failed.
    """

    backends: Sequence[str]
    fleet: Fleet
    seed: int = 0
    at: Callable[[str, str], AbstractContextManager[None]] = lambda *at: nullcontext()
    seen: set[str] = field(default_factory=set)
    tried: int = 0
    judged: int = 0
    missing: dict[str, str] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)

    def run(
        self, ops: dict[str, Op], budget: float
    ) -> Iterator[tuple[FindingRecord, str] | None]:
        """Yield each finding and its script twice: at once, and again after shrinking.

        None comes after each op, and each attempt to shrink. An op whose page fails is
        removed. One step may end after the budget, in seconds; findings that are not
        shrunk by then stay as they are.
        """
        end = time.monotonic() + budget
        for turn in itertools.count():
            waiting: list[Suspect] = []
            for source, op in [*ops.items()]:
                if time.monotonic() > end:
                    break
                trials = list[Trial]()
                with self.at(source, ""):
                    trials = draw(op, source, self.seed * 100_003 + turn)
                self.tried += len(trials)
                for suspect in self._failures(trials, self.backends):
                    if suspect[1].id not in self.seen:
                        self.seen.add(suspect[1].id)
                        with self.at(source, ""):
                            yield self._described(suspect)
                            waiting.append(suspect)
                if not trials or source in self.broken:
                    del ops[source]
                yield None
            for trial, finding in waiting:
                if time.monotonic() > end:
                    break
                small = self._shrunk(trial, finding, end)
                with self.at(trial.op, ""):
                    yield self._described(small)
                yield None
            if time.monotonic() > end or not ops:
                return

    def _failures(
        self, trials: Sequence[Trial], backends: Sequence[str]
    ) -> Iterator[Suspect]:
        """The failures in trials on some backends."""
        tasks = [Task(trial, backend) for trial in trials for backend in backends]
        found = verdicts(tasks, self.fleet, (), timeout=TIMEOUT, at=self.at)
        by_name = {one.trials[0][0]: one for one in found}
        for trial in trials:
            if (agreement := by_name.get(trial.name)) is None:
                self.broken.add(trial.op)
                continue
            self.judged += len(agreement.records)
            self.missing |= agreement.missing
            for finding in findings_of(trial.problem.op, agreement.records):
                yield trial, finding

    def _shrunk(self, trial: Trial, finding: FindingRecord, end: float) -> Suspect:
        """The smallest trial that shows a finding, as far as the time allows."""

        def shown(small: Trial) -> FindingRecord | None:
            taken = False  # the op's formula may refuse the shape
            with self.at(small.op, ""), suppress(*REFUSALS):
                reference(small.problem)
                taken = True
            if not taken:
                return None
            failures = self._failures([small], [finding.record.backend])
            return next((one for _, one in failures if one.id == finding.id), None)

        best = replace(trial, case=trial.case.partition("#")[0]), finding
        end = min(end, time.monotonic() + SHRINKING)
        for steps in (_shorter, _plainer):
            best = descend(best, steps, shown, end)
        return best

    def _described(self, suspect: Suspect) -> tuple[FindingRecord, str]:
        """A finding and its script."""
        trial, found = suspect
        # A position in our own code is no part of the message.
        message = re.sub(r" in \w+ \(evaluate.py:\d+\)", "", found.record.message)
        record = structs.replace(found.record, message=message, case=trial.name)
        shapes = {name: [*a.shape] for name, a in trial.problem.inputs.items()}
        finding = structs.replace(found, record=record, shapes=shapes, seed=self.seed)
        said = {"headline": headline(finding), "about": details(record)}
        right = reference(trial.problem)
        return finding, repro(trial, record.backend, record, right=right, **said)


def findings_of(op: Op, records: Iterable[AgreeRecord]) -> Iterator[FindingRecord]:
    """The failures in one trial: one for each backend, with its worst record.

    Wrong outputs come first, because they make the gradients wrong as well.
    """
    parts = {"all": "run", **dict.fromkeys(op.outputs, "forward")}
    parts |= dict.fromkeys(op.state, "state")
    wrong = (record for record in records if record.verdict not in PASSING)
    for several in grouped(wrong, attrgetter("backend")).values():
        worst = min(several, key=lambda one: one.tensor not in op.outputs)
        yield FindingRecord(record=worst, part=parts.get(worst.tensor, "backward"))


def _shorter(trial: Trial) -> Iterator[Trial]:
    """The trial with shorter inputs and cotangents."""
    problem = trial.problem
    given = [*problem.inputs.values(), *problem.cotangents]
    for cut in cuts(a.shape for a in given if a is not None):
        inputs = {n: a[cut(a.shape)].copy() for n, a in problem.inputs.items()}
        dys = [a if a is None else a[cut(a.shape)].copy() for a in problem.cotangents]
        yield replace(trial, problem=replace(problem, inputs=inputs, cotangents=dys))


def _plainer(trial: Trial) -> Iterator[Trial]:
    """The trial in C order, with cotangents of ones, inputs of ones or few digits."""
    if (trial.layout, trial.cotangent_layout) != ("contiguous", "contiguous"):
        yield replace(trial, layout="contiguous", cotangent_layout="contiguous")
    problem = trial.problem
    ones = [None if a is None else np.ones_like(a) for a in problem.cotangents]
    if any(a is not None and (a != 1).any() for a in problem.cotangents):
        yield replace(trial, problem=replace(problem, cotangents=ones))
    for name, array in problem.inputs.items():
        if array.dtype.kind == "f" and name not in problem.op.domain:
            for plain in plainer(array):
                inputs = {**problem.inputs, name: plain}
                yield replace(trial, problem=replace(problem, inputs=inputs))


# Random cases ---------------------------------------------------------------------


def _one(rng: Rng, among: Sequence[Any]) -> Any:
    return among[int(rng.integers(len(among)))]


def _draw_case(rng: Rng, op: Op, risky: bool) -> Case | None:
    """Draw a case of the page with other lengths and attributes; None if refused."""
    usual, odd = (*op.cases.values(),), (*op.odd.values(),)
    empty = risky and not (odd and rng.random() < 0.5)
    case = _one(rng, (*usual, *odd) if empty else odd if risky else usual)
    names = cases.lengths(op, case)
    change = {n: int(rng.integers(0 if empty else 1, LONGEST + 1)) for n in names}
    if rng.random() < 0.5:  # square shapes hide some transpositions and reveal others
        change = dict.fromkeys(change, next(iter(change.values()), 1))
    case = cases.resized(op, case, change)
    sizes = [int(np.prod(shape)) for shape in op.shapes(case).values()]
    if max(sizes) > MOST or (0 in sizes) != empty:
        return None
    changed = {
        name: _draw_attribute(rng, name, value, op, case)
        for name, value in op.attributes(case).items()
    }
    case = Case(case.name, **{**case.fields, **changed})
    return case if admits(op, case) else None


def _draw_attribute(rng: Rng, name: str, value: Any, op: Op, case: Case) -> Any:
    """Draw from the attributes of the page's cases, similar axes and small numbers."""
    listed = (*op.cases.values(), *op.odd.values())
    shown = list(dict.fromkeys(op.attributes(c).get(name, value) for c in listed))
    axes = len(next(iter(op.shapes(case).values())))
    if isinstance(value, int) and not isinstance(value, bool) and axes:
        return int(rng.integers(-axes, axes))
    if isinstance(value, float):
        shown += [value / 1000]
    return _one(rng, shown)


@click.command()
@options.op
@options.pages
@options.backend
@options.seconds("--budget", 60.0, "Time for searching and shrinking.")
@options.seed
@options.folder(
    "--folder",
    "Folder for the scripts of findings and their index.",
    shown="results/latest/findings; of --replay results/findings",
)
@click.option("--replay", is_flag=True, help="Only run the scripts of the findings.")
@options.json_file
def command(
    ops: tuple[str, ...],
    pages: tuple[str, ...],
    backends: tuple[str, ...],
    budget: float,
    seed: int,
    folder: Path | None,
    replay: bool,
    json_file: str | None,
) -> int:
    r"""Search for inputs on which a backend is wrong, and shrink them.

    Shapes, values, memory layouts and attributes are drawn from the op's page. Each
    finding is a script for a bug report, which runs by itself, and a line in the
    folder's index. It is written at once, and again after shrinking. The default folder
    is not tracked by git; --folder results/findings keeps the findings.

    \b
    Examples:
      gradwatch fuzz --op batch_norm --backend oneflow_autograd --budget 30
      gradwatch fuzz --ops my_op.py --seed 7
      gradwatch fuzz --replay              which findings still fail
    Exit code: 0; 1 if a page cannot be run, if nothing was judged, or if a finding is
    gone (--replay); 3 if all backends are missing.
    """
    if replay:
        return _replay(folder or store.FOLDER)
    folder = folder or store.LATEST
    asked = SearchRequest(
        ops=options.sources(ops, pages),
        backends=options.framework_backends(backends),
        budget=budget,
        seed=seed,
    )
    run = SearchState()
    with Child(hunt) as child, progress("looking") as advance:
        try:
            _hunt(asked, child, run, folder, advance)
        except KeyboardInterrupt:
            say(f"interrupted; {many(len(run.findings), 'finding')} kept")
    summary = FuzzSummary(
        tried=run.tried, findings=len(run.findings), seed=seed, failed=run.failed
    )
    if json_file != "-":
        scripts = sorted(one.script for one in run.findings.values())
        ending(
            f"{many(len(scripts), 'finding')} in {many(run.tried, 'trial')}",
            "yellow" if scripts or not run.tried else "green",
            next_step=f"python {folder / scripts[0]}" if scripts else "",
        )
    if json_file:
        documents.write(documents.document(run.findings.values(), summary), json_file)
    for op, why in run.failed.items():
        say(f"not judged: {op}: {why}", "red")
    if run.missing and not (run.judged or run.failed):
        backend, why = next(iter(run.missing.items()))
        raise Required(f"nothing was judged: {backend}: {why}")
    return 0 if run.judged and not run.failed else 1


class SearchRequest(Struct):
    """A request to search ops on backends; `seen` are the ids of known findings."""

    ops: Sequence[str]
    backends: Sequence[str]
    budget: float
    seed: int
    seen: Sequence[str] = ()


class SearchState(Struct):
    """The trials and verdicts of a hunt since its last report, and a finding, if any.

    text: the finding's script. Of a whole run, failed: why an op could not be run;
    findings: by id.
    """

    tried: int = 0
    judged: int = 0
    missing: dict[str, str] = {}
    failed: dict[str, str] = {}
    finding: FindingRecord | None = None
    text: str = ""
    findings: dict[str, FindingRecord] = {}


def _hunt(
    asked: SearchRequest,
    child: Child,
    run: SearchState,
    folder: Path,
    progress: Callable[[int, int], None],
) -> None:
    """Let a process with the job `hunt` search, and save its findings."""
    end = time.monotonic() + asked.budget

    def request(left: Sequence[str]) -> SearchRequest:
        # Starting counts, but at least half of the time is for searching.
        budget = max(end - time.monotonic(), asked.budget / 2)
        return structs.replace(asked, ops=left, budget=budget, seen=[*run.findings])

    for one in child.run(asked.ops, request, SearchState):
        if isinstance(one, Failed):
            run.failed.setdefault(one.op, f"{one.verdict}: {one.message}")
            continue
        run.tried, run.judged = run.tried + one.tried, run.judged + one.judged
        run.missing |= one.missing
        progress(int(time.monotonic() - end + asked.budget), int(asked.budget))
        if one.finding is not None:
            found, script = one.finding, store.save(one.finding, one.text, folder).name
            if found.id not in run.findings:
                say(store.headline(found))
            run.findings[found.id] = structs.replace(found, script=script)


def hunt(content: bytes, link: Link) -> None:
    """Search the ops of a request, and send each finding."""
    asked = msgspec.msgpack.decode(content, type=SearchRequest)
    ops = dict[str, Op]()
    for source in asked.ops:
        with link.at(source):
            ops[source] = load_op(source)
    fleet = link.kept(Fleet, jobs=len({framework_of(name) for name in asked.backends}))
    search = Hunt(asked.backends, fleet, asked.seed, link.at, {*asked.seen})
    for found in search.run(ops, asked.budget):
        finding, text = found or (None, "")
        counts = (search.tried, search.judged, search.missing)
        link.tell(SearchState(*counts, finding=finding, text=text))
        search.tried = search.judged = 0


def _replay(folder: Path) -> int:
    states = []
    findings, troubles = store.load(folder)
    for trouble in troubles:
        say(trouble, "yellow")
    for script, finding in sorted({one.script: one for one in findings}.items()):
        state, printed = store.replay(finding, folder)
        output().print(f"{state:8} {script}: {printed}", markup=False)
        states.append(state)
    counts = ", ".join(f"{states.count(s)} {s}" for s in sorted(set(states)))
    output().print(counts or f"no findings in {folder}", markup=False, soft_wrap=True)
    return 1 if "gone" in states else 0
