"""Elements that are chosen by values within rounding of each other accuse nobody."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn.functional import grid_sample

import gradwatch
from gradwatch.harness.tracing.traced import trace
from tests.check.test_networks import plant


def experts(x, gates, weight):
    """Two of the experts for each row, weighed by their gates."""
    best, which = (x @ gates).softmax(-1).topk(2, -1)
    y = torch.einsum("bd,edf->bef", x, weight)
    y = y.gather(1, which[..., None].expand(-1, -1, y.shape[-1]))
    return (y * (best / best.sum(-1, keepdim=True))[..., None]).sum(1)


class Detached(torch.autograd.Function):
    """Forgets the gradient by the gates."""

    @staticmethod
    def forward(ctx, x, gates, weight):
        with torch.enable_grad():
            ctx.given = [t.detach().requires_grad_() for t in (x, gates, weight)]
            ctx.y = experts(ctx.given[0], ctx.given[1].detach(), ctx.given[2])
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, dy):
        x, gates, weight = ctx.given
        dx, dw = torch.autograd.grad(ctx.y, (x, weight), dy, retain_graph=True)
        return dx, torch.zeros_like(gates), dw


SHAPES = [(8, 6), (6, 4), (4, 6, 5)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_chosen_by_equal_gates_are_not_accused(dtype):
    report = gradwatch.check(experts, shapes=SHAPES, dtypes=dtype)
    assert not report.failures
    judged = {j.tensor for j in report if j.verdict in ("agree", "convention")}
    assert {"y", "dx"} <= judged


def test_a_gate_without_gradient_is_found():
    report = gradwatch.check(experts, Detached.apply, shapes=SHAPES, quick=True)
    assert {j.tensor for j in report if not j.passes} == {"dgates"}


def test_positions_between_two_pixels_are_not_accused():
    def sampled(x, grid):
        return grid_sample(x, grid.tanh(), align_corners=False)

    assert gradwatch.check(sampled, shapes=[(1, 1, 6, 7), (1, 2, 2, 2)]).passes


class Flat(torch.autograd.Function):
    """Forgets that a homography divides."""

    @staticmethod
    def forward(ctx, h):
        return h.clone()

    @staticmethod
    def backward(ctx, dh):
        return dh * torch.tensor([[1.0], [1.0], [0.0]])


def test_pixels_at_the_border_of_an_image_hide_no_mistake():
    def warped(x, h, how=torch.clone):
        rows, columns = torch.linspace(-1, 1, 6), torch.linspace(-1, 1, 7)
        ys, xs = torch.meshgrid(rows, columns, indexing="ij")
        at = torch.stack([xs, ys, torch.ones_like(xs)], -1) @ how(h).mT
        grid = (at[..., :2] / at[..., 2:])[None]
        return grid_sample(x, grid, align_corners=True)

    g = torch.manual_seed(0)
    given = torch.randn(1, 2, 6, 7, generator=g), torch.randn(3, 3, generator=g)
    given = given[0], torch.eye(3) + 0.05 * given[1]
    assert {j.verdict for j in gradwatch.check(warped, None, given, quick=True)} == {
        "agree"
    }
    wrong = gradwatch.check(
        warped, lambda x, h: warped(x, h, Flat.apply), given, quick=True
    )
    assert [j.tensor for j in wrong if not j.passes] == ["dh"]


def distances(x):
    """From the first element, its own 0 but for rounding: a root with any slope."""
    return (x * x + x[0] * x[0] - 2 * x * x[0]).clamp(min=0).sqrt()


CHOICES = {
    "an order": lambda x: torch.stack([x.sum(), x.flip(0).sum()]).argsort(),
    "the best": lambda x: torch.stack([x.sum(), x.flip(0).sum()]).topk(1).indices,
    "a floor": lambda x: (3 * (x / 3 - x / 3 + 1)).long().clamp(0, 1),
    "the nearest": lambda x: distances(x[[0, 0, 1]]).topk(1, largest=False).indices,
    "a mask": lambda x: (x.cumsum(0) - x.cumsum(0).flip(0).flip(0) > 0).nonzero()[:, 0],
}


CERTAIN = {
    "an order": lambda x: (2 * x).argsort(),
    "the best": lambda x: (2 * x).topk(2).indices,
    "a floor": lambda x: (x / 3 - x / 3 + 1.5).long(),
    "a mask": lambda x: (2 * x > 0).nonzero()[:, 0],
    "the farthest": lambda x: distances(x).topk(1).indices,
    "a choice nobody uses": lambda x: (x * x).topk(2).indices.shape[0],
}


@pytest.mark.parametrize("choose", CHOICES.values(), ids=CHOICES)
def test_a_choice_within_rounding_is_contested(choose):
    x = torch.randn(9, generator=torch.manual_seed(0))
    assert trace(lambda x: x[choose(x)], [x]).turned("float32")


@pytest.mark.parametrize("choose", CERTAIN.values(), ids=CERTAIN)
def test_a_choice_far_from_rounding_is_certain(choose):
    x = torch.randn(9, generator=torch.manual_seed(0))
    assert not trace(lambda x: x[choose(x)], [x]).turned("float32")


def nearest(x, v):
    """The squares of what is chosen by sums whose order alone differs."""
    sums = torch.stack([v.sum(-1), v.flip(-1).sum(-1)], -1)
    apart = torch.eye(2).repeat(4, 1)[:, None].expand(8, 5, 2)  # but in every fifth row
    sums = sums + (apart * (torch.arange(5) > 0)[:, None]).reshape(sums.shape)
    which = sums.max(-1).indices
    return x.gather(-1, which[:, None]).square().sum()


class Nearest(torch.autograd.Function):
    """The same, its gradient times a factor; `turned` prefers the other elements."""

    @staticmethod
    def forward(ctx, x, v, factor, turned):
        with torch.enable_grad():
            ctx.x, ctx.factor = x.detach().requires_grad_(), factor
            ctx.y = nearest(ctx.x, v.flip(-1) if turned else v)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, dy):
        (dx,) = torch.autograd.grad(ctx.y, ctx.x, dy, retain_graph=True)
        return ctx.factor * dx, None, None, None


def judged(candidate=None):
    """By tensor the verdict on `nearest`."""
    g = torch.manual_seed(0)
    x, v = torch.randn(40, 2, generator=g), torch.randn(40, 9, generator=g)
    given = x.requires_grad_(), v
    report = gradwatch.check(nearest, candidate, inputs=given, quick=True)
    return {j.tensor: j.verdict for j in report}


def test_what_rounding_chooses_is_right_as_the_precision_chooses_it():
    assert judged() == {"y": "convention", "dx": "convention"}


def test_other_choices_within_rounding_are_never_accused():
    other = judged(lambda x, v: Nearest.apply(x, v, 1.0, True))
    assert set(other.values()) <= {"agree", "convention", "vacuous"}


def test_a_row_that_is_lost_beside_choices_of_16_bits_is_accused():
    def without(x, gates, weight):
        return experts(torch.cat([x[:-1], x[-1:].detach()]), gates, weight)

    g = torch.manual_seed(0)
    given = [torch.randn(s, generator=g).bfloat16() for s in SHAPES]
    assert trace(experts, given).turned("bfloat16")
    assert gradwatch.check(experts, experts, given, quick=True).passes
    wrong = gradwatch.check(experts, without, given, quick=True)
    assert "dx" in {j.tensor for j in wrong if j.verdict == "disagree"}


@pytest.mark.parametrize("factor", [1.001, 0.0, -1.0])
def test_a_mistake_beside_contested_choices_is_accused(factor):
    wrong = judged(lambda x, v: Nearest.apply(x, v, factor, False))
    assert wrong == {"y": "convention", "dx": "disagree"}


def test_a_number_that_rounding_puts_in_another_bin_is_counted_as_there():
    def counted(x, v):
        one = v.sum(-1) / v.flip(-1).sum(-1)
        return x * torch.histc(one, 2, 0.0, 2.0)

    g = torch.manual_seed(0)
    x, v = torch.randn(2, generator=g).requires_grad_(), torch.rand(9, 7, generator=g)
    report = gradwatch.check(counted, inputs=[x, v], quick=True)
    assert {j.verdict for j in report} == {"convention"}


def test_how_many_elements_there_are_may_be_for_rounding_to_decide():
    def kept(x, v):
        return x[v.sum(-1) > v.flip(-1).sum(-1)].sin()

    g = torch.manual_seed(0)
    x, v = torch.randn(20, generator=g).requires_grad_(), torch.randn(20, 9)
    assert gradwatch.check(kept, inputs=[x, v], quick=True).passes
    wrong = lambda x, v: kept(1.001 * x, v)  # noqa: E731  # planted
    assert gradwatch.check(kept, wrong, inputs=[x, v], quick=True).failures


def test_another_number_of_elements_in_another_call_is_no_fault():
    v = torch.tensor([[3.0, 3, 3], [0, 0, 0]]).repeat(4, 1)[:7]
    x = torch.randn(7, generator=torch.manual_seed(0)).requires_grad_()
    report = gradwatch.check(lambda x, v: x[v.sum(-1) > 7].sin(), inputs=[x, v])
    assert report.passes, str(report)


def biased(scores, table, factor=1.0):
    """Attention's scores, and a bias that is chosen by the logarithm of a distance."""
    distance = (torch.arange(6) - torch.arange(6)[:, None]).abs() + 1
    bias = table[distance.float().log2().long()]  # of 2 and 4 a whole number
    far = (torch.arange(6) > 1)[:, None].logical_or(torch.zeros(1).bool())
    bias = bias + (factor - 1) * (bias - bias.detach()) * far
    return scores + bias


