"""Kernels that write where they should not: the plain sweep has its own verdict."""

import pytest
import torch

from gradwatch.harness.check import check
from gradwatch.harness.check.frameworks import runs
from tests.check.test_domain import square


def kernel(backward, forward=square):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, dy):
            return backward(*ctx.saved_tensors, dy)

    return Square.apply


def into_the_cotangent(x, dy):
    return dy.mul_(2 * x)


def into_what_is_saved(x, dy):
    """As a Triton kernel does, which PyTorch's counter of writes does not see."""
    return x.data.mul_(2).mul_(dy)


def into_the_input(x):
    y = x * x
    x.data.mul_(2)
    return y


CASES = {
    "cotangent": (kernel(into_the_cotangent), {"dy"}, "overwrites its cotangent"),
    "input": (kernel(into_what_is_saved), {"x", "dx"}, "overwrites its input"),
    "forward": (
        kernel(lambda x, dy: x * dy, into_the_input),
        {"x"},
        "overwrites its input",
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("how", ["shapes", "inputs"])
def test_what_is_overwritten_is_a_line_of_its_own(name, how):
    candidate, wrong, said = CASES[name]
    given = {"shapes": [(4, 8)]} if how == "shapes" else {"inputs": [torch.randn(4, 8)]}
    report = check(square, candidate, **given)
    assert not report.passes
    assert {row.judgement.tensor for row in report.failures} == wrong
    assert said in str(report)
    plain = [r for r in report.rows if r.judgement.tensor == "dx" and not r.how]
    assert all(r.judgement.passes for r in plain)
    lines = [line.split()[:4] for line in str(report).splitlines()]
    assert ["✓", "dx", "float32", "agree"] in lines


def test_a_second_sweep_that_alone_is_wrong_says_so():
    report = check(square, kernel(into_what_is_saved), shapes=[(4, 8)], quick=True)
    lines = [line for line in str(report).splitlines() if " dx " in line]
    assert len(lines) == 2
    assert lines[0].startswith("✗")
    assert "second backward" in lines[0]
    assert {row.how for row in report.failures} == {"", "second backward"}


def test_a_wrong_first_sweep_is_no_fault_of_what_is_overwritten():
    wrong = kernel(lambda x, dy: 2.001 * into_the_cotangent(x, dy))
    report = check(square, wrong, shapes=[(4, 8)])
    assert {row.judgement.tensor for row in report.failures} == {"dx", "dy"}


def test_what_pytorch_lets_nobody_do_to_a_leaf_is_done_to_a_copy():
    """A layer that works in place has another layer before it."""
    report = check(torch.nn.functional.relu, torch.relu_, shapes=[(4, 8)])
    assert {row.judgement.tensor for row in report.failures} == {"input"}
    assert "overwrites its input" in str(report)
    in_place = torch.nn.ReLU(inplace=True)
    assert check(in_place, shapes=[(4, 8)]).passes
    assert check(torch.nn.functional.relu, in_place, shapes=[(4, 8)]).failures


def test_what_raises_after_the_first_sweep_leaves_its_verdict():
    def once(x):
        if not x.requires_grad:
            raise ValueError("needs a gradient")
        return x * 2

    def times(x, w):
        return once(x) * w

    report = check(lambda x, w: x * 2 * w, times, shapes=[(4, 8), (4, 8)])
    assert {r.judgement.tensor for r in report.failures} == {"all"}
    assert {r.how for r in report.failures} == {"x without requires_grad"}
    assert "needs a gradient (x without requires_grad)" in str(report)


def test_a_second_sweep_that_is_refused_is_no_fault():
    swept = set()

    def backward(x, dy):
        if id(dy) and x.data_ptr() in swept:
            raise ValueError("one sweep only")
        return 2 * x * dy

    assert check(square, kernel(backward), shapes=[(4, 8)]).passes


def test_a_second_backward_rounds_nothing_of_tiny_cotangents():
    """Half of an odd multiple of the smallest number is none."""
    x, dy = torch.ones(2, 1, dtype=torch.float16)
    dy *= 3 * 2**-24
    seen = runs.observe(lambda t: [t.clone()], [x], [True], [dy])
    (again,) = (found for how, _, found in seen.others if how == "second backward")
    assert torch.equal(again[0], dy)
