"""Graphs on PyTorch's CPU: values, errors, draws and verdicts are those of NumPy."""

import contextlib
import itertools
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from gradwatch.harness.check.choice import out_of_memory  # noqa: E402  # PyTorch is optional
from gradwatch.harness.check.entry import check  # noqa: E402  # likewise
from gradwatch.harness.judging.acceptance.large import Least  # noqa: E402  # likewise
from gradwatch.harness.judging.precisions import arithmetics  # noqa: E402  # likewise
from gradwatch.harness.judging.rounding.analysis import (  # noqa: E402  # likewise
    limits,
    running_errors,
)
from gradwatch.harness.judging.spread import spread  # noqa: E402  # likewise
from gradwatch.impls import graph  # noqa: E402  # likewise
from gradwatch.impls.graph.tensors import _UFUNCS, Lacking, Tensor, put  # noqa: E402  # likewise
from tests.primitives import ALL, DRAWN, any_sign  # noqa: E402  # likewise

SINGLE, DOUBLE = arithmetics("float32")[0], arithmetics("float64")[0]
#: What a value is off by in float64, in units of a radius that was derived for float32.
WIDE = DOUBLE.step.roundoff / SINGLE.step.roundoff


def evaluated(name, device):
    """Output and gradients, with all that is known of their errors."""
    function, shapes = ALL[name]
    draw, rng = DRAWN.get(name, any_sign), np.random.default_rng(0)
    inputs = [np.float32(draw(rng, shape)).astype(float) for shape in shapes]
    with graph.on(device, least=0):
        leaves = [graph.variable(x) for x in inputs]
        y = function(*leaves)
        dy = rng.standard_normal(y.shape)
        gradients = graph.gradient([y], [dy], leaves)
        nodes = dict(enumerate(node for node in (y, *gradients) if node is not None))
        graph.forward(nodes.values())
    order = graph.topological_order(nodes.values())
    _, limit = limits(order)
    single, double = (running_errors(order, a, limit) for a in (SINGLE, DOUBLE))
    drawn = spread(nodes, order, single)
    for i, node in nodes.items():
        everywhere = np.arange(node.size)
        least = Least(SINGLE).radii(node, everywhere) if node.size else everywhere
        yield (
            [node.value, double.errors[node]],
            [single.errors[node], drawn[i], least],
            limit,
        )


def require_the_same(name, device):
    """As far as the running error of two evaluations in float64 reaches."""
    both = evaluated(name, "numpy"), evaluated(name, device)
    for ours, theirs in zip(*both, strict=True):
        (value, error), radii, limit = ours
        (other, _), others, _ = theirs
        assert isinstance(other, Tensor)
        assert other.t.device.type == device
        assert (other.shape, other.dtype) == (value.shape, value.dtype)
        room = 2 * limit * DOUBLE.step.roundoff * error
        assert (np.abs(np.asarray(other) - value) <= room).all()
        for one, two in zip(radii, others, strict=True):
            # Made of differences of values that lie a rounding of float32 apart.
            far = np.abs(np.asarray(two) - one)
            near = far <= 2 * limit * WIDE * one + room.reshape(one.shape)
            assert (near | (np.asarray(two) == one)).all()


@pytest.mark.parametrize("name", ALL)
def test_a_primitive_is_the_same_on_a_device(name):
    require_the_same(name, "cpu")


def test_a_function_that_is_off_in_one_of_its_places_is_seen(monkeypatch):
    off = 1 + 1e-12
    monkeypatch.setitem(_UFUNCS, np.exp, lambda x: torch.exp(x) * off)
    with pytest.raises(AssertionError):
        require_the_same("exp", "cpu")


def test_the_engine_needs_no_pytorch():
    code = "import sys, gradwatch.impls.graph; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


NUMBERS = np.array(
    [np.nan, np.inf, 0.0, 1.0, 0.5, 2.5, 1e-5, 700.0, 745.0, 1e300, 1e-300, 2.2e-308]
)
NUMBERS = np.concatenate((NUMBERS, -NUMBERS, [1 / 3, 5e-324]))


#: Of zeros of both signs any may be the smaller one.
EITHER_ZERO = (np.maximum, np.minimum, np.fmax, np.fmin, np.logaddexp)


def numbers_of(ufunc, dtype):
    """Pairs of all kinds, and what NumPy makes of them; None if that has no such."""
    with np.errstate(all="ignore"), contextlib.suppress(TypeError):
        numbers = (NUMBERS if dtype[0] == "f" else np.arange(4)[1:]).astype(dtype)
        pairs = np.array([*itertools.product(numbers, repeat=ufunc.nin)], dtype).T
        return pairs, ufunc(*pairs)


