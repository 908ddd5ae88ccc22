"""Functions that look for a support: what was not taken has no slope, however steep."""

import pytest
import torch

from gradwatch.harness.check import check


def entmax15(x):
    """By Peters, Niculae and Martins, arXiv:1905.05702, algorithm 2."""
    x = (x - x.max(-1, keepdim=True)[0]) / 2
    ordered = torch.sort(x, descending=True, dim=-1)[0]
    rho = torch.arange(1, x.shape[-1] + 1).to(x)
    mean, squared = ordered.cumsum(-1) / rho, (ordered**2).cumsum(-1) / rho
    delta = (1 - rho * (squared - mean**2)) / rho
    tau = mean - torch.sqrt(torch.clamp(delta, 0))  # of what is left out sqrt(0)
    support = (tau <= ordered).sum(-1, keepdim=True)
    return torch.clamp(x - tau.gather(-1, support - 1), min=0) ** 2


def root_of_one(x):
    """Of each row the root of one clamped element is used, and others are 0."""
    return x * torch.sqrt(torch.clamp(x, 0)).gather(-1, x.argmax(-1, keepdim=True))


def kernel(changed):
    class Entmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = entmax15(x)
            ctx.save_for_backward(y)
            return y

        @staticmethod
        def backward(ctx, dy):
            (y,) = ctx.saved_tensors
            g = y.sqrt()
            dx = dy * g
            return changed(dx - g * dx.sum(-1, keepdim=True) / g.sum(-1, keepdim=True))

    return Entmax.apply


def shifted(dx):
    return dx + 1e-4 * (dx != 0)


@pytest.mark.parametrize(
    ("changed", "passes"),
    [
        (lambda dx: dx, True),
        (lambda dx: dx * 1.001, False),
        (torch.zeros_like, False),
        (lambda dx: torch.where(dx == 0, torch.nan, dx), False),
        (shifted, False),
        (torch.neg, False),
    ],
)
def test_a_support_is_judged_at_the_caller_s_own_numbers(changed, passes):
    torch.manual_seed(0)
    x = torch.randn(4, 20)
    report = check(entmax15, kernel(changed), inputs=[x], quick=True)
    assert report.passes is passes, str(report)
    if not passes:
        assert {r.judgement.tensor for r in report.failures} == {"dx"}


def test_a_root_that_is_not_gathered_is_no_excuse():
    torch.manual_seed(0)
    x = torch.randn(4, 20)
    assert check(root_of_one, inputs=[x], quick=True).passes


@pytest.mark.parametrize("slope", [0.0, torch.nan])
def test_a_root_of_zero_that_is_not_used_may_have_any_slope(slope):
    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return torch.sqrt(x).amax(-1)

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            most = x == x.amax(-1, keepdim=True)
            dx = torch.where(most, dy[:, None] * 0.5 / x.sqrt(), 0.0)
            return torch.where(x == 0, slope, dx)

    def used(x):
        return torch.sqrt(x).gather(-1, x.argmax(-1, keepdim=True))[:, 0]

    x = torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.5]])
    report = check(used, Kernel.apply, inputs=[x], quick=True)
    assert not any(r.judgement.verdict == "disagree" for r in report.rows)


def test_zero_times_a_steep_slope_that_is_taken_says_nothing_certain():
    """The derivative of x sqrt(x^2) at 0 is 0 times an infinity by its formula."""

    def product(x):
        return x * torch.sqrt(x * x)

    def right(x):
        return x * x.abs()

    x = torch.tensor([0.0, 1.0, -2.0])
    report = check(product, right, inputs=[x], quick=True)
    assert not any(r.judgement.verdict == "disagree" for r in report.rows)
