"""The logarithm of a sum of exponentials; its gradient comes from what came out."""

from __future__ import annotations

import flint
import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import gradwatch
from gradwatch.harness.judging.precisions import PRECISIONS, arithmetics
from gradwatch.harness.judging.rounding.analysis import running_errors
from gradwatch.harness.tracing.aten.reductions import ON_FLOATS
from gradwatch.impls import graph
from tests.balls import precise

SHIFTS = (0.0, -700.0, 1e4)


def exact(x):
    """In balls of 300 bits, of a vector."""
    return sum((flint.arb(float(v)).exp() for v in x), flint.arb(0)).log()


@pytest.mark.parametrize("shift", SHIFTS)
def test_value_and_gradient_are_exact_and_a_rounded_input_stays_within(shift):
    x = shift + np.array([0.3, -1.7, 2.5, 0.1])
    leaf = graph.variable(3 * x) / 3.0  # off by a rounding
    y = ON_FLOATS["logsumexp"](leaf, 0)
    (slope,) = graph.gradient([y], [np.ones(())], [leaf])
    order = graph.topological_order([y])
    errors = running_errors(order, arithmetics("float32")[0], 1.0).errors
    u = PRECISIONS["float32"].roundoff
    with precise():
        right = exact(leaf.value)
        assert abs(float(right - float(y.value))) <= 2e-16 * (abs(shift) + 4)
        for v, p in zip(leaf.value, slope.value, strict=True):
            share = (flint.arb(float(v)) - right).exp()
            assert abs(float(share / float(p)) - 1) <= 4e-16 * (abs(shift) + 4)
        moved = exact(leaf.value.astype(np.float32)) - right
        assert float(abs(moved)) <= u * errors[y]


def test_a_mask_has_no_share_and_no_error():
    x = graph.variable(np.array([1.0, -np.inf, -1e30, 2.0]))
    y = ON_FLOATS["logsumexp"](x, 0)
    order = graph.topological_order([y])
    errors = running_errors(order, arithmetics("float32")[0], 1.0).errors
    assert errors[y] < 20


def steps(x):
    """A long chain, in which the largest element grows with each step."""
    y = x[:, 0]
    for i in range(1, x.shape[1]):
        y = torch.logsumexp(torch.stack([y, x[:, i]], -1) + 1.5, -1)
    return y


def test_a_chain_of_them_is_right_and_one_off_by_a_thousandth_is_not():
    class Off(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return steps(x)

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                return 1.001 * torch.autograd.grad(steps(x), x, dy)[0]

    assert gradwatch.check(steps, shapes=["2x25"], quick=True).passes
    report = gradwatch.check(steps, Off.apply, shapes=["2x4"], quick=True)
    assert {j.tensor for j in report if not j.passes} == {"dx"}
