"""What tests share: workers that live as long as the session of a test process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.fleet import Fleet


@pytest.fixture(scope="session")
def fleet() -> Iterator[Fleet]:
    """One worker per framework, started when first needed."""
    with Fleet(jobs=3) as workers:
        yield workers
