"""Running errors of arithmetic, of exponentials, and of waves.

Second-order terms are kept: u Ea Eb in a product, expm1 in an exponential, a
denominator that shrinks by its own error.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np

from gradwatch.harness.judging.rounding.errors import (
    At,
    Error,
    Table,
    largest,
    smallest,
)
from gradwatch.harness.judging.rounding.thresholds import FEW_DRAWS


def _sum(at: At) -> Error:
    error = _rounded_sum(at)
    for carried in at.inexact:
        if carried is not None:
            error = error + carried
    return error


def _rounded_sum(at: At) -> Error:
    """No rounding of whole numbers, nor where an operand is the sum in both types.

    The other one is far below its last place: a score under a mask of -1e30, or of the
    largest number.
    """
    (a, b), node = at.node.inputs, at.node
    of_a, of_b = node.value == a.value, np.abs(node.value) == np.abs(b.value)
    whole = (at.e[0] == 0) & (at.e[1] == 0)
    if np.count_nonzero(whole):
        whole &= (np.rint(at.a) == at.a) & (np.rint(at.b) == at.b)
        whole &= at.v <= 1 / at.roundoff
    elif not (np.count_nonzero(of_a) or np.count_nonzero(of_b)):
        return at.v
    far_a, far_b = (at.a + at.u * at.e[0], at.b + at.u * at.e[1])
    of_a &= (far_b > 0) & (far_b <= at.roundoff / 2 * (2 * at.a - far_a))
    of_b &= (far_a > 0) & (far_a <= at.roundoff / 2 * (2 * at.b - far_b))
    return np.where(whole | of_a | of_b, 0.0, at.v)


def _product(at: At) -> Error:
    (ea, eb), a, b = at.inexact, at.a, at.b
    error: Error = at.v + at.underflow
    if ea is not None:
        error += b * ea
    if eb is not None:
        error += (a if ea is None else a + at.u * ea) * eb
    if error.size and largest(error) < np.inf:  # false for nan
        return error
    (ea, eb) = at.e
    # What is exactly zero stays so, whatever finite number it is multiplied by.
    return _times(b, ea) + _times(a, eb) + at.u * _times(ea, eb) + at.v + at.underflow


def _times(a: Error, b: Error) -> Error:
    return np.where((a == 0) | (b == 0), 0.0, a * b)


def _quotient(at: At) -> Error:
    ea, eb = at.inexact
    left = at.b if eb is None else at.b - at.u * eb
    error: Error = at.v + at.underflow
    if eb is not None:
        error += at.v * eb / left
    if ea is not None:
        error += ea / left
    if left.size and smallest(left) > 0:
        return error
    return np.where(left > 0, error, np.inf)


def _power(at: At, logarithm: float = 1.0) -> Error:
    reach = logarithm * at.u * at.e[0]
    # Of 0 it is exactly 1 (IEEE 754-2019, 9.2.1): a softmax of one element is no noise.
    rounded = np.where((at.a == 0) & (at.e[0] == 0), 0.0, at.v + at.tiny)
    error: Error = at.v * np.expm1(reach) / at.u + rounded
    if error.size and at.v.min() > at.tiny * at.u and error.max() < np.inf:
        return error
    # Far below the smallest number it is zero, whatever the argument's error.
    gone = logarithm * at.node.inputs[0].value.astype(np.float64) + reach < at.log_least
    # All of it is lost: with a margin for the spread, which draws a part of it. In
    # extended precision what is lost may be too small for float64.
    lost = np.where(at.node.value != 0, np.maximum(at.v, np.finfo(float).tiny), 0.0)
    return np.where(gone, FEW_DRAWS * lost / at.u, error)


def _wave(slope: Callable[[Error], Error]) -> Callable[[At], Error]:
    def rule(at: At) -> Error:
        e = at.e[0]
        first = np.abs(slope(at.a)) * e + at.u * e * e / 2  # |f''| <= 1
        return np.fmin(first, 2 / at.u) + at.v

    return rule


RULES: Table = {
    "add": _sum,
    "subtract": _sum,
    "multiply": _product,
    "divide": _quotient,
    "negative": lambda at: at.e[0],
    "exp": _power,
    "exp2": functools.partial(_power, logarithm=math.log(2)),
    "sin": _wave(np.cos),
    "cos": _wave(np.sin),
}
