"""Times forward and backward of all backends in turn: `gradwatch time`.

Backends of all frameworks are timed in turn, call by call, although each has its own
interpreter: the clock runs here and asks the workers for one sample at a time, never
for two at the same time. A backend that does not agree is not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradwatch.harness.judging.cases import Trial, variants
from gradwatch.harness.project.records import Phase, TimeRecord
from gradwatch.harness.timing.evidence.proof import Claims, Judge, proven
from gradwatch.harness.timing.evidence.rotation import unforeseen
from gradwatch.harness.timing.interleave import interleave
from gradwatch.harness.timing.remote import Remote, RemoteTimer, prepare_steps
from gradwatch.harness.timing.samples import Samples, few
from gradwatch.harness.workers.worker import Died, Worker
from gradwatch.impls.catalogue import framework_of

PHASES: tuple[Phase, ...] = ("forward", "backward")


def time_trial(
    trial: Trial,
    backends: Sequence[str],
    worker: Callable[[str], Worker],
    *,
    device: str = "cpu",
    budget: float,
    seed: int = 0,
) -> tuple[list[TimeRecord], dict[str, str]]:
    """Time both phases of a trial on backends that agree, all of them in turn.

    Args:
        trial: One case of an op, with its input values.
        backends: Names of backends that were judged and pass.
        worker: The worker of a framework.
        device: "cpu" or "cuda".
        budget: Seconds for the whole trial.
        seed: Seed of the random order of the samples.

    Returns:
        A record for each backend and phase, and the reasons for missing ones.
    """
    untimed: dict[str, str] = {}
    ready: dict[str, tuple[Worker, Mapping[str, Any]]] = {}
    sources = variants(trial, seed)
    judge = Judge([source.problem for source in sources], device)
    # A GPU's events are around each call, so none is batched.
    timer = RemoteTimer() if device == "cpu" else RemoteTimer(shortest=0.0)

    def take() -> tuple[dict[Any, Samples], Claims]:
        moves = unforeseen()
        for framework in sorted(set(map(framework_of, backends))):
            steps = {b: b for b in backends if framework_of(b) == framework}
            try:
                place = worker(framework)
                prepared = prepare_steps(place, sources, steps, device, seed=moves)
                ready.update(dict.fromkeys(steps, (place, prepared)))
            except Died as reason:
                untimed.update(dict.fromkeys(steps, str(reason)))
        places = {name: one[0] for name, one in ready.items() if name not in untimed}
        runs = {
            (name, phase): Remote(place, name, phase)
            for name, place in places.items()
            for phase in PHASES
        }
        samples = interleave(runs, budget=budget, timer=timer, seed=seed)
        return samples, {
            name: (place, {p: samples[name, p].median for p in PHASES})
            for name, place in places.items()
        }

    try:
        samples, refused = proven(take, judge)
    except (ValueError, Died) as reason:  # no time at all: a page has broken the clock
        return [], dict.fromkeys(backends, str(reason)) | untimed
    untimed |= refused
    least = judge.least
    records = [
        TimeRecord(
            op=trial.problem.op.name,
            case=trial.case,
            backend=name,
            framework=framework_of(name),
            framework_version=place.facts["version"],
            threads=place.facts["threads"],
            device=device,
            dtype=trial.problem.dtype,
            phase=phase,
            **_figures(samples[name, phase], least[phase].bytes),
            first=prepared["first"][name],
            bytes=least[phase].bytes,
            flops=least[phase].flops,
        )
        for name, (place, prepared) in ready.items()
        if name not in untimed
        for phase in PHASES
    ]
    return records, untimed


def _figures(samples: Samples, moved: int) -> dict[str, Any]:
    """The fields of a record that samples fill."""
    interval = samples.interval
    return {
        "seconds": samples.median,
        "low": interval.low,
        "high": interval.high,
        "samples": few(samples.seconds.tolist()),
        "taken": len(samples.seconds),
        "faults": samples.faults,
        "doubts": list(samples.doubts(moved)),
    }
