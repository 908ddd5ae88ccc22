"""asv plug-in: links asv's site to the dashboard, and explains what to do offline.

asv.conf.json names this module; `asv publish` then calls `Dashboard.publish`. If the
site is published beside a dashboard (`gradwatch report` puts it into html/asv), its
pages get a link to the dashboard. asv's pages load scripts from the network and need a
server for their data; without these, a page explains it instead of staying empty.

Written for asv 0.6.6.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asv.publishing import OutputPublisher
from jinja2 import Template

#: A file that `gradwatch report` puts into the folder of a site.
MARK = ".gradwatch-site"

_ERROR = Path(__file__).with_name("asv_error.html.j2")

_BACK = '<li id="nav-li-dashboard"><a href="../index.html">gradwatch dashboard</a></li>'

_FROM_FILE = """<script>
if (location.protocol === "file:") location.replace("error.html")
</script>"""


class Dashboard(OutputPublisher):  # type: ignore[misc]  # asv ships no types
    """Adds the link and the explanation when asv publishes."""

    name = "dashboard"
    button_label = "gradwatch dashboard"
    description = "Verdicts, times and their history on one page"

    @classmethod
    def publish(
        cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: Any
    ) -> None:
        """Called by asv after it has written its own pages."""
        link(Path(conf.html_dir))


def link(site: Path) -> None:
    """Link asv's site to the dashboard beside it, if any, and add the explanation.

    A page of another version of asv, without these places in it, is not changed.
    """
    beside = (site.parent / MARK).exists()
    index = site / "index.html"
    page = index.read_text(encoding="utf-8")
    page = page.replace("<head>", f"<head>\n{_FROM_FILE}", 1)
    if beside:
        before, end, after = page.partition("</ul>")  # the first is the navigation
        page = f"{before}{_BACK}\n{end}{after}"
    index.write_text(page, encoding="utf-8")
    error = Template(_ERROR.read_text(encoding="utf-8")).render(beside=beside)
    (site / "error.html").write_text(error, encoding="utf-8")
