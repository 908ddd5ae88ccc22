"""erf and erfc in extended precision, against Arb at 400 bits."""

import flint
import numpy as np
import pytest

from gradwatch.impls.graph import special
from tests.balls import precise

POINTS = np.concatenate([np.linspace(-6, 10, 1601), np.logspace(-12, 0, 60), [1.0]])


def worst(name, dtype):
    """Largest relative error over the dtype's unit roundoff."""
    x = POINTS.astype(dtype)
    got = getattr(special, name)(x)
    assert got.dtype == dtype
    with precise():
        errors = [
            float(abs(1 - exactly(g) / getattr(exactly(v), name)()).abs_upper())
            for v, g in zip(x, got, strict=True)
            if v != 0
        ]
    return max(errors) / (np.finfo(dtype).eps / 2)


def exactly(number):
    """A longdouble as the sum of two doubles."""
    head = float(number)
    return flint.arb(head) + flint.arb(float(number - np.longdouble(head)))


@pytest.mark.parametrize("dtype", [np.float64, np.longdouble])
@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_the_error_is_a_few_units_of_the_last_place(name, dtype):
    """The reference's own error must be little beside one rounding, 2048 such units."""
    assert worst(name, np.dtype(dtype)) < 30


@pytest.mark.parametrize("dtype", [np.float64, np.longdouble])
def test_far_out_erf_is_one_and_erfc_is_zero(dtype):
    """1e7 + 1/3 squared is far from the square of its head, which is float32."""
    far = np.array([149.9, 1e7 + 1 / 3, 1e30], dtype)
    assert (special.erf(far) == 1).all()
    assert (special.erf(-far) == -1).all()
    assert (special.erfc(far) == 0).all()


def test_scipys_erf_in_float64_would_not_do_for_float64():
    """What 'a few units' is held against: float64 inside leaves about 1,000."""
    from scipy.special import erf

    x = POINTS[POINTS != 0].astype(np.longdouble)
    in_double = erf(x.astype(float)).astype(np.longdouble)
    off = np.abs(in_double / special.erf(x) - 1) / (np.finfo(np.longdouble).eps / 2)
    assert off.max() > 300


@pytest.mark.parametrize("name", ["erf", "erfc"])
def test_what_is_not_finite_has_its_limit(name):
    with np.errstate(all="ignore"):  # as in the engine's sweep
        got = getattr(special, name)(np.array([np.inf, -np.inf, np.nan, 0.0, -0.0]))
    expected = [1, -1, np.nan, 0, 0] if name == "erf" else [0, 2, np.nan, 1, 1]
    np.testing.assert_array_equal(got, expected)
