"""Frameworks that are judged in part, unless they and an op, or a case, are named.

JAX compiles every primitive for each shape and precision: 0.6 s of CPU time for a
softmax of 4 x 5 run primitive by primitive, 0.25 s compiled as a whole, and 3 ms and
0.3 ms from then on. All cases of all ops would take half an hour. The numbers of a
tensor cost nothing: each op is judged in its first case, in all regimes of values.
inductor takes 2 s of CPU time for each shape, layout and precision, most of it in g++,
and 5 s for its first: of it the sample is in C order only.
"""

from __future__ import annotations

from collections.abc import Sequence

from gradwatch.harness.judging.cases import Trial
from gradwatch.harness.project.traits import compiles, traits_of


def precisions(backend: str) -> Sequence[str]:
    """Those in which a sample is judged; empty where everything is."""
    return traits_of(backend).sampled if compiles(backend) else ()


def in_part(*, cases: Sequence[str], backends: Sequence[str], among: bool) -> bool:
    """Whether to judge a sample: not where a case is named, or a backend for some ops.

    `among` says whether ops or precisions are named.
    """
    return not (cases or (backends and among))


def in_sample(trial: Trial, backend: str) -> bool:
    """Whether a backend is judged in a trial when nothing is named."""
    some = precisions(backend)
    if not some:
        return True
    first = next(iter(trial.problem.op.cases), "")
    laid_out = traits_of(backend).compiles_layouts and trial.layout != "contiguous"
    return trial.case == first and trial.problem.dtype in some and not laid_out


def explained(backends: Sequence[str]) -> dict[str, str]:
    """What is judged of those backends that are judged in part, and why."""
    return {
        backend: "judged in the first case of each op"
        f"{', in C order' if traits_of(backend).compiles_layouts else ''}, in "
        f"{' and '.join(some)}: "
        "every shape is compiled; name --op and --backend to judge all of it"
        for backend in backends
        if (some := precisions(backend))
    }