KINDS = [
    (ufunc, dtype)
    for ufunc in sorted(_UFUNCS.keys() - {np.matmul, np.ldexp}, key=str)
    for dtype in ("float64", "float32", "bool", "int64")
    if numbers_of(ufunc, dtype)
]


@pytest.mark.parametrize(("ufunc", "dtype"), KINDS, ids=str)
def test_a_function_is_numpys_of_every_kind_of_number(ufunc, dtype):
    """To some units in the last place; infinities, nan and signs of zero are alike."""
    with np.errstate(all="ignore"):
        pairs, right = numbers_of(ufunc, dtype)
        made = ufunc(*(put(x.copy(), "cpu") for x in pairs))
        several = isinstance(right, tuple)
        for y, found in zip(
            *((right, made) if several else ([right], [made])), strict=True
        ):
            assert found.dtype == y.dtype
            found = np.asarray(found)
            if y.dtype.kind != "f":
                np.testing.assert_array_equal(found, y)
                continue
            info = np.finfo(y.dtype)
            room = 8 * info.eps * np.abs(y) + 4 * info.smallest_subnormal
            near = (np.abs(found - y) <= room) | (found == y)
            assert (near | (np.isnan(found) & np.isnan(y))).all()
            same = (np.signbit(found) == np.signbit(y)) | np.isnan(y)
            assert ufunc in EITHER_ZERO or same.all()


@pytest.mark.parametrize("exponent", [-2100, -1074, -1022, -1, 0, 52, 1023, 2100])
def test_a_power_of_two_scales_as_numpys(exponent):
    x, n = NUMBERS, np.full(NUMBERS.size, exponent)
    with np.errstate(all="ignore"):
        right = np.ldexp(x, n)
    made = np.asarray(np.ldexp(put(x, "cpu"), n))
    np.testing.assert_allclose(made, right, rtol=0, atol=5e-324)


def test_a_function_that_is_not_in_the_table_says_so():
    x = put(np.ones(3), "cpu")
    for call, name in ((np.kron, "numpy.kron"), (np.heaviside, "numpy.heaviside")):
        with pytest.raises(Lacking, match=f"{name} is not defined"):
            call(x, x)
    with pytest.raises(Lacking, match=r"numpy\.subtract\.reduce"):
        np.subtract.reduce(x)


def test_extended_precision_is_computed_by_numpy():
    x = put(np.ones(3), "cpu")
    third = np.ones(3, np.longdouble) / 3
    assert (x + third).dtype == np.longdouble
    assert np.sum(x, dtype=np.longdouble).dtype == np.longdouble
    np.testing.assert_array_equal(np.where(x > 0, third, x), third)


def test_what_is_written_into_an_array_stays_where_that_is():
    here, there = np.ones(3), put(np.ones(3), "cpu")
    here += there
    there += np.ones(3)
    assert isinstance(here, np.ndarray)
    assert isinstance(there, Tensor)
    np.testing.assert_array_equal(here, np.full(3, 2.0))
    np.testing.assert_array_equal(there, here)


def softmax(x):
    return torch.softmax(x, -1)


class Softmax(torch.autograd.Function):
    factor = 1.0

    @staticmethod
    def forward(ctx, x):
        y = torch.softmax(x, -1)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, dy):
        (y,) = ctx.saved_tensors
        dx = y * (dy - (y * dy).sum(-1, keepdim=True))
        dx[-1] *= Softmax.factor
        return dx


@pytest.mark.parametrize("factor", [1.0, 1.001])
@pytest.mark.parametrize("shape", [(128, 200), (4, 8)], ids=["large", "in full"])
def test_a_kernel_is_judged_on_a_device_as_in_numpy(shape, factor, monkeypatch):
    monkeypatch.setattr(Softmax, "factor", factor)
    put_there, said = [], []
    monkeypatch.setattr(
        "gradwatch.impls.graph.tensors.put",
        lambda x, d: put_there.append(d) or put(x, d),
    )
    for device in ("numpy", "cpu"):
        with graph.on(device, least=16):
            report = check(
                *(lambda x: torch.softmax(x, -1), Softmax.apply),
                shapes=[shape],
                quick=factor != 1,
            )
        assert report.passes == (factor == 1)
        said.append([(row.trial, row.judgement.verdict) for row in report.rows])
        assert bool(put_there) == (device == "cpu")
    assert said[0] == said[1]


def test_out_of_memory_on_a_device_is_a_line_with_its_number():
    error = torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of"
        " 79.11 GiB of which 3.00 GiB is free."
    )
    has = "the GPU has 79.11 GiB of which 3.00 GiB is free"
    assert out_of_memory(error) == f"needs 20 GiB in one piece, and {has}"
