"""Writes the whole site: pages of every machine, and the charting library."""

from __future__ import annotations

import math
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import bokeh
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gradwatch.harness.dashboard import charts, pages
from gradwatch.harness.dashboard.charts import (
    History,
    commit_rows,
    moves,
    read_histories,
)
from gradwatch.harness.dashboard.matrix import (
    Cells,
    MachineResults,
    bar_length,
    families,
    flavour_of,
    machine_results,
    matrix,
    read_results,
    short,
    styles,
)
from gradwatch.harness.judging.defects.known import as_expected
from gradwatch.harness.project import documents, git
from gradwatch.harness.project.documents import Unreadable
from gradwatch.harness.project.machines import machine_name
from gradwatch.harness.project.paths import ROOT, alone
from gradwatch.harness.project.verdicts import SIGNS

# Marks a folder as a dashboard: only such a folder is ever replaced.
MARK = ".gradwatch-site"
_PATIENCE = 300.0  # seconds: the largest site so far takes a tenth of it
_STATIC = Path(__file__).parent / "static"
_BOKEH = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"


class NotASite(Exception):
    """The output folder holds other files, which would be lost."""

    exit_code = 2


def write_site(folder: Path, output: Path) -> list[Unreadable]:
    """Replace the dashboard of a results folder; return the files that it lacks.

    Wait for another process that writes the same one.

    Raises:
        Busy: The other one takes too long; nothing was changed.
        NotASite: `output` exists and is not a dashboard; nothing was changed.
        OSError: It cannot be written; the earlier one is unchanged.
    """
    lock = output.with_name(f".{output.name}.lock")
    with alone(lock, f"the writing of {output.name}", _PATIENCE):
        theirs = output.exists() and not (output / MARK).exists()
        if theirs and (not output.is_dir() or any(output.iterdir())):
            why = f"{output} is not a dashboard; name an empty or a new folder"
            raise NotASite(why)
        new, old = (output.with_name(f".{output.name}.{n}") for n in ("partial", "old"))
        shutil.rmtree(new, ignore_errors=True)
        try:
            troubles = _write_all(folder, new)
            shutil.rmtree(old, ignore_errors=True)
            if output.exists():
                output.rename(old)
            new.rename(output)
            shutil.rmtree(old, ignore_errors=True)
        except OSError as error:  # a full disk does not name the file
            raise OSError(error.errno, error.strerror, str(output)) from None
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return troubles


def _write_all(folder: Path, site: Path) -> list[Unreadable]:
    """Write the pages of each machine to a new folder; return the unreadable files."""
    known = git.log(ROOT)
    results = read_results(folder)
    watched = next((one for one in results.sources if one.kind == "watch"), None)
    histories, troubles = read_histories(folder / "asv", known, watched)
    results.troubles += troubles
    (site / "static").mkdir(parents=True)
    for file in (*_STATIC.iterdir(), _BOKEH):
        (site / "static" / file.name).write_bytes(file.read_bytes())
    (site / MARK).touch()
    found = dict.fromkeys((*(s.machine for s in results.sources), *histories))
    machines = [*found] or [machine_name()]
    places = {m: f"machine/{anchor(m)}/" if i else "" for i, m in enumerate(machines)}
    shared: dict[str, Any] = {"machines": places, "troubles": results.troubles}
    shared["code_host"] = git.commit_pages(ROOT)
    for machine, place in places.items():
        history = histories.get(machine, History())
        here = machine_results(results, machine)
        looks = styles(here.runners)
        own: dict[str, Any] = {"machine": machine, "results": here, "history": history}
        # The date and commit of the data: the newest document of each kind.
        banner = {"Verdicts": here.newest("agree"), "Times": here.newest("time")}
        own |= {"banner": banner, "styles": looks}
        writer = Writer(site, place, {**shared, **own})
        cells = matrix(here)
        if place:  # only the first machine's pages have ops without any result
            seen = {series.op for series in history.series}
            seen |= {op for op, _ in (*here.judged, *here.timed)}
            cells = {op: row for op, row in cells.items() if op in seen}
        writer.page(
            "index.html", "overview.html.j2", **pages.overview(here, cells, history)
        )
        for op, row in cells.items():
            _write_op(writer, pages.op_page(op, row, here, history), looks)
        _write_lists(writer, here, cells, history)
    return results.troubles


