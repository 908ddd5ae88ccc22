"""Shapes of inputs as a caller writes them, and other sizes of the same kind.

A shape is (64, 1000) or "64x1000"; "64x1000:bool" is a mask, "64x1000:complex" of
complex numbers, "32:10" of whole numbers below 10, and the 3 of "8x=3" stays 3. Lengths
that are equal vary together, such as the 1000 of x=(64, 1000) and of weight=(1000,).
A varied shape is used where the reference accepts it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradwatch.harness.judging.cases import TAILS

#: Precision of the parts of complex numbers.
COMPLEX = {"complex64": "float32", "complex128": "float64"}
#: Lengths of the small trials: different, odd, one of them above 32 (a warp).
SMALL = (33, 7, 5, 3)
#: A tail of two axes at once, such as height and width.
SQUARED = 65


@dataclass(frozen=True)
class Spec:
    """An input to be made: "float", "complex", "bool", or "int" below `below`.

    `pinned` are lengths that never vary.
    """

    shape: tuple[int, ...]
    kind: str = "float"
    below: int = 0
    pinned: tuple[int, ...] = ()

    @property
    def is_inexact(self) -> bool:
        """Whether its numbers are rounded."""
        return self.kind in ("float", "complex")

    def __str__(self) -> str:
        return "x".join(map(str, self.shape)) or "scalar"


Specs = tuple[Spec, ...]


def with_complex(specs: Specs) -> Specs:
    """Complex numbers in place of floats."""
    floats = {"float": "complex"}
    return tuple(replace(s, kind=floats.get(s.kind, s.kind)) for s in specs)


#: Shapes as a caller writes them: one for each input, or a single one as it is.
Shapes = str | Sequence[int] | Sequence[str | Sequence[int]]


def each(shapes: Shapes) -> Specs:
    """The spec of each input."""
    alone = isinstance(shapes, str) or all(isinstance(n, int) for n in shapes)
    listed: Any = [shapes] if alone else shapes
    return tuple(parsed(shape) for shape in listed)


def parsed(shape: str | Sequence[int]) -> Spec:
    """A shape as the caller wrote it; ValueError where it is none."""
    if not isinstance(shape, str):
        return Spec(tuple(int(n) for n in shape))
    lengths, _, kind = shape.partition(":")
    parts = lengths.split("x") if lengths else []
    try:
        size = tuple(int(n.removeprefix("=")) for n in parts)
        pinned = tuple(int(n[1:]) for n in parts if n.startswith("="))
        if min(size, default=0) < 0:
            raise ValueError
        if kind in ("", "float", "complex", "bool"):
            return Spec(size, kind or "float", pinned=pinned)
        return Spec(size, "int", int(kind), pinned)
    except ValueError:
        raise ValueError(
            f"no shape {shape!r}; write 64x1000, 64x=3 where the 3 must stay,"
            " 64x1000:bool for a mask, 64:complex, or 32:10 for whole numbers below 10"
        ) from None


def named(specs: Specs) -> str:
    """A name of shapes, such as 64x1000-1000."""
    return "-".join(map(str, specs))


def lengths(specs: Specs, pinned: Sequence[int] = ()) -> tuple[int, ...]:
    """The lengths that may vary, longest first; 1 is there to be broadcast."""
    everywhere = {n for spec in specs for n in spec.shape}
    kept = {1, *pinned, *(n for spec in specs for n in spec.pinned)}
    return tuple(sorted(everywhere - kept, reverse=True))


def resized(specs: Specs, change: Mapping[int, int]) -> Specs:
    """The same inputs with some lengths changed; labels stay below what they index."""
    made = []
    for spec in specs:
        # The length that labels index is the one they stay below, or a longer one.
        longer = [new for n, new in change.items() if n > spec.below]
        below = change.get(spec.below, min([spec.below, *longer]))
        shape = tuple(change.get(n, n) for n in spec.shape)
        made.append(replace(spec, shape=shape, below=below))
    return tuple(made)


def smaller(specs: Specs, pinned: Sequence[int] = ()) -> Specs:
    """Shapes of few elements, where a wrong value stands out; short lengths stay."""
    return resized(specs, _shortened(lengths(specs, pinned), SMALL))


def tails(specs: Specs, pinned: Sequence[int] = ()) -> Iterator[Specs]:
    """The shapes with each length in turn just above a power of two, others small.

    Two axes of one length grow together, and less.
    """
    free = lengths(specs, pinned)
    base = _shortened(free, SMALL[1:])
    turns = [*zip(free, TAILS, strict=False)]
    turns += [(free[0], TAILS[-1])] * (len(free) == 1)
    for n, tail in turns:
        twice = any(spec.shape.count(n) > 1 for spec in specs)
        yield resized(specs, {**base, n: SQUARED if twice else tail})


def _shortened(free: Sequence[int], to: Sequence[int]) -> dict[int, int]:
    """Lengths mapped to the shorter ones of `to`, longest first; its last repeats."""
    short = itertools.chain(to, itertools.repeat(to[-1]))
    return {n: min(n, s) for n, s in zip(free, short, strict=False)}


def rows_varied(specs: Specs, length: int) -> Specs:
    """The shapes with another first length, for equal lengths that mean two axes."""
    first = specs[0].shape[:1]
    if {*first} & {n for s in specs for n in s.pinned}:
        return specs
    return tuple(
        replace(s, shape=(length, *s.shape[1:])) if s.shape[:1] == first else s
        for s in specs
    )
