"""What is written down while a function runs: writes, views, stops, readings."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402, N812  # after importorskip; as in its docs

from gradwatch import check  # noqa: E402  # after importorskip
from gradwatch.harness.tracing import Untraceable, tape  # noqa: E402  # after importorskip
from gradwatch.harness.tracing.traced import Traced, trace  # noqa: E402  # after importorskip
from tests.tracing.slopes import gradients  # noqa: E402  # likewise

WORDS = torch.tensor([[0, 2, 0], [3, 2, 2]])


def rows(*shape):
    draws = np.random.default_rng(3).standard_normal(shape)
    return torch.from_numpy(draws)


def part_written(x):
    y = torch.zeros(4, 3, dtype=x.dtype)
    seen = y[1:3]
    y[1:, ::2] = x[:3, :2] * 2
    return seen * x[:2]


def through_a_view(x):
    y = x * 1
    y.t()[0].mul_(x[:, 1]).add_(1)
    return y.expand(2, *y.shape).sum(0) * y


def unseen_by_autograd(x):
    y = x * 2
    y.data.clamp_(max=1.0)
    with torch.no_grad():
        y[0] *= 3
    return y * y


def to_an_out(x):
    y = torch.empty_like(x)
    torch.add(x.detach(), 1, out=y)
    return x * y


class Doubled(torch.autograd.Function):
    """With all that means nothing where autograd records nothing."""

    @staticmethod
    def forward(ctx, x, y):
        with torch.no_grad():
            return x.detach().mul(2) * y

    @staticmethod
    def backward(ctx, dy):
        raise AssertionError("PyTorch's backward is never asked")


def penalty(x):
    (slope,) = torch.autograd.grad(x.tanh().sum(), x, create_graph=True)
    return slope**2


def added_at_indices(x):
    y = torch.zeros_like(x)
    for rows in ([0, 2], [2, 1]):
        y.index_add_(0, torch.tensor(rows), x[rows] * x[:1])
    return y


FOLLOWED = {
    "added to zeros": added_at_indices,
    "rows of nothing": lambda x: torch.cat([x[:0].t().expand(3, 0), x.t().exp()], 1),
    "other strides": lambda x: x.t().as_strided((4, 3), (3, 1)).exp() * x,
    "turned strides": lambda x: x.t().contiguous().t().as_strided((3, 4), (4, 1)).exp(),
    "a part written": part_written,
    "through a view": through_a_view,
    "unseen by autograd": unseen_by_autograd,
    "to an out": to_an_out,
    "inference mode": lambda x: x.sin() + torch.inference_mode()(torch.clone)(x),
    "gradient penalty": penalty,
    "vmap of grad": lambda x: torch.vmap(torch.func.grad(lambda r: r.sin().sum()))(x),
    "boolean index": lambda x: x[x > 0].exp(),
    "padding": lambda x: F.embedding(WORDS, x, padding_idx=0).exp(),
    "by frequency": lambda x: F.embedding(WORDS, x, scale_grad_by_freq=True).exp(),
    "counts": lambda x: x.sin() * torch.histc((x > 0).double().sum(0), 3, 0, 3),
    "whole numbers": lambda x: x[x.argsort(0)[0, 0].item() :] * len(x[0].tolist()),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_values_and_gradients_are_those_of_autograd(name):
    function, x = FOLLOWED[name], rows(4, 3)
    found = trace(function, [x]).graph()
    leaf = x.clone().requires_grad_()
    y = function(leaf)
    dy = torch.linspace(1, 2, y.numel(), dtype=y.dtype).reshape(y.shape)
    (expected,) = torch.autograd.grad(y, leaf, dy)
    np.testing.assert_allclose(found.outputs["y"].value, y.detach(), rtol=1e-12)
    (dx,) = gradients(found, {"y": dy.numpy()}).values()
    np.testing.assert_allclose(dx.value, expected, rtol=1e-10, atol=1e-12)


def test_elements_that_share_memory_have_a_gradient_each():
    x = rows(1).expand(3)
    made = trace(lambda x: x[0] + 2 * x[1] + x[2] ** 2, [x]).graph()
    (dx,) = gradients(made, {"y": 1}).values()
    np.testing.assert_allclose(dx.value, [1, 2, 2 * x[2]], rtol=1e-14)


def test_a_function_s_forward_is_followed_and_what_was_detached_before_is_not():
    x, y = rows(2, 3)
    traced = trace(lambda x, y: Doubled.apply(x, y.detach()), [x, y])
    found = gradients(traced.graph(), {"y": np.ones(3)})
    np.testing.assert_allclose(found["dx"].value, 2 * y, rtol=1e-14)
    assert found["dy"] is None or not found["dy"].value.any()


def test_a_branch_is_that_of_these_inputs_and_the_line_is_noted():
    def branching(x):
        return x * 2 if x.sum() > 0 else x.sin()

    for sign, expected in ((1, 2.0), (-1, np.cos(1.0))):
        traced = trace(branching, [sign * torch.ones(3, dtype=torch.float64)])
        traced.refuse_contested("float64")
        (dx,) = gradients(traced.graph(), {"y": np.ones(3)}).values()
        np.testing.assert_allclose(dx.value, expected, rtol=1e-14)
        (note,) = traced.notes
        assert "test_tape.py" in note
    assert trace(lambda x, n: x * 2 if n.any() else x, [rows(3), torch.ones(2)]).notes
    whole = torch.ones(2, dtype=torch.int64)
    assert not trace(lambda x, n: x * 2 if n.any() else x, [rows(3), whole]).notes


def by_whole_numbers(x, half):
    """As positions are encoded: DETR, timm."""
    angles = x.new_tensor([[1.0], [2.0]]) / 10.0 ** half(torch.arange(8.0))
    return torch.tanh(x @ torch.cat([angles.sin(), angles.cos()]) * x.sum())


HALVES = {
    "floor of a quotient": lambda d: (d / 2).floor(),
    "rounding_mode": lambda d: torch.div(d, 2, rounding_mode="floor"),
    "//": lambda d: d // 2,
    "in place": lambda d: d.div_(2).floor_(),
    "round of a product": lambda d: (d * 0.5).round(),
}


@pytest.mark.parametrize("name", HALVES)
def test_a_whole_number_that_no_input_decides_is_pytorchs(name):
    half, inputs = HALVES[name], [rows(3, 4).float()]
    report = check(lambda x: by_whole_numbers(x, half), inputs=inputs, quick=True)
    assert {j.verdict for j in report} == {"agree"}

    def halved(x):
        y = by_whole_numbers(x, half)
        return (y + y.detach()) / 2

    wrong = check(lambda x: by_whole_numbers(x, half), halved, inputs, quick=True)
    assert not wrong.passes


STEPS = {
    "floor": lambda x: (x * 3).floor(),  # an input decides it
    "round": lambda x: torch.arange(3.0).exp().round(decimals=2),
    "div": lambda x: torch.div(torch.arange(3.0), 7, rounding_mode=None),
}


@pytest.mark.parametrize("name", STEPS)
def test_what_an_input_decides_or_is_no_whole_number_is_no_constant(name):
    traced = trace(lambda x: x * STEPS[name](x), [torch.full((3,), 0.5)])
    assert name in traced.ops


NEAR = {
    "a comparison": lambda x: x * 2 if x.sum() > x.flip(0).sum() else x.sin(),
    "a number": lambda x: x * 2 if (x.sum() - x.flip(0).sum()).item() > 0 else x.sin(),
    "all of many": lambda x: x * 2 if (x - (x / 3) * 3 > 0).all() else x.sin(),
}


def test_whether_a_number_is_nan_is_certain():
    traced = trace(lambda x: x if x.sum().isnan() else x * 2, [torch.randn(9)])
    traced.refuse_contested("float32")


@pytest.mark.parametrize("name", NEAR)
def test_a_branch_within_rounding_of_the_other_is_refused(name):
    traced = trace(NEAR[name], [torch.randn(9, generator=torch.manual_seed(0))])
    with pytest.raises(Untraceable, match="rounding may turn it"):
        traced.refuse_contested("float32")


@pytest.mark.parametrize(
    ("function", "runs"),
    [
        (lambda x: x.softmax(-1), 0),
        (lambda x: F.cross_entropy(x, torch.arange(3)), 0),
        (lambda x: x.max(-1).indices * x.sum(), 17),
    ],
)
def test_what_chooses_no_elements_is_not_run_again(monkeypatch, function, runs):
    traced, as_run, ran = trace(function, [rows(3, 4)]), Traced.as_run, []

    def counted(self, *how):
        ran.append(how)
        return as_run(self, *how)

    monkeypatch.setattr(Traced, "as_run", counted)
    assert not traced.turned("float64")
    assert len(ran) == runs


def test_the_line_of_a_module_that_pytorch_made_is_the_module():
    pool = torch.nn.FractionalMaxPool2d(2, output_size=2)
    with pytest.raises(Untraceable, match=r"\(FractionalMaxPool2d"):
        trace(torch.nn.Sequential(pool), [rows(1, 4, 4)])


@pytest.mark.parametrize("seed", [0, 7])
def test_random_whole_numbers_are_those_that_the_seed_gives(seed):
    x = rows(5)
    made = trace(lambda x: x[torch.randperm(5)] ** 2, [x], seed=seed).graph()
    order = torch.randperm(5, generator=torch.manual_seed(seed))
    np.testing.assert_array_equal(made.outputs["y"].value, x[order].numpy() ** 2)


@pytest.mark.parametrize(
    ("value", "dtype", "rewrite"),
    [
        (0.5, torch.bfloat16, lambda x: 1.001 * x.sigmoid()),  # no bit of bfloat16
        (1e20, torch.float32, lambda x: 2 * x.square()),  # infinite, both
    ],
)
def test_a_decomposition_is_another_function_though_the_type_given_hides_it(
    value, dtype, rewrite
):
    x = torch.full((4,), value, dtype=dtype)
    target = torch.ops.aten.sigmoid if value < 1 else torch.ops.aten.square
    assert torch.equal(target(x), rewrite(x))
    tape._refuse_another(target.default, target, (x,), {})
    with pytest.raises(Untraceable, match="another function"):
        tape._refuse_another(target.default, rewrite, (x,), {})


def test_a_decomposition_that_is_alike_in_float32_takes_no_double_memory():
    ran = []

    def rewrite(x):
        ran.append(x.dtype)
        return x * x * (1 + 1e-7)

    square = torch.ops.aten.square
    tape._refuse_another(square.default, rewrite, (torch.rand(3),), {})
    assert ran == [torch.float32]
