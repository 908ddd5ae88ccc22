"""Floating-point formats, and the arithmetics in which implementations compute."""

from __future__ import annotations

import functools
import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Mask = NDArray[np.bool_]


class Precision:
    """A floating-point format (IEEE 754-2019, table 3.1; bfloat16: Intel 2018).

    Attributes:
        digits: Bits of the significand.
        least: Exponent of the smallest normal number.
        most: Exponent of the first power of two that overflows.
        roundoff: Unit roundoff u, the largest relative error of rounding to nearest.
        trace: Share of a loss below which any number but 0 shows that nothing was lost.
        smallest: Smallest normal number.
        floor: Largest error of one last rounding where the result underflows.
        nothing: Largest magnitude that is rounded to zero; that of float64 is zero.
        largest: Largest finite number.
        beyond: Least magnitude that is rounded to infinity: half a unit above that.
    """

    def __init__(self, name: str, digits: int, least: int, most: int) -> None:
        self.name, self.digits, self.least, self.most = name, digits, least, most
        self.roundoff = math.ldexp(1.0, -digits)
        # As careless sums of 16 bits are so small by chance, it is u squared there.
        self.trace = self.roundoff ** (1 if digits > 11 else 2)
        self.smallest = math.ldexp(1.0, least)
        # Subnormal results may be flushed to zero (XLA, `set_flush_denormal`), but
        # conversions by F16C and half instructions of GPUs keep those of float16.
        self.floor = self.smallest * (self.roundoff if name == "float16" else 1.0)
        self.nothing = math.ldexp(1.0, least - digits)
        self.largest = math.ldexp(2.0 - 2.0 ** (1 - digits), most - 1)
        kind = np.longdouble if name == "float64" else float
        self.beyond: Any = kind(self.largest) + kind(2.0) ** (most - digits - 1)

    def round(self, values: Array) -> Array:
        """The nearest numbers of this format, kept in the dtype of `values`.

        Ties go to even; subnormal numbers and overflow are those of the format.
        """
        with np.errstate(all="ignore"):
            if self.name != "bfloat16":
                return values.astype(self.name).astype(values.dtype)
            _, exponent = np.frexp(values)
            finest = np.maximum(exponent, self.least + 1) - self.digits
            rounded = np.ldexp(np.rint(np.ldexp(values, -finest)), finest)
            too_large = np.abs(rounded) > self.largest
            return np.where(too_large, np.copysign(np.inf, values), rounded)


PRECISIONS = {
    p.name: p
    for p in (
        Precision("float64", 53, -1022, 1024),
        Precision("float32", 24, -126, 128),
        Precision("float16", 11, -14, 16),
        Precision("bfloat16", 8, -126, 128),
    )
}


@dataclass(frozen=True)
class Arithmetic:
    """The precisions in which an implementation computes.

    `step` is that of every intermediate result, `stored` that of the results; `sums` is
    the unit roundoff of additions inside a sum or matrix product, `products` that of
    the operands of a matrix product.
    """

    name: str
    step: Precision
    sums: float
    products: float
    stored: Precision

    @property
    def has_wide_sums(self) -> bool:
        """Whether sums are accumulated in a wider type than that of their results."""
        return self.sums < self.step.roundoff


#: Digits of the significand of the inputs of TF32 products (NVIDIA A100 white paper).
TF32_ROUNDOFF = 2.0**-11


@functools.lru_cache(maxsize=64)  # NumPy works the name out each time
def name_of(dtype: Any) -> str:
    """Name of a dtype, NumPy's or a framework's."""
    return getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]


def compute_on(device: str, dtype: str) -> str | None:
    """The `compute` of `arithmetics` that backends use; None for the default.

    The environment variable GRADWATCH_TF32=1 lets a GPU use TF32, in the worker
    (`impls/backends/_torch.py`) and here, so that it is judged as such.
    """
    tf32 = os.environ.get("GRADWATCH_TF32") == "1"
    return "tf32" if tf32 and (device, dtype) == ("cuda", "float32") else None


@functools.cache
def arithmetics(dtype: str, compute: str | None = None) -> tuple[Arithmetic, ...]:
    """The arithmetics in which tensors of a dtype may have been computed, widest first.

    By default tensors of 32 and 64 bits are computed in their own precision; tensors of
    16 bits in float32 with one rounding at the end, or "mixed": every step is rounded
    to 16 bits, and sums are accumulated in float32. All frameworks do one of the two.

    Raises:
        ValueError: no such `compute`, or none for tensors of this dtype.
    """
    stored, single = PRECISIONS[dtype], PRECISIONS["float32"]
    inside = Arithmetic("float32", single, single.roundoff, single.roundoff, stored)
    mixed = Arithmetic("mixed", stored, single.roundoff, single.roundoff, stored)
    named = {dtype: Arithmetic(dtype, stored, stored.roundoff, stored.roundoff, stored)}
    if dtype == "float32":
        u = single.roundoff
        named["tf32"] = Arithmetic("tf32", single, u, TF32_ROUNDOFF, single)
    if dtype in ("float16", "bfloat16"):
        named = {"float32": inside, "mixed": mixed, **named}
    if compute is None:
        return (inside, mixed) if "mixed" in named else (named[dtype],)
    if compute not in named:
        raise ValueError(f"{dtype} tensors are computed in {', '.join(named)}")
    return (named[compute],)
