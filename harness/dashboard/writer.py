"""Writes pages from templates, and data as scripts, into one machine's folder."""

from __future__ import annotations

import datetime
import math
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gradwatch.harness.dashboard.charts import clock
from gradwatch.harness.dashboard.families import dialect_of, families
from gradwatch.harness.dashboard.matrix import bar_length, short
from gradwatch.harness.dashboard.op_source import highlighted
from gradwatch.harness.project import documents
from gradwatch.harness.project.verdicts import SIGNS


@dataclass
class Writer:
    """Writes the pages of one machine.

    `folder` is its place in the site, "" or "machine/cpu-2core/"; `shared` holds
    the variables of all templates.
    """

    site: Path
    folder: str
    shared: dict[str, Any] = field(default_factory=dict)

    def page(self, name: str, template: str, **context: Any) -> None:
        """Write a page from a template.

        A template also gets `up`, the relative path to the site's root, `home`, the
        path to the machine's first page, and `here`, the page's own name.
        """
        home = "../" * name.count("/")
        places = {
            "up": home + "../" * self.folder.count("/"),
            "home": home,
            "here": name,
        }
        page = _templates().get_template(template)
        self._write(name, page.render(**self.shared, **context, **places))

    def data(self, name: str, key: str, content: Any) -> None:
        """Write data as a script: a page that was opened as a file can load no JSON."""
        text = documents.compact(content)
        self._write(name, f"gradwatch.data[{key!r}] = {text}\n")

    def _write(self, name: str, text: str) -> None:
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
    environment.filters |= {"short": short, "clock": clock, "day": _day}
    environment.filters |= {"percent": _percent, "bar": bar_length, "anchor": anchor}
    environment.filters |= {"code": _code, "python": highlighted}
    environment.filters |= {"dialect": dialect_of, "families": families}
    environment.globals["signs"] = {**SIGNS, "none": ("·", "")}
    return environment


def anchor(name: str) -> str:
    """A name made fit for an address and for an id."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in name)


def _code(text: str) -> Markup:
    """Text as HTML, with the parts between backticks as code."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", str(escape(text))))


def _day(date: str) -> str:
    """An ISO date as 2026-11-21 08:49 UTC; any other text is shown unchanged."""
    try:
        moment = datetime.datetime.fromisoformat(date)
    except ValueError:
        return date or "unknown date"
    if moment.tzinfo is None:
        return f"{moment:%Y-%m-%d %H:%M}"
    return f"{moment.astimezone(datetime.timezone.utc):%Y-%m-%d %H:%M} UTC"


def _percent(share: float) -> str:
    """A relative change: +12.3 %, and a factor from ten on."""
    if share >= 9:
        return "×∞" if math.isinf(share) else f"×{short(1 + share)}"
    return f"{100 * share:+.1f} %".replace("-", "−")
