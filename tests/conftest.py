"""What tests share: workers that live as long as the session of a test process."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator

import pytest

from gradwatch.harness.diagnosis.search import Diagnoses
from gradwatch.harness.project.paths import ROOT
from gradwatch.harness.workers import integrity
from gradwatch.harness.workers.interpreters import interpreter_of
from gradwatch.harness.workers.pool import Fleet
from tests.copies import CODE
from tests.frameworks import SHARED

#: Why a test may be skipped even under CI: no package brings these to a machine.
NOT_TO_BE_HAD = re.compile(
    r"CUDA|GPU|C\+\+ compiler|huge pages|others end when they are idle|glibc"
    r"|not a git checkout|AVX512"
)

#: Test processes run side by side: more threads than cores only wait for each other.
#: What the first process sets here holds for all that it starts.
for _variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

#: What tests run is not shown as what this checkout's last runs found.
os.environ["GRADWATCH_RESULTS"] = "off"


_compiling: list[subprocess.Popen[bytes]] = []


def pytest_configure(config: pytest.Config) -> None:
    """Share a folder, and compile our modules once: a thousand processes import them.

    Where PYTHONDONTWRITEBYTECODE is set, each would compile them again. It stays set:
    a page that is written twice in a second would be taken from its old bytecode.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell starts what runs in the background so, and its children inherit it:
        # those that a test interrupts would not end.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(config, "workerinput"):
        return
    shared = tempfile.TemporaryDirectory(prefix="gradwatch-tests-")
    config.add_cleanup(shared.cleanup)
    os.environ[SHARED] = shared.name
    if not sys.dont_write_bytecode:
        return
    call = ["-m", "compileall", "-q", *CODE]
    for framework in ("torch", "oneflow"):
        interpreter = interpreter_of(framework)
        if not interpreter.why_missing:
            _compiling.append(subprocess.Popen([interpreter.python, *call], cwd=ROOT))


def pytest_unconfigure() -> None:
    """End what was kept for all tests; the compilers ended long ago."""
    if kept := sys.modules.get("tests.command_line"):
        kept.close()
    for process in _compiling:
        process.wait()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Keep the rewritten assertions of the test modules from one run to the next."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = before


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


@pytest.fixture(autouse=True)
def the_same_draws() -> None:
    """A module's parameters are the same whichever tests ran before in the process."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture
def undiagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A verdict alone, without the search for what explains it: half of the time."""
    monkeypatch.setattr(Diagnoses, "sentences", lambda *_, **__: {})


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """One worker per framework, started when first needed."""
    with Fleet(jobs=3) as workers:
        yield workers
