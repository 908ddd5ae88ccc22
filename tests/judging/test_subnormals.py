"""Flush-to-zero in the judge's own thread, which would make wrong zeros agree."""

import numpy as np
import pytest

from gradwatch.harness import judge
from gradwatch.impls.contract import Op

torch = pytest.importorskip("torch")
HALVES = Op("halves", inputs="x", formula=lambda xp, x: 0.5 * x)


@pytest.fixture
def flushing():
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush")
    yield
    torch.set_flush_denormal(False)


def attempt():
    """dx is a subnormal float64; what flushes returns 0, which is wrong."""
    x, dy = np.ones(2), np.full(2, 2.0**-1022)
    return judge(HALVES, [x], dy, [np.zeros(2)])[0]


@pytest.mark.usefixtures("flushing")
def test_a_thread_that_flushes_is_refused():
    with pytest.raises(FloatingPointError, match=r"set_flush_denormal\(False\)"):
        attempt()


def test_a_thread_that_does_not_flush_judges():
    assert attempt().expected == 2.0**-1023
