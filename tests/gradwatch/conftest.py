"""One wheel, and one environment with it, for all tests of a process."""

import pytest

from tests.gradwatch import installed


@pytest.fixture(scope="session")
def wheel(tmp_path_factory):
    return installed.wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def python(wheel, tmp_path_factory):
    """An interpreter with the wheel and all that it can need."""
    return installed.environment(tmp_path_factory.mktemp("all") / "venv", wheel)
