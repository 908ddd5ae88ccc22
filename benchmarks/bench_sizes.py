"""The full set: every op on every backend at all of its sizes and in two precisions."""

from gradwatch.benchmarks.recorded import OPS, Found, Recorded, each_op, recorded, sized

DTYPES = ["float32", "float64"]


def setup_cache() -> Found:
    """Measure the full set."""
    trials = [
        sized(op, size, dtype)
        for op in OPS.values()
        for size in op.sizes
        for dtype in DTYPES
    ]
    return recorded(trials, processes=3, seconds=0.01)


setup_cache.timeout = 7200


class _Sizes(Recorded):
    """The times of an op; n/a if its gradients do not agree."""

    def time_forward(self, found, *parameters):
        """One forward pass, with the wait for the device."""
        self.pass_by("forward")

    def time_backward(self, found, *parameters):
        """One backward pass after one forward, with the wait for the device."""
        self.pass_by("backward")


globals().update(each_op(_Sizes, ["size", "dtype"], lambda op: (op.sizes, DTYPES)))
