"""`gradwatch fuzz`: searches for failures, shrinks them, writes reports."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click
import msgspec
from msgspec import Struct, structs

from gradwatch.harness.agreement import store
from gradwatch.harness.agreement.fuzz import Hunt
from gradwatch.harness.console import options as options
from gradwatch.harness.console.terminal import ending, many, output, progress, say
from gradwatch.harness.project import documents
from gradwatch.harness.project.records import FindingRecord, FuzzSummary
from gradwatch.harness.project.requested import Required
from gradwatch.harness.workers.pool import Fleet
from gradwatch.harness.workers.process import Child, Failed, Link
from gradwatch.impls.catalogue import framework_of, load_op
from gradwatch.impls.contract import Op


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
    jobs = len({framework_of(name) for name in asked.backends})
    fleet = link.kept(Fleet, jobs=jobs)
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
