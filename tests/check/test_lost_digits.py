"""A candidate that loses digits which its reference keeps is imprecise, not wrong."""

import math

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402, N812  # after importorskip

from gradwatch.harness.check import check  # noqa: E402  # likewise


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def differences(x):
    return (x[:, ::2] - x[:, 1::2]) / math.sqrt(2)


def convolved(x, factor=1.0):
    """The same as a convolution: each product is rounded before the difference."""
    s = math.sqrt(0.5)
    w = torch.tensor([[[s, -s * factor]]], dtype=x.dtype)
    return F.conv1d(x[:, None], w, stride=2)[:, 0]


NEIGHBOURS = drawn(6, 1) + 1e-3 * drawn(6, 8)


def product(x, w):
    return F.conv1d(x[None, None], w.flip(0)[None, None], padding=len(w) - 1)[0, 0]


def by_fourier(x, w):
    n = len(x) + len(w) - 1
    return torch.fft.irfft(torch.fft.rfft(x, n) * torch.fft.rfft(w, n), n)


def versine(x):
    return 2 * torch.sin(x / 2) ** 2


LOSING = {
    "a difference of products": (differences, convolved, [NEIGHBOURS]),
    "a Fourier transform": (product, by_fourier, [drawn(64), drawn(64) ** 3]),
    "1 - cos": (versine, lambda x: 1 - torch.cos(x), [0.02 + 0.01 * drawn(9)]),
}


@pytest.mark.parametrize("title", LOSING)
def test_what_its_own_steps_lose_is_imprecise(title):
    reference, candidate, given = LOSING[title]
    found = check(reference, candidate, given, quick=True)
    assert found.passes, str(found)
    assert {j.verdict for j in found} <= {"agree", "imprecise"}
    assert any("lose as much at these numbers" in j.message for j in found)


def planted(candidate, change):
    """Its forward, and another gradient."""

    class Planted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *given):
            ctx.save_for_backward(*given)
            return candidate(*given)

        @staticmethod
        def backward(ctx, dy):
            given = [t.detach().requires_grad_() for t in ctx.saved_tensors]
            with torch.enable_grad():
                found = torch.autograd.grad(candidate(*given), given, dy)
            return tuple(map(change, found))

    return Planted.apply


@pytest.mark.parametrize("title", LOSING)
@pytest.mark.parametrize(
    "change",
    [lambda g: 0 * g, lambda g: -g, lambda g: 1.01 * g, lambda g: g.roll(1, -1)],
)
def test_no_mistake_is_excused_by_what_its_steps_lose(title, change):
    reference, candidate, given = LOSING[title]
    found = check(reference, planted(candidate, change), given, quick=True)
    wrong = {j.tensor for j in found if not j.passes}
    assert {j.tensor for j in found if j.tensor.startswith("d")} <= wrong


def test_another_function_is_not_excused_by_its_own_steps():
    def other(x):
        return convolved(x, 1.00001)

    assert check(differences, other, [NEIGHBOURS], quick=True).failures


def test_a_gradient_that_stops_on_its_way_is_not_excused():
    def stopped(x):
        return convolved(x.detach() + 0.99 * (x - x.detach()))

    assert check(differences, stopped, [NEIGHBOURS], quick=True).failures


def test_nothing_is_excused_where_its_steps_may_overflow():
    """There their rounding says nothing of what is wrong."""

    def scaled(x):
        return convolved(x * 1e38) / 1e38

    given = NEIGHBOURS.clone()
    given[0] += 3.2 - given[0, 0]
    assert check(differences, convolved, [given], quick=True).passes
    assert check(differences, scaled, [given], quick=True).failures


def normalised(x):
    """A softmax whose maximum has a gradient: zero, but for rounding."""
    e = torch.exp(x - x.amax(-1, keepdim=True))
    return e / e.sum(-1, keepdim=True)


@pytest.mark.parametrize("shape", [(2,), (3, 7), (5, 2)])
def test_who_leaves_out_the_gradient_of_a_shift_loses_nothing(shape):
    x = 2 * drawn(*shape)
    for right in (lambda x: F.log_softmax(x, -1).exp(), lambda x: F.softmax(x, -1)):
        report = check(normalised, right, inputs=[x])
        assert {j.verdict for j in report} <= {"agree", "vacuous"}, str(report)
    for wrong in (
        lambda x: normalised(x.detach()) * x / x.detach(),
        lambda x: (lambda e: e / e.sum(-1, keepdim=True).detach())(torch.exp(x)),
        lambda x: 1.00002 * normalised(x) - 2e-5 * normalised(x).detach(),
    ):
        report = check(normalised, wrong, inputs=[x], quick=True)
        assert not report.passes
        assert all(j.verdict != "imprecise" for j in report)


def mixed(k, v, w, u):
    """The weighted means of a recurrence (RWKV)."""
    a = b = torch.zeros_like(k[0])
    out, w = [], -torch.exp(w)
    for key, value in zip(k, v, strict=True):
        e, kept = torch.exp(u + key), torch.exp(key)
        out.append((a + e * value) / (b + e))
        a, b = torch.exp(w) * a + kept * value, torch.exp(w) * b + kept
    return torch.stack(out)


def test_steps_with_another_gradient_lose_no_digits():
    """A gradient of another function, hidden in rounding only as an element."""

    def wrong(k, v, w, u):
        more = 0.02 * k.mean()
        return mixed(k, v, w, u) + (more - more.detach())

    torch.manual_seed(3)
    shapes = (6, 5), (6, 5), (5,), (5,)
    given = [torch.randn(shape).bfloat16() for shape in shapes]
    assert check(mixed, None, given, quick=True).passes
    found = check(mixed, wrong, given, quick=True)
    assert {r.judgement.tensor for r in found.failures} == {"dk"}, str(found)


def orthogonal(g):
    """Three steps of Newton and Schulz (Muon)."""
    x = g / g.norm()
    for _ in range(3):
        a = x @ x.mT
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return x


def test_products_rounded_for_each_use_hide_no_fifth_of_a_gradient():
    torch.manual_seed(5)
    g = torch.randn(4, 6).bfloat16()
    assert check(orthogonal, None, [g], quick=True).passes
    wrong = check(
        orthogonal, lambda g: orthogonal(g) + 0.1 * (g - g.detach()), [g], quick=True
    )
    assert {r.judgement.tensor for r in wrong.failures} == {"dg"}, str(wrong)
