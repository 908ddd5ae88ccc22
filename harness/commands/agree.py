"""`gradwatch agree`: runs the agreement suite."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gradwatch.harness.agreement.output import (
    Overall,
    grouped,
    junit,
    markdown,
    overall,
    suite_of,
)
from gradwatch.harness.agreement.suite import (
    Agreement,
    Asked,
    combined,
    explained,
    judge,
    judged,
)
from gradwatch.harness.console import options as options
from gradwatch.harness.console.terminal import ending, keep, many, output, progress
from gradwatch.harness.dashboard.matrix import family_of, short
from gradwatch.harness.hosts import agree_on_hosts, connected
from gradwatch.harness.project import documents as recording
from gradwatch.harness.project.records import AGREE, AgreeRecord, AgreeSummary
from gradwatch.harness.project.requested import Required, left_out
from gradwatch.harness.project.verdicts import MEANINGS, SIGNS
from gradwatch.harness.workers.process import Child
from gradwatch.impls.catalogue import framework_of


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
@options.require
@options.on
@click.option("--next", "following", hidden=True, default="")  # of `init`
@options.json_file
@click.option("--junit", "junit_file", metavar="F", help="Write JUnit XML, for CI.")
@click.option("--markdown", "markdown_file", metavar="F", help="Write a summary.")
def command(
    require: tuple[str, ...],
    address: str,
    following: str,
    json_file: str | None,
    junit_file: str | None,
    markdown_file: str | None,
    **given: Any,
) -> int:
    r"""Judge the gradients of every op on every backend.

    All backends get the same bytes. Each gradient, output and state is compared with a
    reference in a wider type. The tolerance of each element is derived from its
    rounding radius. Known defects of frameworks are expected; if one is gone, that
    fails, too.

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
    whole = given["cases"] or (backends and (ops or pages or given["dtypes"]))
    asked = Asked(
        ops=options.sources(ops, pages),
        backends=options.framework_backends(backends),
        sampled=not whole,
        **{name: value for name, value in given.items() if value != ()},
    )
    if address == "local":
        options.on_this_machine(given["devices"])
    started = time.monotonic()
    machines = list[str]()
    if address == "local":
        with Child(judge) as child, progress("judging") as advance:
            agreed = judged(asked, child, advance)
    else:
        agreed, machines = _elsewhere(asked, address, pages)
    if not agreed.records and not agreed.missing:
        raise click.UsageError("no case matches; see `gradwatch list cases`")
    seconds = time.monotonic() - started
    agreed.missing |= {} if backends else left_out()
    summary = agreed.summary()
    summary.seconds, summary.seed = round(seconds, 2), asked.seed
    summary.machines = machines
    if asked.sampled:
        there = [b for b in asked.backends if b not in agreed.missing]
        summary.sampled = explained(there)
    content = recording.document(agreed.records, summary)
    if not pages and agreed.records:
        keep(AGREE, content, json_file, combined)
    if json_file != "-":
        show(agreed, seconds, summary, following)
    if pages and json_file:  # documents on pages outside the project are not kept
        recording.write(content, json_file)
    if junit_file:
        recording.replace_file(Path(junit_file), junit(suite_of(content)))
    if markdown_file:
        recording.replace_file(Path(markdown_file), markdown(content))
    _check_required(agreed, require)
    return agreed.exit_code


def _elsewhere(
    asked: Asked, address: str, pages: Sequence[str]
) -> tuple[Agreement, list[str]]:
    """The verdicts of hosts, and the names of their machines; see docs/cluster.md."""
    if pages:
        raise click.UsageError("--ops: a page outside the project is on no other host")
    try:
        client = connected(address)
    except ValueError as error:
        raise click.UsageError(f"--on: {error}") from None
    with client, progress("judging") as advance:
        return agree_on_hosts(client, asked, advance)


def _check_required(agreed: Agreement, required: Sequence[str]) -> None:
    for backend in required:
        if backend in agreed.missing:
            raise Required(f"{backend} is required, but {agreed.missing[backend]}")
    if not agreed.records:
        backend, why = next(iter(agreed.missing.items()))
        raise Required(f"nothing was judged: {backend}: {why}")


def show(
    agreed: Agreement, seconds: float, summary: AgreeSummary, following: str = ""
) -> None:
    """Print the matrix of ops and backends, the unexpected verdicts, and the end."""
    console = output()
    line = partial(console.print, markup=False)
    if shown := of_those_that_ran(agreed.records):
        table, verdicts = fitting(shown, console)
        console.print(table)
        for verdict in (one for one in MEANINGS if one in verdicts):
            line(f"{SIGNS[verdict][0]} {verdict}: {MEANINGS[verdict]}", style="dim")
    of_each = grouped(agreed.unexpected, attrgetter("op", "backend", "verdict"))
    for r, *_ in of_each.values():
        sign, colour = SIGNS[r.verdict]
        line(f"{sign} {r.case} {r.backend} {r.verdict}: {r.story}", style=colour)
    for e in agreed.gone:
        line(f"gone: {e}", style="bold red")
    right = not agreed.unexpected and not agreed.gone and agreed.judged
    next_step = following or "gradwatch time; gradwatch report --open"
    for r in agreed.unexpected[:1]:
        next_step = f"gradwatch fuzz --op {r.op} --backend {r.backend} writes a script"
    ending(
        _found(agreed, seconds, summary),
        "green" if right else "red",
        absent=_absent(agreed, summary),
        next_step=next_step if agreed.judged else "",
    )


