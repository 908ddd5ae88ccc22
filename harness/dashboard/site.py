"""Writes the whole site: pages of every machine, charting library, asv's own site."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bokeh

from gradwatch.harness.dashboard import charts
from gradwatch.harness.dashboard.machine import MachineResults, machine_results
from gradwatch.harness.dashboard.matrix import matrix
from gradwatch.harness.dashboard.pages.asv_site import NOT_ASKED, publish_asv
from gradwatch.harness.dashboard.pages.comparisons import (
    comparisons,
    figures_at,
    figures_of,
)
from gradwatch.harness.dashboard.pages.op import drawn, op_page
from gradwatch.harness.dashboard.pages.overview import overview
from gradwatch.harness.dashboard.series import History, moves, read_histories
from gradwatch.harness.dashboard.sources import Results, Trouble, read_results
from gradwatch.harness.dashboard.styles import styles
from gradwatch.harness.dashboard.writer import Writer, anchor
from gradwatch.harness.project import git
from gradwatch.harness.project.documents import machine_name
from gradwatch.harness.project.git import Commit
from gradwatch.harness.project.lock import alone
from gradwatch.harness.project.paths import ROOT

# Marks a folder as a dashboard: only such a folder is ever replaced.
MARK = ".gradwatch-site"
_PATIENCE = 300.0  # seconds: the largest site so far takes a tenth of it
_STATIC = Path(__file__).parent / "static"
_BOKEH = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"


class NotASite(Exception):
    """The output folder holds other files, which would be lost."""


@dataclass(frozen=True)
class Site:
    """A written site: its first page, and what it could not show."""

    index: Path
    troubles: tuple[Trouble, ...]


def write_site(folder: Path, output: Path, *, with_asv: bool = False) -> Site:
    """Write the dashboard of a results folder; it replaces an earlier one.

    `with_asv` adds asv's own site, which takes half an hour for ten thousand commits.
    Where another process writes the same one, it waits for that.

    Raises:
        Busy: The other one takes too long; nothing was changed.
        NotASite: `output` exists and is not a dashboard; nothing was changed.
        OSError: It cannot be written; the earlier one is unchanged.
    """
    lock = output.with_name(f".{output.name}.lock")
    with alone(lock, f"the writing of {output.name}", _PATIENCE):
        return _written(folder, output, with_asv)


def _written(folder: Path, output: Path, with_asv: bool) -> Site:
    _check_replaceable(output)
    known = git.log(ROOT)
    results = read_results(folder)
    watched = max(
        (source for source in results.sources if source.kind == "watch"),
        key=lambda source: source.date,
        default=None,
    )
    histories, troubles = read_histories(folder / "asv", known, watched)
    results.troubles.extend(troubles)
    fresh = output.with_name(f".{output.name}.partial")
    shutil.rmtree(fresh, ignore_errors=True)
    try:
        published = folder / "asv" if with_asv else None
        _write_all(results, histories, known, fresh, published)
        _replace(output, fresh)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Site(output / "index.html", tuple(results.troubles))


def _check_replaceable(output: Path) -> None:
    if not output.exists() or (output / MARK).exists():
        return
    if not output.is_dir() or any(output.iterdir()):
        raise NotASite(f"{output} is not a dashboard; name an empty or a new folder")


def _replace(output: Path, fresh: Path) -> None:
    """Replace the old site by the new one; the old one exists until then."""
    old = output.with_name(f".{output.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        output.rename(old)
    fresh.rename(output)
    shutil.rmtree(old, ignore_errors=True)


def _write_all(
    results: Results,
    histories: Mapping[str, History],
    known: Mapping[str, Commit],
    site: Path,
    published: Path | None,
) -> None:
    shutil.copytree(_STATIC, site / "static")
    shutil.copy(_BOKEH, site / "static")
    (site / MARK).touch()
    asv = publish_asv(published, site / "asv") if published else NOT_ASKED
    machines = list(dict.fromkeys((*results.machines, *histories))) or [machine_name()]
    places = {m: f"machine/{anchor(m)}/" if i else "" for i, m in enumerate(machines)}
    for machine, place in places.items():
        here = machine_results(results, machine)
        shared = {
            "machine": machine,
            "machines": places,
            "troubles": results.troubles,
            "asv": asv,
            "banner": _banner(here),
            "history": histories.get(machine, History()),
            "styles": styles(here.runners),
        }
        _write_machine(Writer(site, place, shared), here, known)


def _banner(here: MachineResults) -> list[dict[str, Any]]:
    """The date and commit of the data: the newest document of each kind."""
    titles = {"agree": "Verdicts", "time": "Times"}
    return [
        {"title": title, "source": here.newest(kind)} for kind, title in titles.items()
    ]


def _write_machine(
    writer: Writer, here: MachineResults, known: Mapping[str, Commit]
) -> None:
    history: History = writer.shared["history"]
    looks = writer.shared["styles"]
    cells = matrix(here)
    context = overview(here, cells, history, known)
    writer.page("index.html", "overview.html.j2", sources=here.sources, **context)
    for op, row in cells.items():
        _write_op(writer, op_page(op, row, here, history), here, looks)
    _write_comparison(writer, here, history)
    _write_commits(writer, history)


def _write_op(
    writer: Writer, page: dict[str, Any], here: MachineResults, looks: Any
) -> None:
    op, series, history = page["op"], page["series"], writer.shared["history"]
    looks = {**styles([s.runner for s in series]), **looks}
    lines = {s.line: looks[s.runner] for s in series}
    made = drawn(page, here, history, {**looks, **lines})
    writer.data(f"op/{anchor(op)}.charts.js", "charts", made)
    context = {"drawn": made, "line_styles": lines, "bandwidth": here.bandwidth()}
    writer.page(f"op/{anchor(op)}.html", "op.html.j2", **context, **page)


def _write_comparison(writer: Writer, here: MachineResults, history: History) -> None:
    newest = [history.commits[place] for place in history.newest]
    data = {
        "backends": comparisons(here),
        "commits": [[c.hash[:12], c.subject, c.tag] for c in newest],
        "figures": figures_of(history),
    }
    writer.data("compare.charts.js", "charts", {"ratios": charts.ratios()})
    writer.data("compare.data.js", "compare", data)
    for commit, place in zip(newest, history.newest, strict=True):
        name = commit.hash[:12]
        writer.data(f"commit/{name}.js", name, figures_at(history, place))
    runners = sorted({runner for _, runner in here.timed})
    writer.page("compare.html", "compare.html.j2", runners=runners)


def _write_commits(writer: Writer, history: History) -> None:
    by_commit: dict[str, list[Any]] = {}
    for move in moves(history, -1):
        by_commit.setdefault(move.commit.hash, []).append(move)
    writer.page("commits.html", "commits.html.j2", by_commit=by_commit)
