"""Mistakes in a part of a tensor, and what tells its elements from others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.diagnosis.edits import by
from gradwatch.harness.judging.diagnosis.sweep import Array, Edit, Sweep
from gradwatch.harness.judging.diagnosis.words import factored, written

Mask = NDArray[np.bool_]
BLOCKS = (128, 64, 32, 16, 8)
LAST = 9  # the rank of what is said only where no edit explains it


def regions(sweep: Sweep, name: str, got: Array, room: Array) -> Iterator[Edit]:
    """What a part of a tensor became that came back, and may be off by `room`."""
    node = sweep.tensors[name]
    value = sweep.values[node]
    bad = ~(np.abs(got - value) <= room)
    if sweep.parts and not 1 < got.ndim == sum(got.shape[:-1]) + 1:
        return  # places of several rows are not those that they have in all
    parts = list[tuple[float, str, Callable[[Array], Array]]]()
    region, where = region_of(bad)
    if where and not np.isfinite(got[region]).any():
        words = f"{where} of {{term}} is not finite"
        parts.append((1, words, lambda x: np.where(region, got, x)))
    # What is wrong in a part alone may be a factor of what belongs there.
    ratios = got[region] / value[region] if where else np.empty(0)
    finite = ratios[np.isfinite(ratios)]
    factor = float(np.median(finite)) if finite.size else np.nan
    plain = written(factor, (), 1e-3)
    if plain or (np.isfinite(factor) and ratios.size > 2):
        factor, said = (plain or [(factor, f"multiplied by {factored(factor)}")])[0]
        words = f"{where} of {{term}} is {said if factor else 'zero'}"
        rank = LAST if "slices" in where else 1 if plain else 7.5
        parts.append((rank, words, lambda x: np.where(region, factor * x, x)))
    size, here = np.abs(value), np.abs(got[bad])
    top = float(here.max(initial=0))
    brief = len(f"{top:.9g}") <= 4
    clipped = top > 0 and here.min() == top and bool((size[bad] > top).all())
    if clipped and (brief or got[~bad].any()):
        words = f"{{term}} is clipped to [-{top:.9g}, {top:.9g}]"
        parts.append((3 if brief else 7.5, words, lambda x: np.clip(x, -top, top)))
    for rank, words, of in parts:
        yield Edit(rank, words, (node,), {node: by(of, *node.inputs)})


def region_of(bad: Mask) -> tuple[Mask, str]:
    """The box of slices around what is wrong, if nearly all in it is, and its name.

    The name is empty where there is none, or it is the whole tensor.
    """
    box, named = np.ones_like(bad), []
    if not bad.any():
        return bad, ""
    if bad.sum() == 1:
        at = np.argwhere(bad)[0].tolist()
        return bad, "the last element" if bad.flat[-1] else f"the element {at}"
    for axis in range(bad.ndim):
        wrong = bad.any(tuple(i for i in range(bad.ndim) if i != axis), keepdims=True)
        box &= wrong
        if not wrong.all():
            along = f" along axis {axis}" if bad.ndim > 1 else ""
            named.append(_places(wrong.ravel()) + along)
    return (box, " and ".join(named)) if bad.sum() >= 0.9 * box.sum() else (bad, "")


def _places(wrong: Mask) -> str:
    """Which places of an axis: one, a tail, the last of every block."""
    n, at = len(wrong), np.flatnonzero(wrong).tolist()
    start, step = at[0], at[1] - at[0] if len(at) > 1 else 1
    if len(at) == n - start:
        fits = (b for b in BLOCKS if start and start % b == 0 and n - start < b)
        tails = (f" (the tail after blocks of {b})" for b in fits)
        return f"the last {len(at)} of {n}{next(tails, '')}"
    if len(at) == 1:
        return f"slice {start} of {n}"
    if at[-1] == len(at) - 1:
        return f"the first {len(at)} of {n}"
    if step > 1 and at == [*range(start, at[-1] + 1, step)]:
        which = "the last of every block of" if start == step - 1 else "one of every"
        return f"{which} {step} of {n}"
    more = ", ..." if len(at) > 4 else ""
    return f"slices {', '.join(map(str, at[:4]))}{more} of {n}"


def split(bad: Mask, alike: Mapping[str, Array]) -> str:
    """The one interval of values that tells wrong from right elements apart."""
    for name, array in alike.items() if 1 < bad.sum() < bad.size - 1 else ():
        for text, seen in ((name, array), (f"|{name}|", np.abs(array))):
            low, high, rest = seen[bad].min(), seen[bad].max(), seen[~bad]
            if (rest < low).all():
                return f"those where {text} is at least {low:.4g}"
            if (rest > high).all():
                return f"those where {text} is at most {high:.4g}"
            if bad.sum() > 3 and ((rest < low) | (rest > high)).all():
                return f"those where {text} is {low:.4g} to {high:.4g}"
    return ""