def _write_lists(
    writer: Writer, here: MachineResults, cells: Cells, history: History
) -> None:
    """Write the pages of changes and findings, and one for each backend that ran."""
    rows, moved = sorted(commit_rows(history), reverse=True), moves(history)
    writer.page("changes.html", "changes.html.j2", rows=rows, moves=moved)
    records = here.records()
    writer.page(
        "findings.html",
        "findings.html.j2",
        faults=pages.faults([r for r in records if not as_expected(r)], history),
        defects=pages.faults([r for r in records if r.listed]),
        findings=here.findings,
    )
    for runner in here.ran:
        column = (row[runner] for row in cells.values())
        column = (cell for cell in column if cell.verdict != "none" or cell.speed)
        writer.page(
            f"backend/{anchor(runner)}.html",
            "backend.html.j2",
            runner=runner,
            column=sorted(column, key=lambda cell: cell.rank, reverse=True),
            moves=[m for m in moved if m.series.runner == runner],
        )


def _write_op(writer: Writer, page: dict[str, Any], looks: charts.Looks) -> None:
    op, series, history = page["op"], page["series"], writer.shared["history"]
    looks = {**styles([s.runner for s in series]), **looks}
    lines = {s.line: looks[s.runner] for s in series}
    made = pages.drawn(page, history, {**looks, **lines})
    # As a script: a page that is opened from a file cannot load JSON.
    data = f"gradwatch.data['charts'] = {documents.compact(made)}\n"
    writer.write(f"op/{anchor(op)}.charts.js", data)
    context = {"drawn": made, "line_styles": lines, **page}
    writer.page(f"op/{anchor(op)}.html", "op.html.j2", **context)


# Templates ----------------------------------------------------------------------


@dataclass
class Writer:
    """Writes the pages of one machine.

    `folder` is its place in the site, "" or "machine/cpu-2core/"; `shared` holds
    the variables of all templates.
    """

    site: Path
    folder: str
    shared: Mapping[str, Any]

    def page(self, name: str, template: str, **context: Any) -> None:
        """Write a page from a template.

        A template also gets `up`, the relative path to the site's root, `home`, the
        path to the machine's first page, and `here`, the page's own name.
        """
        home = "../" * name.count("/")
        up = home + "../" * self.folder.count("/")
        places = {"up": up, "home": home, "here": name}
        page = _templates().get_template(template)
        self.write(name, page.render(**self.shared, **context, **places))

    def write(self, name: str, text: str) -> None:
        """Write a file of this machine."""
        file = self.site / self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=PackageLoader(str(__package__)),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"short": short, "clock": charts.clock}
    environment.filters["day"] = lambda at: at[:16].replace("T", " ") or "unknown date"
    environment.filters |= {"percent": _percent, "bar": bar_length, "anchor": anchor}
    environment.filters |= {"code": _code, "python": pages.highlighted}
    environment.filters |= {"flavour": flavour_of, "families": families}
    environment.globals["signs"] = {**SIGNS, "none": ("·", "")}
    return environment


def anchor(name: str) -> str:
    """A name with only those characters that an address and an id may have."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name)


def _code(text: str) -> Markup:
    """Text as HTML, with the parts between backticks as code."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _percent(share: float) -> str:
    """A relative change as text: +12.3 %, or from ten on a factor."""
    if share >= 9:
        return "×∞" if math.isinf(share) else f"×{short(1 + share)}"
    return f"{100 * share:+.1f} %".replace("-", "−")
