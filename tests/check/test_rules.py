"""Rules of the judge that everyday code needs, each with a wrong one beside it."""

from functools import partial

import pytest

torch = pytest.importorskip("torch")
import torch.nn.functional as f  # noqa: E402  # after importorskip
from torch import nn  # noqa: E402  # likewise

from gradwatch import check  # noqa: E402  # likewise
from gradwatch.harness.tracing.untraceable import Untraceable  # noqa: E402  # likewise


def verdicts(report, tensor):
    """Of the caller's own trial and those made of it."""
    return {r.judgement.verdict for r in report.rows if r.judgement.tensor == tensor}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# A cast inside: no element says anything, but the tensor does ----------------------


def amp(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        return f.linear(f.gelu(f.linear(x, w)), w).float()


def halved(x, w):
    return (x.bfloat16() @ w.bfloat16()).float().sigmoid().square()


@pytest.mark.parametrize("function", [amp, halved])
def test_mixed_precision_is_judged_as_a_whole(function):
    given = (torch.randn(32, 32), torch.randn(32, 32))
    report = check(function, None, given, quick=True)
    assert report.passes
    assert verdicts(report, "dw") == verdicts(report, "dx") == {"agree"}

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, w):
            return w.clone()

        @staticmethod
        def backward(ctx, dy):
            return torch.cat([dy[:-1], 0 * dy[-1:]])

    lost = check(function, lambda x, w: function(x, Wrong.apply(w)), given, quick=True)
    assert not lost.passes