def _found(agreed: Agreement, seconds: float, summary: AgreeSummary) -> str:
    """The outcome in a line, with the number of tensors."""
    if not agreed.judged:
        return "nothing was judged"
    wrong = sorted({(r.op, r.backend) for r in agreed.unexpected})
    ops = many(len({r.op for r in agreed.records}), "op")
    tried = [r for r in agreed.records if r.verdict != "unsupported"]
    if wrong or agreed.gone:
        named = ", ".join(map(" on ".join, wrong[:3])) + ", ..." * (len(wrong) > 3)
        line = f"{len({op for op, _ in wrong})} of {ops} not as expected"
        line += f": {named}" if named else f": {len(agreed.gone)} known defects gone"
        line += f"; {summary.unexpected} of {len(tried)} tensors"
    else:
        ran = {r.backend for r in tried}
        line = f"{ops} {'agrees' if ops == '1 op' else 'agree'} on"
        line += f" {many(len(ran), 'backend')}:"
        line += f" {summary.verdicts.get('agree', 0)} of {summary.judged} tensors"
        if summary.vacuous_share:
            line += f", {summary.vacuous_share:.0%} vacuous"
    known = {(r.op, r.backend, r.verdict) for r in agreed.records if r.listed}
    line += f"; {many(len(known), 'known defect')}" if known else ""
    return line + f" ({seconds:.1f} s)"


def _absent(agreed: Agreement, summary: AgreeSummary) -> str:
    """The counts of what was not judged, and the command that shows or runs it."""
    missing, parts = sorted(agreed.missing), list[str]()
    if missing:
        names = ", ".join(sorted({*map(framework_of, missing)}))
        few = ", ".join(missing) if len(missing) < 3 else ""
        parts.append(f"{few or f'{len(missing)} backends ({names})'}: gradwatch doctor")
    if summary.sampled:
        names = ", ".join(sorted({*map(framework_of, summary.sampled)}))
        parts.append(f"all cases of {names}: --op and --backend")
    return "; ".join(parts)


# The table ------------------------------------------------------------------------

# Each backend has a column. Where these do not fit, those of a framework fold into one
# with the worst verdict; where that does not fit either, it has only the sign.

_FOLDED = "of each framework the worst (*: known); wider, or in --json: each backend"
_WIDE = 10_000  # characters: wider than any table


def of_those_that_ran(records: Sequence[AgreeRecord]) -> list[AgreeRecord]:
    """The records without backends whose dialect no page has, of empty columns."""
    ran = {r.backend for r in records if r.verdict != "unsupported"}
    return [r for r in records if r.backend in ran]


def fitting(records: Sequence[AgreeRecord], console: Console) -> tuple[Table, set[str]]:
    """The first of three tables that fits into the console, and the verdicts in it."""
    anything = console.options.update(width=_WIDE)
    for column, text in ((str, _brief), (family_of, _brief), (family_of, _sign)):
        table, verdicts = _table(records, column, text)
        if console.measure(table, options=anything).maximum <= console.width:
            break
    return table, verdicts


def _table(
    records: Sequence[AgreeRecord],
    column: Callable[[str], str],
    text: Callable[[Overall], Text],
) -> tuple[Table, set[str]]:
    """Ops below each other, and a column for each backend or framework."""
    groups = grouped(records, lambda r: (r.op, column(r.backend)))
    cells = {place: overall(several) for place, several in groups.items()}
    ops, columns = (sorted({place[i] for place in cells}) for i in (0, 1))
    folded = column is family_of
    table = Table(
        title="worst error in rounding radii",
        title_justify="left",
        caption=_FOLDED if folded else "*: known" * any(r.listed for r in records),
        caption_justify="left",
        box=None if folded else box.HEAVY_HEAD,
        padding=(0, 1),
        pad_edge=not folded,
        collapse_padding=folded,
    )
    table.add_column("op")
    for name in columns:
        table.add_column(escape(name).replace("_", "\n", 1), justify="right")
    for op in ops:
        row = (cells.get((op, name)) for name in columns)
        table.add_row(escape(op), *(text(c) if c else "" for c in row))
    return table, {c.verdict for c in cells.values()}


def _brief(judged: Overall) -> Text:
    """The ratio with two digits, and the sign."""
    number = short(judged.worst.distance).replace("∞", "inf")  # ∞ is a verdict's sign
    return Text.assemble(f"{number} " if number else "", _sign(judged))


def _sign(judged: Overall) -> Text:
    """The sign, and a mark if the defect is known."""
    known = judged.listed and not judged.unexpected
    return Text.assemble(SIGNS[judged.verdict], "*" if known else "")