def test_elements_that_constants_choose_are_those_that_pytorch_chose():
    g = torch.manual_seed(0)
    given = [torch.randn(6, 6, generator=g), torch.randn(4, generator=g)]
    assert not trace(biased, given).turned("float32")
    assert gradwatch.check(biased, inputs=given, quick=True).passes
    wrong = lambda s, t: biased(s, t, 1.01)  # noqa: E731  # planted
    report = gradwatch.check(biased, wrong, inputs=given, quick=True)
    assert {j.tensor: j.verdict for j in report}["dtable"] == "disagree"


def test_what_constants_decide_is_no_number_that_an_input_moves():
    def scaled(x):
        whole = float(torch.ones(3).mean()) >= 1.0
        return x * x if whole and float(x.detach().sum()) > -1e9 else x

    x = torch.randn(5, generator=torch.manual_seed(0))
    trace(scaled, [x]).refuse_contested("float32")


def signed(a, b, c):
    """Of a difference the sign alone, nearly, as of a norm over two numbers."""
    d = 1e8 * (0.7 * a - 0.7 * b)
    return torch.relu(d / torch.sqrt(d * d + 1) + c)


class Unmasked(torch.autograd.Function):
    """Its gradient by c ignores the sign."""

    @staticmethod
    def forward(ctx, a, b, c):
        with torch.enable_grad():
            ctx.given = [t.detach().requires_grad_() for t in (a, b, c)]
            ctx.y = signed(*ctx.given)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, dy):
        return *torch.autograd.grad(ctx.y, ctx.given[:2], dy), dy


