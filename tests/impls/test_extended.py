"""Products of long double matrices by float64, against exact rational arithmetic."""

from fractions import Fraction

import numpy as np
import pytest

from gradwatch.impls.graph import extended

pytestmark = pytest.mark.skipif(
    not extended.EXTENDED, reason="long double has no 64 bits here"
)
RNG = np.random.default_rng(25)
#: What the module's docstring proves of products of up to 256 and of 520 terms.
PROVEN = {40: 10, 256: 10, 520: 12}


def random(*shape):
    """All 64 bits of the significand are drawn."""
    low = RNG.standard_normal(shape).astype(np.longdouble) * 2.0**-53
    return RNG.standard_normal(shape) + low


def exact(number):
    significand, exponent = np.frexp(number)
    whole = Fraction(int(np.ldexp(significand, 64)))
    return whole * Fraction(2) ** (int(exponent) - 64)


def off(got, a, b):
    """The largest error, in units of 2^-64 |A| |B|."""
    a, b, got = (np.vectorize(exact, otypes=[object])(x) for x in (a, b, got))
    error, size = np.abs(got - a @ b), np.abs(a) @ np.abs(b)
    assert not error[size == 0].any()
    return float(max(error[size > 0] / size[size > 0])) * 2.0**64


KINDS = {
    "normal": lambda x: x,
    "all of one sign": np.abs,
    "sixteen decades": lambda x: x * 10.0 ** RNG.uniform(-8, 8, x.shape),
    "rows beyond float64": lambda x: x * np.ldexp(np.longdouble(1), 1100),
    "below float64": lambda x: x * np.ldexp(np.longdouble(1), -1100),
    "zeros": lambda x: x * (RNG.random(x.shape) < 0.3),
    "full of bits": lambda x: np.longdouble(1) - abs(x) * 2.0**-60,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("terms", PROVEN)
def test_a_product_is_as_precise_as_proven(terms, kind):
    a, b = KINDS[kind](random(4, terms)), KINDS[kind](random(terms, 5))
    assert off(extended.split_product(a, b), a, b) <= PROVEN[terms]


def test_leading_bits_that_are_too_many_are_seen(monkeypatch):
    """Of 2 * 25 bits and 256 terms the first product is no longer exact."""
    a, b = KINDS["all of one sign"](random(4, 256)), np.abs(random(256, 5))
    monkeypatch.setattr(extended, "_ROUNDER", 1.5 * 2.0 ** (52 - 27))
    assert off(extended.split_product(a, b), a, b) > PROVEN[256]


def test_a_rest_that_is_lost_is_seen(monkeypatch):
    """Without A2 B the product has 22 bits."""
    split = extended._split

    def without(values):
        leading, rest, whole = split(values)
        return leading, 0 * rest, whole

    a, b = random(8, 40), random(40, 9)
    monkeypatch.setattr(extended, "_split", without)
    assert off(extended.split_product(a, b), a, b) > 2.0**30


def test_elements_without_a_bound_are_computed_one_by_one(monkeypatch):
    """A row whose large term meets a zero: of what is left, float64 has few digits."""
    a, b = random(8, 40), random(40, 9)
    a[:, 0] *= 2.0**80
    b[0] = 0
    assert off(extended.split_product(a, b), a, b) <= PROVEN[40]
    monkeypatch.setattr(extended, "_one_by_one", lambda *_: None)
    assert off(extended.split_product(a, b), a, b) > PROVEN[40]


def test_stacks_are_multiplied_as_numpy_does():
    a, b = random(3, 1, 40, 16), random(2, 16, 40)
    got = extended.product(a, b)
    np.testing.assert_allclose(got, np.matmul(a, b), rtol=0, atol=1e-16)
    assert got.dtype == np.longdouble


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, np.longdouble("1e4000")])
def test_what_float64_cannot_hold_is_left_to_numpy(value):
    a, b = random(40, 64), random(64, 40)
    a[3, 5] = value
    assert extended.split_product(a, b) is None
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(extended.product(a, b), np.matmul(a, b))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_other_types_are_numpys(dtype):
    a, b = (RNG.standard_normal((64, 64)).astype(dtype) for _ in range(2))
    np.testing.assert_array_equal(extended.product(a, b), a @ b)
    assert extended.product(a, b).dtype == dtype
