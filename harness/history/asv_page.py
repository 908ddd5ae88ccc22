"""asv's plug-in that links its site to the dashboard, and says what to do offline.

asv.conf.json names this module; `asv publish` then calls `Dashboard.publish`. Where the
site goes beside a dashboard (`gradwatch report` has it put into html/asv) its pages get
a link there. asv's own scripts come from the network, and its data only from a server:
where either is refused, a page tells so instead of staying empty.

Written against asv 0.6.6.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from asv.publishing import OutputPublisher

#: What `gradwatch report` leaves in the folder of a site.
MARK = ".gradwatch-site"

_BACK = '<li id="nav-li-dashboard"><a href="../index.html">gradwatch dashboard</a></li>'

_FROM_FILE = """<script>
if (location.protocol === "file:") location.replace("error.html")
</script>"""

_ERROR = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>asv cannot be shown here</title>
<style>body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 42rem;
margin: 3rem auto; padding: 0 1rem }}</style>
</head>
<body>
<h1>asv cannot be shown here</h1>
<p>Its pages load their scripts from the network, and browsers let them read their data
from a server only, not from a file.</p>
<p>With a network, <code>.venv/bin/python -m http.server --directory html</code> in the
checkout serves them at <code>http://localhost:8000/asv/</code>.</p>
{back}</body>
</html>
"""
_ERROR_BACK = """<p>The <a href="../index.html">gradwatch dashboard</a> shows the same
history without either.</p>
"""


class Dashboard(OutputPublisher):  # type: ignore[misc]  # asv ships no types
    """Adds the link and the note when asv publishes."""

    name = "dashboard"
    button_label = "gradwatch dashboard"
    description = "Verdicts, times and their history on one page"

    @classmethod
    def publish(
        cls, conf: Any, repo: Any, benchmarks: Any, graphs: Any, revisions: Any
    ) -> None:
        """What asv calls once its own pages are there."""
        link(Path(conf.html_dir))


def link(site: Path) -> None:
    """Link asv's site to the dashboard beside it, if there is one; say what is refused.

    A page of another version of asv, which has no such places, is left as it is.
    """
    beside = (site.parent / MARK).exists()
    index = site / "index.html"
    page = index.read_text(encoding="utf-8")
    page = page.replace("<head>", f"<head>\n{_FROM_FILE}", 1)
    if beside:
        before, end, after = page.partition("</ul>")  # of the navigation, the first
        page = f"{before}{_BACK}\n{end}{after}"
    index.write_text(page, encoding="utf-8")
    back = _ERROR_BACK if beside else ""
    (site / "error.html").write_text(_ERROR.format(back=back), encoding="utf-8")
