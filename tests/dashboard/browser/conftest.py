"""A headless Chromium, and a site as large as a year of use makes it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver import Chrome, ChromeOptions, ChromeService

from gradwatch.harness.dashboard.site import write_site
from tests.dashboard.browser import invented

PATIENCE = 280  # seconds: axe takes three for the longest page on a quiet machine

#: Nothing of the browser's own may go out either, or a test of that proves nothing.
FLAGS = (
    "headless=new",
    "no-sandbox",  # CI runs as root
    "disable-gpu",
    "disable-quic",
    "no-first-run",
    "disable-background-networking",
    "disable-component-update",
    "disable-sync",
    "hide-scrollbars",
    # As Chromium 150, in which `scrollIntoView` moves the place where Tab starts.
    "disable-blink-features=ScrollIntoViewNoInitialFocusNavigationStartingPoint",
    "host-resolver-rules=MAP * ~NOTFOUND",
)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of 90 commits, with a wrong gradient, a finding and a truncated file.

    It shows all ops, and the times and the history of a few.
    """
    folder = tmp_path_factory.mktemp("year")
    results = folder / "results"
    invented.write_agree(results, invented.COMMITS - 1)
    invented.write_agree(
        results, invented.STEP, f"recorded/{invented.MACHINE}/agree.json"
    )
    invented.write_time(results, invented.COMMITS - 1, ops=invented.FEW)
    invented.write_history(results, invented.COMMITS, ops=invented.FEW)
    invented.write_finding(results)
    (results / "latest" / "agree-cut.json").write_text('{"schema": 1, "records": [')
    write_site(results, folder / "html")
    return folder / "html"


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """A browser; where there is none, its tests are skipped."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver:
        pytest.skip("no chromium here (Debian: apt install chromium chromium-driver)")
    options = ChromeOptions()
    options.binary_location = binary
    profile = tmp_path_factory.mktemp("profile")
    for flag in (*FLAGS, f"user-data-dir={profile}"):
        options.add_argument(f"--{flag}")
    options.set_capability(
        "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"}
    )
    browser = webdriver.Chrome(options=options, service=ChromeService(driver))
    browser.set_script_timeout(PATIENCE)
    yield browser
    browser.quit()
