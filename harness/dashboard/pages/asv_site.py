"""Publishes asv's own site beside the dashboard."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers.lifetime import with_this_process

PATIENCE = 600  # seconds: asv needs a tenth of it for a thousand commits


@dataclass(frozen=True)
class AsvSite:
    """Whether asv's site was published; `why` says why not."""

    published: bool
    why: str = ""


NOT_ASKED = AsvSite(False, "gradwatch report --asv adds it")


def publish_asv(results: Path, target: Path) -> AsvSite:
    """Run `asv publish` into `target`.

    Our plug-in harness/history/asv_page.py links that site back to the dashboard.
    A failure is reported; the dashboard is written without asv's site then.
    """
    if not (results / "benchmarks.json").exists():
        return AsvSite(False, "nothing has been recorded yet (asv run records)")
    if results.resolve() != ROOT / "results" / "asv":
        return AsvSite(False, "asv publishes the results of the checkout only")
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
        return AsvSite(False, f"asv publish: {error}")
    if done.returncode or not (target / "index.html").exists():
        lines = (done.stderr or done.stdout).strip().splitlines()
        return AsvSite(False, f"asv publish: {lines[-1] if lines else 'it failed'}")
    return AsvSite(True)
