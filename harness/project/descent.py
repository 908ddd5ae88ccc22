"""Shrinks a failing input greedily: the first smaller one that still fails is taken."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Input = TypeVar("Input")
Failure = TypeVar("Failure")


def descend(
    best: tuple[Input, Failure],
    steps: Callable[[Input], Iterable[Input]],
    failing: Callable[[Input], Failure | None],
    end: float,
) -> tuple[Input, Failure]:
    """The last input that fails, and its failure, on a path of `steps` to smaller ones.

    `failing` returns the failure of an input, if any; `end` is on time.monotonic.
    """
    moved = True
    while moved:
        moved = False
        for attempt in steps(best[0]):
            if time.monotonic() > end:
                return best
            failure = failing(attempt)
            if failure is not None:
                best, moved = (attempt, failure), True
                break
    return best


def plainer(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Ones, and the numbers to one and two significant digits, where these differ."""
    ones = np.ones(values.size)
    for flat in (ones, *([float(f"{v:.{n}e}") for v in values.flat] for n in (0, 1))):
        made = np.asarray(flat, values.dtype).reshape(values.shape)
        if not np.array_equal(made, values, equal_nan=True):
            yield made


#: A function of a shape: the index that shortens an array of that shape.
Cut = Callable[[Sequence[int]], tuple[slice, ...]]


def _cut(
    length: int, kept: slice, axis: int | None, shape: Sequence[int]
) -> tuple[slice, ...]:
    """The index that keeps `kept` of each axis of a length, or of one `axis` only."""
    return tuple(
        kept if n == length and axis in (None, place) else slice(None)
        for place, n in enumerate(shape)
    )


def cuts(shapes: Iterable[Sequence[int]]) -> Iterator[Cut]:
    """Cuts of tensors, to try in turn: of all axes of a length, then of one axis.

    To 1, to about a half, by one; from either end, where the failure may lie.
    """
    lengths = {(axis, n) for shape in shapes for axis, n in enumerate(shape) if n > 1}
    whole = [(n, None) for n in {n for _, n in lengths}]
    single = [(n, axis) for axis, n in lengths]
    for length, axis in (*sorted(whole, reverse=True), *sorted(single, reverse=True)):
        for shorter in dict.fromkeys((1, length // 2, length // 2 + 1, length - 1)):
            for start in dict.fromkeys((0, length - shorter)):
                if 0 < shorter < length:
                    yield partial(_cut, length, slice(start, start + shorter), axis)
