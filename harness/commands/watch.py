"""`gradwatch watch`: finds changes in the history, and their commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from gradwatch.harness.console import options as options
from gradwatch.harness.console.streams import ticking
from gradwatch.harness.console.terminal import ending, keep, output, say
from gradwatch.harness.project import git
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.project.records import WATCH
from gradwatch.harness.timing.compare import SAMPLED
from gradwatch.harness.watch.alerts import WRONG, Alert, repro, size
from gradwatch.harness.watch.search import Survey, survey

_SHOWN = 6  # series of one commit: one change must not fill the screen


@click.command()
@options.folder(
    "--results",
    "The results folder; the history is in its folder asv.",
    ROOT / "results",
    "results",
)
@click.option(
    "--since",
    default="",
    metavar="COMMIT",
    show_default="the newest release",
    help="Accept all changes up to this commit, and measure creep from it.",
)
@click.option(
    "--confirm",
    is_flag=True,
    help="Measure again, side by side, both commits of each time that got worse.",
)
@options.seconds(
    "--budget", SAMPLED, "Sampling time of each comparison of two commits."
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Show also what is only suspected, was cleared or accepted.",
)
@options.json_file
def command(
    results: Path,
    since: str,
    confirm: bool,
    budget: float,
    everything: bool,
    json_file: str | None,
) -> int:
    r"""Find every lasting step and slow drift in the history: speed, memory, accuracy.

    A change is suspected until about eight runs follow it, or until --confirm has
    compared both commits; a gradient that became wrong is confirmed at once. The
    command fails if a confirmed change made something worse since the newest release,
    or if a series has moved beyond its budget without a step (asv.conf.json,
    regressions_thresholds). Improvements are shown and never fail.

    \b
    Examples:
      gradwatch watch --confirm
      gradwatch watch --since v0.1.0 --json -
    Exit code: 0 nothing confirmed is worse, 1 something is.
    """
    if not results.is_dir() and results != ROOT / "results":  # as of a fresh clone
        raise click.UsageError(f"no folder {results}")
    with ticking(lambda: "watch: measuring again" if confirm else "watch"):
        surveyed = survey(results, since=since, confirming=confirm, budget=budget)
    if surveyed.series or json_file:
        keep(WATCH, surveyed.document(), json_file)
    if json_file != "-":
        _show(surveyed, everything)
    return 1 if surveyed.failing else 0


def headline(surveyed: Survey) -> str:
    """One line: the worst failure, or else the number of series without one."""
    if not surveyed.failing:
        suspected = sum(a.worse and a.state == "suspected" for a in surveyed.alerts)
        quiet = f"{surveyed.series} series watched, nothing confirmed is worse"
        return quiet + (f", {suspected} suspected of it" if suspected else "")
    worst = min(surveyed.failing, key=lambda alert: alert.why != WRONG)
    what = f"{worst.series.op} on {worst.series.backend}: wrong"
    if worst.why != WRONG:
        what = f"{worst.series.name} {size(worst.relative_change)}"
    subject = git.subject(worst.commit)
    place = f"since {worst.commit[:10]} {subject!r}" if subject else worst.where
    places = {(a.series.op, a.series.backend, a.commit) for a in surveyed.failing}
    more = len(places) - 1
    return f"{what} {place}" + (f" and {more} more" if more else "")


# Showing ------------------------------------------------------------------------


def _show(surveyed: Survey, every: bool) -> None:
    """Print the confirmed changes, by commit and the worst first; count the rest."""
    console = output()
    for warning in surveyed.warnings:
        say(warning, "yellow")
    shown = [a for a in surveyed.alerts if every or a.fails or a.state == "confirmed"]
    for commit in dict.fromkeys(alert.commit for alert in shown):
        several = [alert for alert in shown if alert.commit == commit]
        _show_commit(console, commit, several, every)
    if not surveyed.series:
        console.print("no history yet: `asv run 'HEAD^!'` records this commit")
        return
    rest = Counter(a.state for a in surveyed.alerts if a not in shown)
    counted = ", ".join(f"{count} {state}" for state, count in rest.items())
    counted += " change" if sum(rest.values()) == 1 else " changes, for better or worse"
    failing = surveyed.failing
    ending(
        headline(surveyed),
        "red" if failing else "green",
        absent=f"{counted}: --all shows, --confirm measures again" if rest else "",
        next_step=repro(failing[0]) if failing else "",
    )


def _show_commit(
    console: Console, commit: str, alerts: Sequence[Alert], every: bool
) -> None:
    first = alerts[0]
    named_as = commit[:10]
    if first.candidates > 1:
        named_as = f"{first.good[:10]}..{named_as} ({first.candidates} commits)"
    console.print(f"[bold]{named_as}[/] {escape(git.subject(commit))}")
    names = Counter(alert.series.name for alert in alerts)
    shown = alerts if every else alerts[:_SHOWN]
    for alert in shown:
        name, environment = alert.series.name, escape(alert.series.environment)
        where = f" [dim]({environment})[/]" if names[name] > 1 else ""
        colours = {"confirmed": "bold red", "suspected": "yellow"}
        colour = colours.get(alert.state, "dim") if alert.worse else "green"
        change = f"[{colour}]{size(alert.relative_change):>10}[/]"
        brief = escape(name.partition(".")[2] or name)
        console.print(f"  {change}  {brief}{where}", soft_wrap=True)
        detail = f"{alert.state}: {alert.why}" if alert.why else alert.state
        if every or alert.why != WRONG:
            ends = f"{size(alert.low)} to {size(alert.high)}"
            detail = f"{alert.kind}, {ends}, {detail}"
        console.print(f"    {escape(detail)}", style="dim", soft_wrap=True)
    if len(alerts) > len(shown):
        console.print(f"  and {len(alerts) - len(shown)} more series (--all)")
    if every:
        console.print(f"  [dim]→ {escape(repro(first))}[/]", soft_wrap=True)
