"""Arrays on pages."""

import numpy as np
import pytest

from gradwatch.harness.timing.timers import page_aligned


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (256, 33)])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "complex128"])
def test_an_array_is_copied_to_the_beginning_of_a_page(shape, dtype):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    placed = page_aligned(array)
    assert placed.size == 0 or placed.ctypes.data % 4096 == 0
    assert placed.dtype == array.dtype
    assert not np.shares_memory(placed, array)
    np.testing.assert_array_equal(placed, array, strict=True)


def test_a_strided_array_becomes_a_plain_one():
    array = np.arange(12.0).reshape(3, 4).T[::2]
    placed = page_aligned(array)
    assert placed.flags.c_contiguous
    np.testing.assert_array_equal(placed, array)
