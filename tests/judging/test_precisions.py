"""Floating-point formats: their constants, and how they round."""

import ml_dtypes
import numpy as np
import pytest

from gradwatch.harness.judging.precisions import PRECISIONS

NAMES = list(PRECISIONS)


@pytest.mark.parametrize("name", NAMES)
def test_a_precision_is_what_its_dtype_says(name):
    precision, told = PRECISIONS[name], ml_dtypes.finfo(name)
    assert precision.roundoff == float(told.eps) / 2
    assert precision.smallest == float(told.tiny)
    assert precision.largest == float(told.max)


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_rounding_is_that_of_the_dtype(name):
    """Ten decades beyond both ends of the range, subnormals and overflow included."""
    rng = np.random.default_rng(1)
    values = rng.standard_normal(20_000) * 10.0 ** rng.uniform(-48, 42, 20_000)
    with np.errstate(over="ignore"):
        values = values.astype("float32").astype("float64")
        expected = values.astype(name).astype("float64")
    np.testing.assert_array_equal(PRECISIONS[name].round(values), expected)
