"""Takes the picture of the overview that the README shows: docs/overview.png.

`make pictures` writes the page first. It needs chromium; the browser loads nothing but
that page.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile

from gradwatch.harness.project.paths import ROOT

SIZE = "1280,1000"
FLAGS = (
    *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
    *("disable-background-networking", "disable-component-update", "disable-sync"),
    *("hide-scrollbars", f"window-size={SIZE}"),
)


def main() -> int:
    """Take the picture."""
    page, target = ROOT / "html" / "index.html", ROOT / "docs" / "overview.png"
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None or not page.exists():
        print("picture: needs chromium, and the page of `gradwatch report`")
        return 1
    with tempfile.TemporaryDirectory() as profile:
        flags = (*FLAGS, f"user-data-dir={profile}", f"screenshot={target}")
        call = [browser, *(f"--{flag}" for flag in flags), page.as_uri()]
        subprocess.run(call, check=True, capture_output=True)
    print(target.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
