"""Recognises slow drift: a ramp that fits a stretch better than its steps do."""

from __future__ import annotations

import math
from itertools import groupby

import numpy as np

from gradwatch.harness.history.noise import FURTHEST, TINY, Trace, Values
from gradwatch.harness.history.steps import Jump, neighbours, step

RAMP = 12  # runs; a faster change is a step
GRID = 12  # starts and ends of a ramp that are tried
BETTER = 0.75  # a ramp must leave at most this share of the steps' squared residuals
RAMP_ERRORS = 8.0  # standard errors of its height
RAMP_SMALLEST = 0.08  # its height; a smaller one looks like wander


def with_ramps(cuts: list[int], trace: Trace) -> list[Jump]:
    """Turn cuts into steps; cuts that a ramp fits better become drift."""
    steps = [step(cut, trace) for cut in neighbours(cuts)]
    if not steps:
        ramp = _ramp(cuts, trace)
        return [ramp] if ramp else []
    jumps: list[Jump] = []
    done = 0
    for _, alike in groupby(steps, key=lambda step: step.after > step.before):
        group = list(alike)
        ramp = _ramp(cuts[done : done + len(group) + 2], trace)
        jumps += [ramp] if ramp else group
        done += len(group)
    return jumps


def _ramp(cuts: list[int], trace: Trace) -> Jump | None:
    """Fit level, ramp, level to the stretch of these cuts; None if cuts fit better."""
    start, *inner, end = cuts
    if inner:
        start = max(start, inner[0] - FURTHEST)
        end = min(end, inner[-1] + FURTHEST)
    count = end - start
    if count < 2 * RAMP:
        return None
    values = np.diff(trace.sums[start : end + 1])
    first, last = np.triu_indices(GRID)
    starts = np.linspace(0, count - RAMP, GRID)[first]
    ends = np.linspace(RAMP, count, GRID)[last]
    lengths = (ends - starts)[:, None]
    shapes = np.clip((np.arange(count) - starts[:, None]) / lengths, 0, 1)
    shapes -= shapes.mean(axis=1, keepdims=True)
    weights = (shapes**2).sum(axis=1)
    heights = shapes @ values / weights
    best = int(np.argmax(heights**2 * weights))
    height = float(heights[best])
    left = values - values.mean() - height * shapes[best]
    pieces = np.split(values, [place - start for place in inner])
    stairs = sum(float(((piece - piece.mean()) ** 2).sum()) for piece in pieces)
    error = math.sqrt(_long_run(left) / weights[best])
    if (left**2).sum() > BETTER * stairs or abs(height) < RAMP_SMALLEST:
        return None
    if abs(height) < RAMP_ERRORS * trace.caution * error:
        return None
    before = float(values.mean() + height * shapes[best].min())
    place = int(trace.kept[start + int(starts[best])])
    return Jump(place, before, before + height, error, "drift", False)


def _long_run(residuals: Values) -> float:
    """Variance of residuals, increased by their first autocorrelation as for AR(1)."""
    square = float((residuals**2).mean()) + TINY
    one = float((residuals[1:] * residuals[:-1]).mean()) / square
    one = min(max(one, 0.0), 0.95)  # 0.95: with more, the stretch is too short
    return square * (1 + one) / (1 - one)
