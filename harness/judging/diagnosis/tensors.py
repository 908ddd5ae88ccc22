"""Mistakes in a part of a tensor, and what tells its elements from others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.diagnosis.edits import Edit, by
from gradwatch.harness.judging.diagnosis.sweep import Array, Sweep
from gradwatch.harness.judging.diagnosis.words import factored, written

Mask = NDArray[np.bool_]
Part = tuple[float, str, Callable[[Array], Array]]
BLOCKS = (128, 64, 32, 16, 8)


def regions(sweep: Sweep, name: str, got: Array, room: Array) -> Iterator[Edit]:
    """What a part of a tensor became that came back, and may be off by `room`."""
    node = sweep.tensors[name]
    value = sweep.values[node]
    bad = ~(np.abs(got - value) <= room)
    if sweep.parts and not 1 < got.ndim == sum(got.shape[:-1]) + 1:
        return  # places of several rows are not those that they have in all
    for rank, words, of in (*_bounded(value, got, bad), *_part(value, got, bad)):
        made = {node: by(of, *node.inputs)}
        yield Edit(rank, words.format(name), (node,), made)


def _bounded(value: Array, got: Array, bad: Mask) -> Iterator[Part]:
    """Small elements that are zero, or large ones that are clipped."""
    size, here = np.abs(value), np.abs(got[bad])
    kept = size[~bad & (got != 0)]
    top, bound = float(here.max(initial=0.0)), float(size[bad].max(initial=0.0))
    if got.any() and bound > top == 0 and (not kept.size or bound <= kept.min()):
        words = f"elements of {{}} up to {bound:.9g} are zero"
        yield 3, words, lambda x: np.where(np.abs(x) <= bound, 0, x)
    brief = len(f"{top:.9g}") <= 4
    clipped = top > 0 and here.min() == top and bool((size[bad] > top).all())
    if clipped and (brief or kept.any()):
        words = f"{{}} is clipped to [-{top:.9g}, {top:.9g}]"
        yield 2 if brief else 7.5, words, lambda x: np.clip(x, -top, top)


def _part(value: Array, got: Array, bad: Mask) -> Iterator[Part]:
    """What is wrong in a part alone, if it is a factor of what belongs there."""
    region, where = region_of(bad)
    if not where:
        return
    filled, inside = got[region], value[region]
    if not np.isfinite(filled).any():
        words = f"{where} of {{}} is not finite"
        yield 1, words, lambda x: np.where(region, got, x)
    ratios = (filled / inside)[np.isfinite(filled / inside)]
    factor = float(np.median(ratios)) if ratios.size else np.nan
    plain = written(factor, (), 1e-3)
    if plain or (np.isfinite(factor) and inside.size > 2):
        factor, said = (plain or [(factor, f"multiplied by {factored(factor)}")])[0]
        words = f"{where} of {{}} is {said if factor else 'zero'}"
        yield 1 if plain else 7.5, words, lambda x: np.where(region, factor * x, x)


def region_of(bad: Mask) -> tuple[Mask, str]:
    """The box of slices around what is wrong, if nearly all in it is, and its name.

    The name is empty where there is none, or it is the whole tensor.
    """
    count = int(bad.sum())
    if not count or count == bad.size:
        return bad, ""
    if count == 1:
        at = ", ".join(str(int(i)) for i in np.argwhere(bad)[0])
        return bad, "the last element" if bad.flat[-1] else f"the element [{at}]"
    box, named = np.ones_like(bad), []
    for axis in range(bad.ndim):
        rest = tuple(i for i in range(bad.ndim) if i != axis)
        wrong = bad.any(rest, keepdims=True)
        box &= wrong
        if not wrong.all():
            along = f" along axis {axis}" if bad.ndim > 1 else ""
            named.append(_places(wrong.ravel()) + along)
    return (box, " and ".join(named)) if count >= 0.9 * box.sum() else (bad, "")


def _places(wrong: Mask) -> str:
    """Which places of an axis: one, a tail, the last of every block."""
    n, at = len(wrong), np.flatnonzero(wrong)
    start, steps = int(at[0]), {*np.diff(at).tolist()}
    if len(at) == n - start:
        fits = (b for b in BLOCKS if start and start % b == 0 and n - start < b)
        block = next(fits, 0)
        tail = f" (the tail after blocks of {block})" if block else ""
        return f"the last {len(at)} of {n}{tail}"
    if len(at) == 1:
        return f"slice {start} of {n}"
    if int(at[-1]) == len(at) - 1:
        return f"the first {len(at)} of {n}"
    if len(steps) == 1 and steps != {1}:
        (step,) = steps
        which = "the last of every block of" if start == step - 1 else "one of every"
        return f"{which} {step} of {n}"
    more = ", ..." if len(at) > 4 else ""
    return f"slices {', '.join(map(str, at[:4]))}{more} of {n}"


def split(bad: Mask, alike: Mapping[str, Any]) -> str:
    """The one threshold that tells wrong from right elements apart."""
    for name, array in alike.items():
        for text, seen in ((name, array.ravel()), (f"|{name}|", np.abs(array.ravel()))):
            low, high = seen[~bad], seen[bad]
            if len(low) > 1 < len(high):
                if low.max() < high.min():
                    return f"those where {text} is at least {high.min():.4g}"
                if high.max() < low.min():
                    return f"those where {text} is at most {high.max():.4g}"
    return ""
