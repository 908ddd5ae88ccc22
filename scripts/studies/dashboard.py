"""How long pages of a year of history take to be there, in a headless Chromium.

    python -m scripts.studies.dashboard

Each page is opened several times with an empty cache; the median of each moment after
the navigation began is told: when the page can be used (its script has run), and when
its first chart is drawn. Issue 8 asks for the former in under a second.
"""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path

import click
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from gradwatch.harness.dashboard.site import write_site
from tests.dashboard.browser import invented
from tests.dashboard.browser.conftest import FLAGS

TIMES = 7
COMMITS = 200
PAGES = ("index.html", "op/softmax.html", "compare.html", "commits.html")

_USABLE = "return performance.getEntriesByType('navigation')[0].domInteractive"
_LOADED = "return performance.getEntriesByType('navigation')[0].loadEventEnd"
_DRAWN = "return document.querySelector('.chart[data-drawn]') && performance.now()"


def main() -> None:
    """Print a line for each page, and the largest files."""
    with tempfile.TemporaryDirectory(prefix="gradwatch-") as name:
        folder = Path(name)
        site = year(folder)
        with browser(folder / "profile") as chromium:
            for page in PAGES:
                tell(chromium, site / page, page)
        files = [file for file in site.rglob("*") if file.is_file()]
        files.sort(key=lambda file: -file.stat().st_size)
        largest = [f"{f.name} {f.stat().st_size / 1e6:.2f} MB" for f in files[:3]]
        click.echo(f"largest: {', '.join(largest)}")


def year(folder: Path) -> Path:
    """A site of every op on every backend over 200 commits."""
    results = folder / "results"
    invented.write_agree(results, COMMITS - 1)
    invented.write_time(results, COMMITS - 1)
    invented.write_history(results, COMMITS)
    begun = time.monotonic()
    site = write_site(results, folder / "html").index.parent
    click.echo(f"written in {time.monotonic() - begun:.1f} s")
    return site


def browser(profile: Path) -> Chrome:
    """A fresh headless Chromium."""
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or "chromium"
    for flag in (*FLAGS, f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    return Chrome(options=options, service=ChromeService(shutil.which("chromedriver")))


def tell(chromium: Chrome, file: Path, page: str) -> None:
    """Print the medians of one page."""
    usable, loaded, drawn = [], [], []
    for _ in range(TIMES):
        chromium.execute_cdp_cmd("Network.clearBrowserCache", {})
        chromium.get(file.as_uri())
        usable.append(chromium.execute_script(_USABLE))
        loaded.append(chromium.execute_script(_LOADED))
        drawn.append(first_chart(chromium))
    moments = [statistics.median(values) for values in (usable, loaded, drawn)]
    click.echo(
        f"{page}: usable {moments[0]:.0f} ms, loaded {moments[1]:.0f} ms, "
        f"first chart {moments[2]:.0f} ms"
    )


def first_chart(chromium: Chrome) -> float:
    """Milliseconds after the navigation began; 0 where a page has no chart."""
    script = "document.querySelector('.chart')?.scrollIntoView({behavior: 'instant'})"
    chromium.execute_script(script)
    if not chromium.execute_script("return document.querySelector('.chart') !== null"):
        return 0.0
    while not (moment := chromium.execute_script(_DRAWN)):
        time.sleep(0.01)
    return float(moment)


if __name__ == "__main__":
    main()
