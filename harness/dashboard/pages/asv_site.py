"""Publishes asv's own site beside the dashboard."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers.lifetime import with_this_process

PATIENCE = 600  # seconds: asv needs a tenth of it for a thousand commits


def publish_asv(results: Path, target: Path) -> str:
    """Run `asv publish` into `target`; return why there is no site, or "".

    Our plug-in harness/history/asv_page.py links that site back to the dashboard.
    """
    if not (results / "benchmarks.json").exists():
        return "nothing has been recorded yet (asv run records)"
    if results.resolve() != ROOT / "results" / "asv":
        return "asv publishes the results of the checkout only"
    command = [sys.executable, "-m", "asv", "publish", "--html-dir", str(target)]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PATIENCE,
            preexec_fn=with_this_process(),
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"asv publish: {error}"
    if done.returncode or not (target / "index.html").exists():
        lines = (done.stderr or done.stdout).strip().splitlines() or ["it failed"]
        return f"asv publish: {lines[-1]}"
    return ""
