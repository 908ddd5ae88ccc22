"""The quick set: every op on every backend at its middle size, in float32."""

from gradwatch.benchmarks.recorded import (
    OPS,
    Found,
    Recorded,
    each_op,
    middle,
    recorded,
    sized,
)

DTYPE = "float32"  # the usual precision of kernels


def setup_cache() -> Found:
    """Measure the quick set; four processes halve the error of one."""
    trials = [sized(op, middle(op), DTYPE) for op in OPS.values()]
    return recorded(trials, processes=4, seconds=0.01)


setup_cache.timeout = 900


class _Speed(Recorded):
    """Times and memory of an op; n/a if its gradients do not agree."""

    def time_forward(self, found, *parameters):
        """One forward pass, with the wait for the device."""
        self.pass_by("forward")

    def time_backward(self, found, *parameters):
        """One backward pass after one forward, with the wait for the device."""
        self.pass_by("backward")

    def track_first_call(self, found, *parameters):
        """The first forward and backward in a process that has run other ops."""
        return self.known(self.figures.first, "not timed")

    track_first_call.unit = "seconds"

    def track_peak_memory(self, found, *parameters):
        """Peak memory of a forward and backward, beyond the memory held before."""
        return self.known(
            self.figures.peak, "too few bytes to measure, or the framework keeps them"
        )

    track_peak_memory.unit = "bytes"


globals().update(each_op(_Speed, ["size", "dtype"], lambda op: ([middle(op)], [DTYPE])))
