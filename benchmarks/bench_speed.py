"""The quick set: every op on every backend at the size in its middle, in float32."""

from benchmarks.recorded import (
    OPS,
    Found,
    Recorded,
    each_op,
    middle,
    recorded,
    sized,
)

DTYPE = "float32"  # what kernels are written for


def setup_cache() -> Found:
    """Measure all of it: five processes halve what one process is off by."""
    trials = [sized(op, middle(op), DTYPE) for op in OPS.values()]
    return recorded(trials, processes=5, seconds=0.01)


setup_cache.timeout = 900


class _Speed(Recorded):
    """Times and memory of an op whose gradients agree; n/a where they do not."""

    def time_forward(self, found, *parameters):
        """One forward pass, the device waited for."""
        self.pass_by("forward")

    def time_backward(self, found, *parameters):
        """One backward pass after one forward, the device waited for."""
        self.pass_by("backward")

    def track_first_call(self, found, *parameters):
        """The first forward and backward in a process that has run other ops."""
        return self.known(self.figures.first, "not timed")

    track_first_call.unit = "seconds"

    def track_peak_memory(self, found, *parameters):
        """Most bytes that a forward and backward hold beyond those held before."""
        return self.known(
            self.figures.peak, "too few bytes to see, or the framework keeps them"
        )

    track_peak_memory.unit = "bytes"


globals().update(each_op(_Speed, ["size", "dtype"], lambda op: ([middle(op)], [DTYPE])))