# The derivative of the function, not of its formula --------------------------------


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clamp(min=0).sqrt(),
        lambda x: torch.relu(x).sqrt(),
        lambda x: torch.maximum(x, torch.zeros(())).pow(0.25),
    ],
    ids=["clamp", "relu", "maximum"],
)
def test_what_was_not_chosen_has_no_gradient_though_the_slope_is_infinite(function):
    given = (torch.randn(4, 16),)
    report = check(function, None, given, quick=True)
    assert verdicts(report, "dx") <= {"agree", "nonfinite"}  # nan is said, not hidden

    class Zero(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return function(x)

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                own = x.clamp(min=1e-30).detach().requires_grad_()
                (dx,) = torch.autograd.grad(function(own), own, dy)
            return torch.where(x > 0, dx, torch.full_like(x, ctx.below))

    class Garbage(Zero):
        @staticmethod
        def backward(ctx, dy):
            ctx.below = 777.0
            return Zero.backward(ctx, dy)

    class Right(Zero):
        @staticmethod
        def backward(ctx, dy):
            ctx.below = 0.0
            return Zero.backward(ctx, dy)

    assert check(function, Right.apply, given, quick=True).passes
    assert not check(function, Garbage.apply, given, quick=True).passes


LARGEST = {
    "max": lambda x: x.max(-1).values,
    "amax": lambda x: x.amax(-1),
    "topk": lambda x: x.topk(1, -1).values[..., 0],
    "sort": lambda x: x.sort(-1).values[..., -1],
    "last of cummax": lambda x: x.cummax(-1).values[..., -1],
}
TIED = torch.tensor([[1.0, 3.0, 3.0, 0.0, 3.0], [2.0, 2.0, 2.0, 2.0, 2.0]])


@pytest.mark.parametrize("candidate", LARGEST)
@pytest.mark.parametrize("reference", LARGEST)
def test_of_equal_values_any_has_the_gradient(reference, candidate):
    reference, candidate = LARGEST[reference], LARGEST[candidate]
    assert check(reference, candidate, (TIED,), quick=True).passes
    assert not check(
        reference, lambda x: candidate(x) * 1.01, (TIED,), quick=True
    ).passes


def test_a_tied_gradient_keeps_its_total_and_its_place():
    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.amax(-1)

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            return (x == x.amax(-1, keepdim=True)) * dy[..., None]

    class Elsewhere(Both):
        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            return f.one_hot(x.argmin(-1), x.shape[-1]) * dy[..., None]

    for reference in (LARGEST["max"], LARGEST["amax"], LARGEST["sort"]):
        assert not check(reference, Both.apply, (TIED,), quick=True).passes
        assert not check(reference, Elsewhere.apply, (TIED[:1],), quick=True).passes


class Table(nn.Module):
    """An embedding."""

    def __init__(self, **how):
        super().__init__()
        self.table = nn.Embedding(6, 4, **how)

    def forward(self, words):
        return self.table(words)


@pytest.mark.parametrize("how", [{"padding_idx": 0}, {"scale_grad_by_freq": True}])
def test_an_embedding_is_as_documented(how):
    words = (torch.tensor([[0, 1, 2], [3, 0, 0]]),)
    assert check(Table(**how), None, words).passes
    assert not check(Table(**how), Table(), words).passes
    assert not check(Table(), Table(**how), words).passes


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_rows_that_are_looked_up_are_shortened_in_place_without_a_gradient(kind):
    words = (torch.tensor([[0, 1, 2], [3, 0, 0]]),)
    short, plain = kind(6, 4, max_norm=1.0), kind(6, 4)
    assert check(short, None, words, only="dy_zeros").passes
    found = check(short, plain, words, quick=True)
    assert "y" in {j.tensor for j in found if not j.passes}

    def followed(words, weight):  # a gradient through the norm is another one
        size = weight.norm(dim=1, keepdim=True)
        return f.embedding(words, torch.where(size > 1, weight / (size + 1e-7), weight))

    if kind is nn.Embedding:
        found = check(short, followed, words, quick=True)
        assert {j.tensor for j in found if not j.passes} >= {"dweight"}


# Honest losses ---------------------------------------------------------------------


def shifted():
    return (1e4 + 1e-3 * torch.randn(8, 33),)


def unshifted(x):
    return x - torch.logsumexp(x, -1, keepdim=True)


def test_a_logsumexp_is_right_and_where_it_is_subtracted_imprecise():
    own = check(lambda x: torch.logsumexp(x, -1), None, shifted(), quick=True)
    assert verdicts(own, "dx") == {"agree"}
    report = check(lambda x: f.log_softmax(x, -1), unshifted, shifted(), quick=True)
    assert verdicts(report, "dx") == {"imprecise"}


def cross_entropy(x):
    return f.cross_entropy(x, torch.arange(8))


def fused(factor):
    class Fused(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            lse = torch.logsumexp(x, -1, keepdim=True)
            ctx.save_for_backward(x, lse)
            return (lse[:, 0] - x[torch.arange(8), torch.arange(8)]).mean()

        @staticmethod
        def backward(ctx, dy):
            x, lse = ctx.saved_tensors
            onehot = f.one_hot(torch.arange(8), x.shape[-1])
            return factor * dy * ((x - lse).exp() - onehot) / 8

    return Fused.apply


def test_a_fused_cross_entropy_is_imprecise_where_logits_are_large():
    report = check(cross_entropy, fused(1.0), shifted(), quick=True)
    assert report.passes
    assert verdicts(report, "dx") <= {"agree", "imprecise"}
    for factor in (0.0, -1.0, 1.1):
        assert not check(cross_entropy, fused(factor), shifted(), quick=True).passes


def test_log_of_one_plus_exp_is_imprecise_at_the_saturated_end():
    def candidate(x):
        return torch.clamp(x, max=0) - torch.log(1 + torch.exp(-x.abs()))

    given = (torch.linspace(1, 32, 64),)
    report = check(f.logsigmoid, candidate, given, quick=True)
    assert verdicts(report, "y") == {"imprecise"}
    assert not check(f.logsigmoid, lambda x: 0 * x, given, quick=True).passes


class Once(torch.autograd.Function):
    """The logarithm of a sigmoid, as kernels write it, times a factor."""

    factor = 1.0

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.clamp(x, max=0) - torch.log(1 + torch.exp(-x.abs()))

    @staticmethod
    def backward(ctx, dy):
        (x,) = ctx.saved_tensors
        return Once.factor * dy * (1 - torch.sigmoid(x))


def factors(x, factor):
    """x, whose gradient is multiplied by a factor."""
    return x * factor + x.detach() * (1 - factor)


SATURATED = {
    "1 - sigmoid(x)": (lambda x: torch.sigmoid(-x), lambda x: 1 - torch.sigmoid(x)),
    "sigmoid(-x)": (lambda x: 1 - torch.sigmoid(x), lambda x: torch.sigmoid(-x)),
    "log(sigmoid(x))": (f.logsigmoid, lambda x: torch.sigmoid(x).log()),
    "a kernel": (f.logsigmoid, Once.apply),
}


@pytest.mark.parametrize("title", SATURATED)
@pytest.mark.parametrize("factor", [1.0, 0.0, -1.0, 1.01])
def test_the_saturated_end_is_imprecise_and_the_rest_is_not(title, factor, monkeypatch):
    reference, candidate = SATURATED[title]

    def wrong(x):
        return candidate(factors(x, factor))

    monkeypatch.setattr(Once, "factor", 1.0)
    given = (torch.linspace(-40, 40, 64),)
    report = check(reference, wrong, given, quick=True)
    assert report.passes == (factor == 1.0)
    if factor == 1.0:
        assert verdicts(report, "dx") <= {"agree", "imprecise"}


def test_logarithms_of_sums_are_imprecise_where_one_term_is_all():
    """PyTorch divides dy by exp(y) as logarithms, which are as large as x."""
    given = (torch.tensor([[-8e5, 9e5], [3e5, 2e5]]),)

    def function(x):
        return torch.logcumsumexp(x, 1)

    report = check(function, None, given, quick=True)
    assert verdicts(report, "dx") <= {"agree", "imprecise"}
    lost = check(function, lambda x: function(x * 1.1 - 0.1 * x.detach()), given)
    assert not lost.passes


@pytest.mark.parametrize("factor", [1, 0, -1])
def test_a_single_lost_element_is_no_imprecision(factor):
    """Beside a large element of its slice it is less than this may lose."""
    given, each = (3e5 + 3 * torch.randn(2, 4),), torch.ones(2, 4)
    each[0, 3] = factor
    function = partial(torch.logcumsumexp, dim=1)
    report = check(function, lambda x: function(factors(x, each)), given, quick=True)
    accused = {"disagree"} if factor < 1 else {"agree", "imprecise"}
    assert verdicts(report, "dx") <= accused


def test_a_zero_is_wrong_where_only_a_multiple_of_the_loss_has_no_bound():
    """The loss itself is a quarter; the right function has lost nothing."""
    torch.manual_seed(1)
    given = tuple(torch.randn(n).bfloat16() for n in ((4, 8), (4, 8), (8,)))

    def dino(s, t, c):
        share = torch.softmax((t - c) / 0.04, -1).detach()
        return -(share * f.log_softmax(s / 0.1, -1)).sum(-1).mean()

    def wrong(s, *others):
        return dino(factors(s, 0), *others)

    assert check(dino, None, given, quick=True).passes
    assert check(dino, wrong, given, quick=True).failures


# Masks of large numbers ------------------------------------------------------------


LARGE = {
    "the largest number": torch.finfo(torch.float32).min,
    "1e30": -1e30,
    "1e9": -1e9,
}


def attention(lowest, masked=()):
    mask = torch.full((8, 8), lowest).triu(1)
    for row in masked:
        mask[row] = lowest

    def function(q, k, v):
        return (q @ k.mT / 2 + mask).softmax(-1) @ v

    return function


@pytest.mark.parametrize("lowest", LARGE.values(), ids=LARGE)
def test_a_mask_of_a_large_number_hides_nothing(lowest):
    given = tuple(torch.randn(2, 8, 4) for _ in range(3))
    report = check(attention(lowest), None, given, quick=True)
    assert {r.judgement.verdict for r in report.rows} == {"agree"}
    other = check(attention(lowest), attention(-1e5), given, quick=True)
    assert {r.judgement.verdict for r in other.rows} == {"agree"}


@pytest.mark.parametrize("lowest", [LARGE["the largest number"], LARGE["1e30"]])
def test_a_row_that_is_masked_as_a_whole_is_judged(lowest):
    given = tuple(torch.randn(2, 8, 4) for _ in range(3))
    report = check(attention(lowest, [3]), None, given, quick=True)
    assert {r.judgement.verdict for r in report.rows} == {"agree"}

    def nothing(q, k, v):  # as a kernel that gives zeros for such a row
        keep = torch.ones(8, 1)
        keep[3] = 0
        return attention(lowest, [3])(q, k, v) * keep

    assert not check(attention(lowest, [3]), nothing, given, quick=True).passes


# A decomposition is no definition --------------------------------------------------


def test_a_decomposition_that_is_another_function_is_refused_with_the_finding():
    target = torch.tensor([[0, 2, -1], [1, -1, -1]])
    with pytest.raises(Untraceable, match=r"multilabel_margin_loss.*another function"):
        check(lambda x: f.multilabel_margin_loss(x, target), None, (torch.randn(2, 3),))


def test_a_cast_to_float8_overflows_as_pytorch_does():
    given = (torch.tensor([300.0, 500.0, 6e4, 1e6]),)
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        report = check(lambda x, t=dtype: x.to(t).float(), None, given, quick=True)
        assert {r.judgement.verdict for r in report.rows} <= {"agree", "vacuous"}
