"""Arrays of 400-bit balls (Arb, through python-flint): a second opinion on numbers.

A ball carries a rigorous bound of its own error, and nothing here uses a VJP rule.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import flint
import numpy as np

BITS = 400  # 120 digits: a difference with step 2**-130 keeps 80 of them


@contextlib.contextmanager
def precise() -> Iterator[None]:
    """Arithmetic of balls at `BITS` bits."""
    before = flint.ctx.prec
    flint.ctx.prec = BITS
    try:
        yield
    finally:
        flint.ctx.prec = before


def balls(array) -> np.ndarray:
    """The same numbers, exactly, as balls."""
    array = np.asarray(array)
    flat = np.empty(array.size, dtype=object)
    flat[:] = [flint.arb(float(value)) for value in array.reshape(-1)]
    return flat.reshape(array.shape)


def digits(a, b) -> float:
    """Decimal digits in which two balls agree, relative to the larger."""
    gap = abs(a - b)
    scale = max(float(abs(a)), float(abs(b)))
    upper = float(gap.abs_upper())
    if upper == 0 or scale == 0:
        return float("inf") if upper == 0 else 0.0
    return float(np.log10(scale) - np.log10(upper))