@pytest.mark.parametrize("seed", range(4))
def test_the_sign_of_a_rounding_error_is_contested_however_large_its_norm(seed):
    """From 1, its end, it moves far by a radius, and no farther by all allowed ones."""
    rng = torch.Generator().manual_seed(seed)
    a, c = 1 + torch.rand(200, generator=rng), torch.zeros(200)
    apart = torch.randint(-3, 4, (200,), generator=rng)
    for step in (2.0**-23, 0.1):
        given = [a, a + step * apart, c]
        assert not gradwatch.check(signed, inputs=given, quick=True).failures
    report = gradwatch.check(signed, Unmasked.apply, given, quick=True)
    assert [row.judgement.tensor for row in report.failures] == ["dc"]


class InFloat32(torch.autograd.Function):
    """A layer that is rounded once: its ReLU sees other numbers than a ReLU alone."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        y = (x.float() @ weight.float().T + bias.float()).relu()
        ctx.save_for_backward(x, weight, y > 0)
        return y.to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, weight, kept = ctx.saved_tensors
        dy = dy.float() * kept
        made = dy @ weight.float(), dy.T @ x.float(), dy.sum(0)
        return tuple(one.to(x.dtype) for one in made)


class Layers(nn.Module):
    """ReLU layers, all, some or none of them in one kernel."""

    def __init__(self, depth, width, fused=()):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.fused = fused

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            by = layer.weight, layer.bias
            x = InFloat32.apply(x, *by) if i in self.fused else layer(x).relu()
        return x


class Where(nn.Module):
    """A ReLU by a comparison."""

    def forward(self, x):
        return torch.where(x > 0, x, torch.zeros_like(x))


def convolutions(seed, kink=nn.ReLU):
    """A small network with kinks and ties in bfloat16, and an input."""
    torch.manual_seed(seed)
    layers = [nn.Conv2d(2, 4, 3), kink(), nn.MaxPool2d(2), nn.Conv2d(4, 6, 3)]
    layers += [kink(), nn.Flatten(), nn.Linear(54, 5)]
    return nn.Sequential(*layers).bfloat16(), torch.randn(1, 2, 12, 12).bfloat16()


KINKS = [(0, nn.ReLU), (2, nn.ReLU), (3, nn.ReLU), (2, nn.LeakyReLU), (2, Where)]


@pytest.mark.parametrize(("seed", "kink"), KINKS)
def test_what_runs_as_the_reference_has_chosen_as_it_did(seed, kink):
    """A bias of which half was missing was vacuous before: ReLUs might be turned."""
    net, x = convolutions(seed, kink)
    found = gradwatch.check(net, inputs=[x], quick=True)
    assert {j.verdict for j in found} == {"agree"}, str(found)
    wrong = copy.deepcopy(net)
    wrong.register_forward_pre_hook(plant("0", "bias", lambda db: 0.5 * db))
    found = gradwatch.check(net, wrong, [x], quick=True)
    bad = {j.tensor: j.verdict for j in found if j.verdict != "agree"}
    assert bad == {"d0.bias": "disagree"}


@pytest.mark.parametrize("fused", [(0,), (3,), range(6)])
def test_another_kernel_may_choose_otherwise(fused):
    torch.manual_seed(1)
    net = Layers(6, 24).bfloat16()
    other = copy.deepcopy(net)
    other.fused = fused
    x = torch.randn(5, 24).bfloat16()
    assert gradwatch.check(net, other, [x], quick=True).passes
    other.register_forward_pre_hook(plant("layers.2", "bias", lambda db: 0.1 * db))
    assert gradwatch.check(net, other, [x], quick=True).failures


@pytest.mark.parametrize("lost", [False, True])
def test_a_router_whose_choice_is_known_is_judged(lost):
    """A lost row was vacuous before: another expert might have been chosen."""
    torch.manual_seed(0)
    given = [torch.randn(s).bfloat16().requires_grad_() for s in [(12, 6), *SHAPES[1:]]]

    class Router(torch.autograd.Function):
        @staticmethod
        def forward(ctx, gates):
            return gates.clone()

        @staticmethod
        def backward(ctx, dgates):
            return torch.cat([0 * dgates[:1], dgates[1:]]) if lost else dgates

    def routed(x, gates, weight):
        return experts(x, Router.apply(gates), weight)

    found = gradwatch.check(experts, routed, given, quick=True)
    bad = {j.tensor: j.verdict for j in found if j.verdict != "agree"}
    assert bad == ({"dgates": "disagree"} if lost else {})
