"""`gradwatch agree`: runs the agreement suite."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import click
from msgspec import structs
from rich.markup import escape

from gradwatch.harness.agreement.output import junit, markdown
from gradwatch.harness.agreement.remembered import Remembered, user_cache
from gradwatch.harness.agreement.remote import judge, judged
from gradwatch.harness.agreement.sampling import (
    FIRST_LOOK,
    explained,
    in_part,
    passed_over,
)
from gradwatch.harness.agreement.suite import Agreement, Asked, Required, combined
from gradwatch.harness.commands._hosts import hosts_at, jobs_there
from gradwatch.harness.commands._matrix import fitting
from gradwatch.harness.console import options as options
from gradwatch.harness.console.terminal import keep, output, progress
from gradwatch.harness.hosts.dispatch import agree_on_hosts
from gradwatch.harness.project import documents as recording
from gradwatch.harness.project.records import AGREE, AgreeRecord, AgreeSummary
from gradwatch.harness.project.requested import left_out
from gradwatch.harness.project.verdicts import SIGNS
from gradwatch.harness.workers.child import Child


@click.command()
@options.op
@options.pages
@options.backend
@options.device
@options.dtype
@options.regime
@options.case
@options.orders
@options.seed
@options.jobs
@options.timeout
@options.require("Fail with exit code 3")
@options.on
@click.option(
    "--first-case",
    is_flag=True,
    help="A first look: of each op only the first case in each regime and precision.",
)
@click.option(
    "--fresh",
    is_flag=True,
    help="Judge all again, also what a run has judged.",
)
@options.json_file
@click.option("--junit", "junit_file", metavar="F", help="Write JUnit XML, for CI.")
@options.markdown_file
def command(
    require: tuple[str, ...],
    address: str,
    fresh: bool,
    json_file: str | None,
    junit_file: str | None,
    markdown_file: str | None,
    **given: Any,
) -> int:
    r"""Judge the gradients of every op on every backend.

    All backends get the same bytes. Each gradient, output and state is compared with a
    reference in a wider type. The tolerance of each element is derived from its
    rounding radius. Known defects of frameworks are expected; if one is gone, that
    fails, too. What an earlier run judged is remembered as long as nothing has changed
    that a verdict depends on; --fresh judges it again.

    \b
    Examples:
      gradwatch agree --op softmax --dtype float32
      gradwatch agree --ops my_op.py --backend torch_custom
      gradwatch agree --case 'layer_norm[shifted-*]' --json -
      gradwatch agree --order jvp,hvp --regime normal
    Exit code: 0 all as expected; 1 not, or nothing was judged; 3 a required backend is
    missing, or all that are asked.
    """
    ops, pages, backends = (given.pop(name) for name in ("ops", "pages", "backends"))
    cases, first_case = given["cases"], given["first_case"]
    wanted = options.framework_backends(backends)
    passed = {} if cases or backends or not first_case else passed_over(wanted)
    among = bool(ops or pages or given["dtypes"])
    asked = Asked(
        ops=options.sources(ops, pages),
        backends=[name for name in wanted if name not in passed],
        sampled=in_part(cases=cases, backends=backends, among=among),
        **{name: value for name, value in given.items() if value != ()},
    )
    started = time.monotonic()
    why_not, machines = "", list[str]()
    if address == "local":
        with Child(judge) as child, progress("judging") as advance:
            remembered = Remembered(asked, user_cache(), fresh=fresh)
            agreed = judged(asked, child, advance, remembered)
        why_not = remembered.why_not
    else:
        agreed, machines = _elsewhere(asked, address, pages, {*backends, *require})
    if not agreed.records and not agreed.missing:
        raise click.UsageError("no case matches; see `gradwatch list cases`")
    seconds = time.monotonic() - started
    agreed.missing |= {} if backends else passed | left_out()
    summary = agreed.summary()
    summary.seconds, summary.seed = round(seconds, 2), asked.seed
    summary.machines, summary.first_case = machines, first_case
    if asked.sampled:
        ran = [b for b in asked.backends if b not in agreed.missing]
        summary.sampled = explained(ran, first_look=first_case)
    content = recording.document(agreed.records, summary)
    for target, text in ((junit_file, junit), (markdown_file, markdown)):
        if target:
            recording.replace_file(Path(target), text(content))
    if pages and json_file:  # of pages outside the project nothing is kept
        recording.write(content, json_file)
    elif not pages and agreed.records:
        keep(AGREE, content, json_file, combined)
    if json_file != "-":
        show(agreed, seconds, summary)
        if why_not:
            output().print(f"nothing is remembered: {escape(why_not)}")
    _check_required(agreed, require)
    return agreed.exit_code


def _elsewhere(
    asked: Asked, address: str, pages: Sequence[str], named: Collection[str]
) -> tuple[Agreement, list[str]]:
    """The verdicts of hosts, and the names of their machines; see docs/cluster.md."""
    if pages:
        raise click.UsageError("--ops: a page outside the project is on no other host")
    asked = structs.replace(asked, jobs=jobs_there(asked.jobs))
    with hosts_at(address) as hosts, progress("judging") as advance:
        return agree_on_hosts(hosts, asked, named, advance)


def _check_required(agreed: Agreement, required: Sequence[str]) -> None:
    for backend in required:
        if backend in agreed.missing:
            raise Required(f"{backend} is required, but {agreed.missing[backend]}")
    if not agreed.records:
        backend, why = next(iter(agreed.missing.items()))
        raise Required(f"nothing was judged: {backend}: {why}")


def show(agreed: Agreement, seconds: float, summary: AgreeSummary) -> None:
    """Print the matrix of ops and backends, the unexpected verdicts, and the counts."""
    console = output()

    def line(text: str, style: str) -> None:
        console.print(text, style=style, markup=False)

    if agreed.records:
        console.print(fitting(agreed.records, console))
        line(
            "  ".join(f"{sign} {verdict}" for verdict, (sign, _) in SIGNS.items()),
            "dim",
        )
    for r in _first_of_each(agreed.unexpected):
        sign, colour = SIGNS[r.verdict]
        line(f"{sign} {r.case} {r.backend} {r.verdict}: {r.story}", colour)
    for e in agreed.gone:
        line(f"gone: {e.op} {e.backend} {e.verdict}: {e.reason}", "bold red")
    for backend, why in sorted(agreed.missing.items()):
        line(f"not run: {backend}: {why}", "yellow")
    sampled = summary.sampled
    for why in dict.fromkeys(sampled.values()):
        names = ", ".join(name for name in sampled if sampled[name] == why)
        line(f"{names}: {why}", "dim")
    if summary.first_case:
        line(FIRST_LOOK, "yellow")
    console.print(_counts(agreed, seconds, summary))
    if not agreed.judged:
        line("nothing was judged", "bold red")


def _first_of_each(records: Sequence[AgreeRecord]) -> list[AgreeRecord]:
    """The worst record of each op, backend and verdict."""
    worst: dict[tuple[str, str, str], AgreeRecord] = {}
    for r in records:
        key = (r.op, r.backend, r.verdict)
        worst[key] = max(worst.get(key, r), r, key=lambda r: r.distance or 0.0)
    return list(worst.values())


def _counts(agreed: Agreement, seconds: float, summary: AgreeSummary) -> str:
    verdicts = ", ".join(f"{n} {v}" for v, n in sorted(summary.verdicts.items()))
    known, total = sum(r.listed for r in agreed.records), len(agreed.records)
    line = f"{total} tensors in {seconds:.1f} s: {verdicts}"
    line += f" ({summary.vacuous_share:.0%} of the judged are vacuous)"
    line += f"; {known} are known defects" if known else ""
    line += f"; {summary.unexpected} not as expected"
    if agreed.recalled:
        since = min(agreed.remembered.values())
        line += f"; {agreed.recalled} of {total} remembered, judged since {since}"
        line += " (--fresh judges them again)"
    return line
