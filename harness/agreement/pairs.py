"""How far backends are from each other, in rounding radii.

The ratio of a pair is |a - b| over the sum of both radii. Where it is above the limit,
one of the two is wrong; this needs no reference, and shows outliers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.harness.judging.reference import Reference
from gradwatch.harness.project.records import Number

#: The largest ratio of each two, by their names in alphabetical order.
Pairs = dict[str, dict[str, Number]]


@dataclass(frozen=True)
class Distances:
    """The backends that have a tensor, and the largest |a - b| of each two.

    Attributes:
        names: Of the n backends.
        ratios: (n, n), symmetric, divided by the sum of both radii; infinite where a
            number is missing.
    """

    names: tuple[str, ...]
    ratios: NDArray[np.float64]

    def largest(self, backends: Collection[str]) -> float:
        """The largest ratio of two of these backends."""
        of_them = [i for i, name in enumerate(self.names) if name in backends]
        return float(self.ratios[np.ix_(of_them, of_them)].max(initial=0.0))


NONE = Distances((), np.zeros((0, 0)))


def distances(
    right: Reference, tensor: str, tensors: Mapping[str, Mapping[str, Any]]
) -> Distances:
    """Between all backends that have this tensor, in the right shape.

    Only elements with a finite reference and radius count.
    """
    truth = right.truths["first"][tensor]
    names = [n for n, t in tensors.items() if _comparable(t.get(tensor), truth.value)]
    if len(names) < 2:
        return NONE
    rows, distinct = _rows([tensors[n][tensor] for n in names])
    sound = np.isfinite(truth.value) & np.isfinite(truth.radius)
    flat = np.stack([array[sound].astype(right.wide) for array in distinct])
    ratios = _between(flat, truth.radius[sound])[np.ix_(rows, rows)]
    np.fill_diagonal(ratios, 0.0)
    return Distances(tuple(names), ratios)


def _comparable(array: Any, like: NDArray[Any]) -> bool:
    return array is not None and array.shape == like.shape


def _rows(arrays: Sequence[NDArray[Any]]) -> tuple[list[int], list[NDArray[Any]]]:
    """The place of each among those that differ in some bit, and these."""
    places: dict[tuple[np.dtype[Any], bytes], int] = {}
    rows, distinct = list[int](), list[NDArray[Any]]()
    for array in arrays:
        bits = (array.dtype, array.tobytes())
        if bits not in places:
            places[bits] = len(distinct)
            distinct.append(array)
        rows.append(places[bits])
    return rows, distinct


def _between(flat: NDArray[Any], radius: NDArray[Any]) -> NDArray[np.float64]:
    """The largest ratio of each two rows; a missing number is far even from itself."""
    apart = np.diag(np.where(np.isfinite(flat).all(1), 0.0, np.inf))
    first, second = _above_the_diagonal(len(flat))
    if len(first):
        with np.errstate(all="ignore"):
            gap = np.abs(flat[first] - flat[second])
            ratios = np.where(gap == 0, 0.0, gap / (2 * radius))
        worst = ratios.max(1, initial=0.0).astype(np.float64)  # nan where one is nan
        worst[np.isnan(worst)] = np.inf
        apart[first, second] = apart[second, first] = worst
    return apart


@cache
def _above_the_diagonal(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    first, second = np.triu_indices(size, 1)
    return first, second


def of_trial(found: Iterable[Distances]) -> Pairs:
    """The largest ratios of all tensors of a trial."""
    together: dict[tuple[str, ...], NDArray[np.float64]] = {}
    for one in found:
        before = together.get(one.names, one.ratios)
        together[one.names] = np.maximum(before, one.ratios)
    pairs: Pairs = {}
    for names, ratios in together.items():
        for i, (name, row) in enumerate(zip(names[:-1], ratios.tolist(), strict=False)):
            others = zip(names[i + 1 :], row[i + 1 :], strict=True)
            keep_worst(pairs.setdefault(name, {}), others)
    return pairs


def keep_worst(worst: dict[str, Number], ratios: Iterable[tuple[str, Number]]) -> None:
    """Take in ratios by name, where they are larger than what is there."""
    for name, ratio in ratios:  # a million in a run
        if name not in worst or (ratio or 0.0) > (worst[name] or 0.0):
            worst[name] = max(0.0, ratio or 0.0)
