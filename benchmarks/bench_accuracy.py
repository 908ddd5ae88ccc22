"""Accuracy: the worst ratio of error to rounding radius of each op."""

from collections import defaultdict

from gradwatch.benchmarks.recorded import OPS, Found, Recorded, each_op, recorded
from gradwatch.harness.history.measure import Figures
from gradwatch.harness.judging.cases import trials

DTYPES = ["float32", "float64"]


def setup_cache() -> Found:
    """Judge all cases of all pages, and keep the worst of each op."""
    asked = [
        trial
        for op in OPS.values()
        for trial in trials(op, regimes=["normal"], dtypes=DTYPES)
    ]
    folded = defaultdict(list)
    for (op, _, *others), figures in recorded(asked, processes=0, seconds=0).items():
        folded[(op, *others)].append(figures)
    return {key: worst_of(several) for key, several in folded.items()}


def worst_of(several):
    """The largest ratio of several cases, and their reasons for missing figures."""
    ratios = [figures.ratio for figures in several if figures.ratio is not None]
    why = "; ".join(figures.why for figures in several if figures.why)
    return Figures(why=why, ratio=max(ratios, default=None))


setup_cache.timeout = 900


class _Accuracy(Recorded):
    """The accuracy of an op."""

    def track_gradient_ratio(self, found, *parameters):
        """The worst error of a gradient over its rounding radius, in all cases."""
        return self.known(self.figures.ratio, "no ratio is a number")

    track_gradient_ratio.unit = "radii"


globals().update(each_op(_Accuracy, ["dtype"], lambda op: (DTYPES,)))
