"""Arrays travel bit by bit and arrive in the layout asked for."""

import pickle
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from gradwatch.harness.workers.arrays import (
    LAYOUTS,
    decoded,
    encoded,
    lay_out,
)
from gradwatch.impls.catalogue import UnknownName

MATRIX = np.arange(6.0).reshape(2, 3)
DTYPES = ["float16", "float32", "float64", "int32", "int64", "bool", "complex64", ">f8"]
SHAPES = [(), (1,), (0,), (5,), (2, 3), (2, 0, 3), (2, 3, 4)]


def travelled(packed):
    """What arrives at the other end of a channel."""
    return decoded(encoded(packed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_array_arrives_as_it_left(dtype, shape):
    left = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    arrived = travelled(left)
    assert (arrived.dtype, arrived.shape) == (left.dtype, left.shape)
    assert arrived.tobytes() == left.tobytes()


def test_every_bit_of_a_nan_and_the_sign_of_zero_arrive():
    bits = np.array([0x7FF8DEADBEEF0001, 0xFFF0000000000001, 1 << 63], "uint64")
    arrived = travelled(bits.view("float64"))
    assert arrived.view("uint64").tolist() == bits.tolist()


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"expanded"}))
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_layout_changes_no_value_and_can_be_written_to(layout, dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    laid = lay_out(travelled(array), layout)
    assert (laid.dtype, laid.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(laid, array)
    laid[...] = 1
    assert (laid == 1).all()


@pytest.mark.parametrize(
    ("layout", "strides"),
    [
        ("contiguous", (24, 8)),
        ("permuted", (8, 16)),
        ("sliced", (48, 16)),
        ("negative", (-24, -8)),
    ],
)
def test_a_layout_has_its_strides(layout, strides):
    assert lay_out(MATRIX, layout).strides == strides
    assert lay_out(MATRIX.T.copy().T, layout).strides == strides


@pytest.mark.parametrize(
    ("array", "strides"),
    [
        (np.full((2, 3), 7.0), (0, 0)),
        (np.full((2, 3), np.nan), (0, 0)),
        (np.array([[1.0, 2, 3]] * 2), (0, 8)),
        (np.array([[1.0] * 3, [2.0] * 3]), (8, 0)),
        (np.array(7.0), ()),
    ],
)
def test_expanded_has_a_stride_of_0_where_nothing_changes(array, strides):
    laid = lay_out(array, "expanded")
    assert laid.strides == strides
    assert laid.tobytes() == array.tobytes()
    assert laid.flags.writeable


@pytest.mark.parametrize("array", [MATRIX, np.array([0.0, -0.0])], ids=repr)
def test_an_array_that_changes_everywhere_cannot_be_expanded(array):
    with pytest.raises(ValueError, match="changes along every axis"):
        lay_out(array, "expanded")


@pytest.mark.parametrize("shape", [(0,), (1,), (1, 1)], ids=str)
def test_an_array_with_nothing_to_repeat_is_as_good_as_expanded(shape):
    assert lay_out(np.zeros(shape), "expanded").shape == shape


def test_nan_lies_between_the_elements_of_a_sliced_array():
    assert np.isnan(lay_out(MATRIX, "sliced").base[:, 1::2]).all()


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"expanded"}))
def test_a_laid_out_array_shares_no_memory_with_the_given_one(layout):
    assert not np.shares_memory(lay_out(MATRIX, layout), MATRIX)


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, object, "U3", "M8[s]"])
def test_a_dtype_that_not_every_numpy_has_is_refused_by_name(dtype):
    with pytest.raises(TypeError, match=str(np.dtype(dtype)).split("[")[0]):
        encoded(np.zeros(3).astype("int64").astype(dtype))


def test_an_unknown_layout_names_the_nearest():
    with pytest.raises(UnknownName, match="did you mean 'permuted'"):
        lay_out(MATRIX, "permutted")


@pytest.mark.parametrize("value", [print, object(), Path])
def test_a_message_holds_arrays_and_builtin_types_alone(value):
    with pytest.raises(TypeError, match="of no builtin type"):
        encoded({"value": [value]})


@pytest.mark.parametrize("value", [print, MATRIX, np.float32(1)], ids=repr)
def test_a_message_that_would_import_or_call_is_refused(value):
    with pytest.raises(pickle.UnpicklingError, match="in a message"):
        decoded(pickle.dumps(value, protocol=4))


def test_a_complex_attribute_arrives():
    assert decoded(encoded({"value": 1 + 2j})) == {"value": 1 + 2j}


def test_attributes_arrive_as_builtin_types():
    given = {"eps": np.float32(0.5), "axes": (np.int64(-1), 0), "on": np.True_}
    arrived = travelled(given)
    assert arrived == {"eps": 0.5, "axes": (-1, 0), "on": True}
    assert [type(value) for value in arrived.values()] == [float, tuple, bool]


@pytest.mark.parametrize("kind", [np.float32, float, np.dtype("float32"), bool])
def test_a_type_of_numbers_arrives_as_a_dtype(kind):
    assert travelled([kind]) == [np.dtype(kind)]
