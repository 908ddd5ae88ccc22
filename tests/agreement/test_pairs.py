"""How far backends are from each other, in rounding radii."""

from types import SimpleNamespace

import numpy as np
import pytest

from gradwatch.harness.agreement.suite import distances, keep_worst

VALUE = np.array([1.0, 2.0, np.inf, 4.0])
RADIUS = np.array([0.5, 0.25, 1.0, np.inf])  # the first two elements count


def right(wide="longdouble"):
    truth = SimpleNamespace(value=VALUE, radius=RADIUS)
    radii = SimpleNamespace(bounds={"dx": truth})
    return SimpleNamespace(radii=lambda: radii, wide=wide)


def found_in(tensors, *wide):
    """The ratios by pair."""
    pairs = distances(right(*wide), "dx", tensors)
    return {(a, b): ratio for a, row in pairs.items() for b, ratio in row.items()}


def apart(a, b):
    """By hand, from one pair alone."""
    found = 0.0
    for one, other, radius in zip(a[:2], b[:2], RADIUS[:2], strict=True):
        if np.isnan(one - other):
            return np.inf
        found = max(found, abs(float(one) - float(other)) / (2 * radius))
    return found


ROWS = {
    "a": [1.0, 2.0, 3.0, 4.0],
    "b": [1.0, 2.0, 3.0, 4.0],  # the bits of a
    "c": [1.5, 2.0, 0.0, 0.0],
    "d": [np.nan, 2.0, 3.0, 4.0],
    "e": [np.nan, 2.0, 3.0, 4.0],  # the bits of d, and no nearer for it
    "f": [np.inf, 2.0, 3.0, 4.0],
    "g": [1.0, -2.0, 3.0, 4.0],
    "h": [1.0, 2.0, np.nan, np.nan],  # where nothing counts
}


@pytest.mark.parametrize(
    ("dtype", "wide"), [("float32", "float64"), ("float64", "longdouble")]
)
def test_every_pair_is_as_far_apart_as_the_two_alone(dtype, wide):
    tensors = {n: {"dx": np.array(row, dtype)} for n, row in ROWS.items()}
    found = found_in(tensors, wide)
    names = [*ROWS]
    assert found == {
        (a, b): apart(tensors[a]["dx"], tensors[b]["dx"])
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    }
    assert found["a", "b"] == 0
    assert found["d", "e"] == found["a", "d"] == np.inf
    assert found["a", "g"] == 8


def test_equal_numbers_in_another_dtype_are_not_apart():
    tensors = {d: {"dx": np.array([1.0, 2, 3, 4], d)} for d in ("float32", "float64")}
    assert found_in(tensors) == {("float32", "float64"): 0.0}


def test_who_has_no_tensor_or_another_shape_is_in_no_pair():
    tensors = {
        "a": {"dx": np.ones(4)},
        "b": {},
        "c": {"dx": np.ones((2, 2))},
        "d": {"dx": np.ones(4)},
    }
    assert set(found_in(tensors)) == {("a", "d")}


FAR = {"a": {"b": 5.0, "c": 1.0}, "b": {"c": 0.0}}


def test_of_several_tensors_the_largest_ratios_count():
    near = {"a": {"b": 1.0, "c": 2.0}, "b": {"c": 3.0}}
    worst = {}
    for pairs in (near, FAR, {}, {"a": {"c": np.inf}}):
        keep_worst(worst, pairs)
    assert worst == {"a": {"b": 5.0, "c": np.inf}, "b": {"c": 3.0}}
