"""Forward and backward of every op, for use while one works on it.

    pytest tests/perf --benchmark-only -k "softmax and backward"

A gradient is judged before it is timed, in the same process; one that does not agree is
not timed. What was timed is judged, too: the last call, and calls with other numbers
right after it. Every call is waited for inside the clock. Backends run one after the
other here, so a busy machine may slow one alone: `gradwatch compare` times in turn.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any

import pytest

from gradwatch.harness.judging.cases import REGIMES, Trial, trial
from gradwatch.harness.judging.question import Question
from gradwatch.harness.timing.handlers import evidence
from gradwatch.harness.timing.proof import Judge, variants, work
from gradwatch.harness.timing.rotation import (
    KEPT,
    Place,
    Rotation,
    unforeseen,
    witnessed,
)
from gradwatch.harness.timing.timers import aligned, timer_of
from gradwatch.harness.workers.evaluate import Missing, evaluate
from gradwatch.harness.workers.pool import Outcome, Task, why_unfit
from gradwatch.impls.catalogue import load_backend, load_op
from gradwatch.impls.contract import Step, Unsupported

DTYPE = "float32"


@lru_cache(maxsize=1)  # one op after the other, and the largest take many megabytes
def drawn(op: str, size: str) -> Trial:
    page = load_op(op)
    found = trial(page, page.sizes[size], REGIMES["normal"], DTYPE, source=op)
    return replace(found, problem=aligned(found.problem))


@cache
def judged(op: str, size: str, backend: str, device: str) -> tuple[str, float | None]:
    """Why it is not to be timed, or ""; and the worst ratio of error to rounding."""
    task = Task(drawn(op, size), backend, device)
    try:
        reply = {"kind": "result", "seconds": 0.0, **evaluate(task.payload())}
    except (Missing, Unsupported) as reason:
        return f"{type(reason).__name__.lower()}: {reason}", None
    except Exception as error:  # noqa: BLE001  # whatever an op or a framework raises
        return f"error: {error!r}", None
    outcome = Outcome.of(task, reply, "")
    verdicts = list(outcome.judged(Question.of(task.trial.problem)))
    ratios = [j.ratio for j in verdicts if math.isfinite(j.ratio)]
    return why_unfit((j.verdict, j.message) for j in verdicts), max(
        ratios, default=None
    )


@lru_cache(maxsize=1)
def judge(op: str, size: str, device: str) -> Judge:
    sources = [replace(one.problem, device=device) for one in variants(drawn(op, size))]
    return Judge(sources, device)


def ready(op: str, size: str, backend: str, device: str) -> Rotation:
    """Steps whose first calls are made, and whose numbers can change."""
    sources = judge(op, size, device).sources
    places = [Place(sources), Place(sources)]
    return Rotation(load_backend(backend), places, sources, seed=unforeseen())


def why_not_shown(rotation: Rotation, phase: str, right: Judge) -> str:
    """Judges the last call that was timed, and more calls with changing numbers."""
    rotation.note(phase)
    for _ in range(KEPT):
        witnessed(rotation, phase, timer_of(rotation.steps[0]), 1)
    seen = evidence(rotation)
    return next(iter(seen["against"]), "") or right.why_any_wrong(seen["results"])


def waited(step: Step, phase: str) -> Callable[[], None]:
    run, wait = getattr(step, phase), step.wait

    def call() -> None:
        run()
        wait()

    return call


def test_speed(
    benchmark: Any,
    request: pytest.FixtureRequest,
    op: str,
    size: str,
    phase: str,
    backend: str,
) -> None:
    device = request.config.getoption("device")
    why, ratio = judged(op, size, backend, device)
    if why:
        pytest.skip(f"not timed: {why}")
    least = work(drawn(op, size).problem)[phase]
    benchmark.group = f"{op} {size} {phase}"
    benchmark.extra_info.update(
        op=op,
        size=size,
        dtype=DTYPE,
        phase=phase,
        backend=backend,
        framework_version=load_backend(backend).version(),
        device=device,
        threads=os.environ.get("OMP_NUM_THREADS"),
        ratio=ratio,
        bytes=least.bytes,
        flops=least.flops,
    )
    rotation = ready(op, size, backend, device)
    benchmark(waited(rotation.step(phase), phase))
    assert benchmark.disabled or benchmark.stats.stats.min > 0
    why = why_not_shown(rotation, phase, judge(op, size, device))
    benchmark.has_error = bool(why)  # or its figure would be written all the same
    assert not why
