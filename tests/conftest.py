"""What tests share: workers that live as long as the session of a test process."""

from __future__ import annotations

import gc
import os
import re
from collections import Counter
from collections.abc import Generator, Iterator

import pytest

from harness.workers import integrity
from harness.workers.pool import Fleet

#: Why a test may be skipped even under CI: no package brings these to a machine.
NOT_TO_BE_HAD = re.compile(
    r"CUDA|GPU|huge pages|others end when they are idle|glibc|not a git checkout"
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under CI a test that is skipped for want of something that can be had fails."""
    report = yield
    if report.skipped and "CI" in os.environ and not hasattr(report, "wasxfail"):
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else ""
        if not NOT_TO_BE_HAD.search(str(reason)):
            report.outcome = "failed"
            report.longrepr = (
                f"skipped under CI, where nothing may be missing: {reason}"
            )
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line with the number of skipped tests, by reason."""
    reports = terminalreporter.stats.get("skipped", [])
    reasons = Counter(
        str(r.longrepr[-1]).removeprefix("Skipped: ")
        for r in reports
        if isinstance(r.longrepr, tuple)
    )
    counts = "; ".join(f"{count} ({why})" for why, count in reasons.most_common())
    terminalreporter.write_line(f"skipped: {counts or 'none'}")


def pytest_collection_finish() -> None:
    """The clock clears garbage before it times, which need not look at 2,000 tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test has replaced must not speak against the times of another."""
    monkeypatch.setattr(integrity, "_originals", {})
    monkeypatch.setattr(integrity, "_settings", {})


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """One worker per framework, started when first needed."""
    with Fleet(jobs=3) as workers:
        yield workers
