"""How far backends are from each other, in rounding radii.

The ratio of a pair is |a - b| over the sum of both radii. Where it is above the limit,
one of the two is wrong; this needs no reference, and shows outliers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from gradwatch.harness.judging.reference import Reference
from gradwatch.harness.project.records import Number

#: The largest ratio of each two, by their names in alphabetical order.
Pairs = dict[str, dict[str, Number]]


def distances(
    right: Reference, tensor: str, tensors: Mapping[str, Mapping[str, Any]]
) -> Pairs:
    """The largest ratio of each two backends that have this tensor, in its shape.

    Only elements with a finite reference and radius count. A number that is missing in
    one of the two is infinitely far.
    """
    truth = right.truths["first"][tensor]
    found = {name: all_of_it.get(tensor) for name, all_of_it in tensors.items()}
    alike = {
        name: array
        for name, array in found.items()
        if array is not None and array.shape == truth.value.shape
    }
    sound = np.isfinite(truth.value) & np.isfinite(truth.radius)
    rows = [array[sound].astype(right.wide) for array in alike.values()]
    names, pairs = [*alike], Pairs()
    with np.errstate(all="ignore"):
        for i, name in enumerate(names[:-1]):
            gap = np.abs(np.stack(rows[i + 1 :]) - rows[i])
            ratios = np.where(gap == 0, 0.0, gap / (2 * truth.radius[sound]))
            worst = ratios.max(1, initial=0.0)  # nan where one is nan
            worst = np.where(np.isnan(worst), np.inf, worst).astype(np.float64)
            pairs[name] = dict(zip(names[i + 1 :], worst.tolist(), strict=True))
    return pairs


def largest(pairs: Pairs, backends: Collection[str]) -> float:
    """The largest ratio of two of these backends."""
    ratios = (
        ratio or 0.0
        for name, row in pairs.items()
        for other, ratio in row.items()
        if name in backends and other in backends
    )
    return max(ratios, default=0.0)


def keep_worst(worst: Pairs, pairs: Pairs) -> None:
    """Take in ratios where they are larger than what is there."""
    for name, row in pairs.items():
        own = worst.setdefault(name, {})
        for other, ratio in row.items():  # a million in a run
            if other not in own or (ratio or 0.0) > (own[other] or 0.0):
                own[other] = ratio
