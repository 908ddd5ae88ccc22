"""An interrupt is heard wherever it comes."""

import gc
import os
import signal

import pytest

from harness.console.terminal import progress


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_interrupt_in_a_callback_of_the_garbage_collector_is_not_lost():
    def interrupt(phase, info):
        gc.callbacks.remove(interrupt)
        os.kill(os.getpid(), signal.SIGINT)

    with progress("looking") as advance:
        gc.callbacks.append(interrupt)
        gc.collect()  # Python drops what is raised in a callback
        with pytest.raises(KeyboardInterrupt):
            advance(1, 2)


def test_an_interrupt_is_raised_where_it_comes_and_the_old_handler_returns():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), progress("looking"):
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
