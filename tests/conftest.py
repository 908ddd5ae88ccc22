"""What tests share: workers that live as long as the session of a test process."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from harness.workers.pool import Fleet


def pytest_collection_finish() -> None:
    """The clock clears garbage before it times, which need not look at 2,000 tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """One worker per framework, started when first needed."""
    with Fleet(jobs=3) as workers:
        yield workers
