"""Ordinary networks are judged, and a gradient that is lost in one of their layers."""

import copy
from functools import partial

import pytest

from gradwatch import check

torch = pytest.importorskip("torch")
nn = torch.nn
LOWEST = torch.finfo(torch.float32).min


class Block(nn.Module):
    """Attention before which it is normalised, with what is added to the scores."""

    def __init__(self, added):
        super().__init__()
        self.norm, self.added = nn.LayerNorm(16), added
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        b, t, c = x.shape
        split = self.qkv(self.norm(x)).reshape(b, t, 3, 2, 8).permute(2, 0, 3, 1, 4)
        q, k, v = split
        weights = (q @ k.mT / 8**0.5 + self.added).softmax(-1)
        return x + self.out((weights @ v).transpose(1, 2).reshape(b, t, c))


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 16)

    def forward(self, x):
        return x + self.table(torch.arange(8))


def blocks(count, added):
    return nn.Sequential(*[Block(added) for _ in range(count)])


def embedded(count):
    layers = [nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)] * count
    return nn.Sequential(Positions(), *copy.deepcopy(layers)).eval()


NETWORKS = {
    "positions": embedded,
    "relative": lambda count: blocks(count, nn.Parameter(torch.randn(2, 8, 8) / 2)),
    "lowest": lambda count: blocks(count, torch.full((8, 8), LOWEST).triu(1)),
    "-1e30": lambda count: blocks(count, torch.full((8, 8), -1e30).triu(1)),
}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize(
    ("name", "count"),
    [*((name, 3) for name in NETWORKS), ("relative", 12)],
)
def test_an_ordinary_network_is_judged(name, count):
    report = check(NETWORKS[name](count), None, (torch.randn(2, 8, 16),))
    verdicts = [j.verdict for j in report]
    assert report.passes
    assert "imprecise" not in verdicts
    assert verdicts.count("vacuous") <= len(verdicts) / 20


class Zero(torch.autograd.Function):
    """A layer norm whose backward is zero for the weight and the bias."""

    @staticmethod
    def forward(ctx, x, weight, bias):
        return nn.functional.layer_norm(x, x.shape[-1:], weight, bias)

    @staticmethod
    def backward(ctx, dy):
        return dy, torch.zeros_like(dy[0, 0]), torch.zeros_like(dy[0, 0])


class Lost(nn.LayerNorm):
    def forward(self, x):
        return Zero.apply(x, self.weight, self.bias)


def test_a_zero_gradient_of_a_layer_norm_is_wrong():
    right = blocks(3, nn.Parameter(torch.randn(2, 8, 8) / 2))
    wrong = copy.deepcopy(right)
    wrong[0].norm = Lost(16)
    report = check(right, wrong, (torch.randn(2, 8, 16),), quick=True)
    named = {row.judgement.tensor: row.judgement.verdict for row in report.failures}
    assert named["d0.norm.weight"] == named["d0.norm.bias"] == "disagree"


def rotated(x, first):
    """Rotary positions, whose angles no gradient enters."""
    with torch.no_grad():
        angles = torch.arange(first, first + 8)[:, None] * 10000 ** -(
            torch.arange(0, 8, 2) / 8
        )
        c, s = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    a, b = x.chunk(2, -1)
    return x * c + torch.cat([-b, a], -1) * s


@pytest.mark.parametrize("first", [0, 504, 4088])
def test_what_is_computed_without_gradients_is_rounded_too(first):
    report = check(lambda x: rotated(x, first), None, (torch.randn(8, 8),))
    assert report.passes


@pytest.mark.parametrize(
    "function",
    [
        lambda x, w: x * (x @ w).tanh().detach(),
        lambda x, w: (x @ w, (x @ w).detach()),
        lambda x, w: (x @ w) / (x @ w).abs().amax().detach(),
    ],
)
def test_a_detached_value_is_rounded_too(function):
    tensors = torch.randn(4, 64), torch.randn(64, 64)
    assert check(function, None, tensors).passes
    assert not check(function, lambda *given: _near(function(*given)), tensors).passes


def _near(results):
    """The last result, or the only one, off by a ten-thousandth."""
    *first, last = results if isinstance(results, tuple) else (results,)
    return (*first, last * 1.0001) if first else last * 1.0001


def guarded(x, w):
    """The same without the trap: the square root is taken of what is positive."""
    inside = torch.where(x > 0, x * w, 1.0)
    return torch.where(x > 0, inside.sqrt(), 0.0)


def test_nan_from_a_branch_that_is_not_taken_is_wrong_and_zero_is_right():
    given = torch.tensor([-1.0, 4.0, 2.0]), torch.tensor([1.0, 2.0, 0.5])
    trapped = check(lambda x, w: torch.where(x > 0, (x * w).sqrt(), 0.0), None, given)
    assert {row.judgement.verdict for row in trapped.failures} == {"nonfinite"}
    assert "0 times an infinite slope" in trapped.failures[0].judgement.message
    assert check(guarded, None, given).passes


def test_the_slope_of_x_log_y_by_x_is_log_y_at_zero_too():
    given = torch.tensor([0.0, 1.5, -2.0]), torch.tensor([2.0, 3.0, 0.5])
    assert check(torch.xlogy, None, given).passes
    wrong = check(
        torch.xlogy, lambda x, y: torch.where(x == 0, 0.0, x * y.log()), given
    )
    assert {row.judgement.tensor for row in wrong.failures} == {"dx0"}


def test_an_entropy_has_no_slope_at_zero_and_another_sign_elsewhere_is_found():
    given = (torch.tensor([0.0, 0.5, 0.2, 1.0]),)
    assert check(torch.special.entr, None, given).passes
    wrong = check(
        torch.special.entr,
        lambda p: (-2 * torch.xlogy(p, p)).detach() + torch.xlogy(p, p),
        given,
    )
    assert wrong.failures


def test_each_prefix_of_a_running_logsumexp_has_a_maximum_of_its_own():
    x = torch.tensor([[-800.0, 900.0]])
    report = check(lambda x: torch.logcumsumexp(x, 1), None, (x,))
    outputs = [row.judgement for row in report.rows if row.judgement.tensor == "y"]
    assert {j.verdict for j in outputs} == {"agree"}


def autocast(x, w):
    with torch.autocast("cpu", torch.bfloat16):
        return nn.functional.linear(x, w)


NARROW = {
    "product": lambda x, w: (x.bfloat16() @ w.T.bfloat16()).float(),
    "gelu": lambda x, w: nn.functional.gelu((x @ w.T).bfloat16()).float(),
    "half": lambda x, w: x.half().float() @ w.T,
    "float8": lambda x, w: x.to(torch.float8_e4m3fn).float() @ w.T,
    "autocast": autocast,
}


@pytest.mark.parametrize("name", NARROW)
def test_a_cast_to_a_narrower_type_is_rounded(name):
    given = torch.randn(8, 16), torch.randn(4, 16)
    assert check(NARROW[name], None, given).passes

    def wrong(x, w):
        return 1.6 * NARROW[name](x, w)

    assert not check(NARROW[name], wrong, given).passes


SATURATED = (torch.tanh, torch.sigmoid, nn.functional.softsign)


@pytest.mark.parametrize("function", SATURATED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("scale", [1, 4])
def test_a_backward_computes_with_the_value_that_was_stored(function, dtype, scale):
    """1 - y^2 of a tanh has lost the digits that y had lost."""
    wide = torch.float64 if dtype == torch.float32 else torch.float32
    given = (scale * torch.randn(16, 16, dtype=wide),)

    def inside(x):
        return function(x.to(dtype))

    assert check(inside, None, given).passes, str(check(inside, None, given))
    wrong = check(inside, lambda x: inside(x) * 1.5, given)
    assert not wrong.passes


@pytest.mark.parametrize("name", ["softmax", "norm"])
def test_float32_inside_float64_is_rounded(name):
    """As Llama's norms compute, whatever the type of the model is."""
    function = {
        "softmax": lambda x: torch.softmax(x.float(), -1).double(),
        "norm": lambda x: x * x.float().square().mean(-1, True).rsqrt().double(),
    }[name]
    given = (torch.randn(8, 16, dtype=torch.float64),)
    assert check(function, None, given, dtypes=["float64"]).passes
    wrong = check(
        function, lambda x: function(x) * (1 + 1e-4), given, dtypes=["float64"]
    )
    assert not wrong.passes


def test_a_value_that_the_narrower_type_cannot_hold_is_infinite_in_both():
    given = (torch.tensor([1e3, 7e4, -7e4]),)
    report = check(lambda x: x.half().float() * 2, None, given)
    assert report.passes
    assert not check(lambda x: x.half().float() * 2, lambda x: x * 2, given).passes


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + (torch.tanh(x) - x).detach(),
        lambda x: x + (x.round() - x).detach(),
        lambda x: torch.where(x > 0, x, x).exp() / x.detach().amax(-1, True).exp(),
    ],
)
def test_a_straight_through_estimator_is_right(function):
    assert check(function, shapes=[(6, 4)]).passes


def test_a_compiled_function_is_a_candidate():
    """Its graph is swept more than once, though it may give its buffers away."""

    def function(x):
        return nn.functional.gelu(torch.softmax(x, -1) * x)

    def compiled(wrong):
        one = torch.compile(lambda x: function(x) * wrong, backend="aot_eager")
        return check(function, one, shapes=[(8, 64)], quick=True)

    assert compiled(1.0).passes
    assert not compiled(1.01).passes


def test_a_gradient_that_is_zero_twice_over_is_rounded_twice():
    """A bias before a batch norm, and the cotangents of each row are equal."""
    torch.manual_seed(7)
    before = nn.Linear(6, 10), nn.BatchNorm1d(10), nn.SiLU()
    net = nn.Sequential(*before, nn.Linear(10, 4), nn.BatchNorm1d(4))
    x, only = torch.randn(5, 6), "dy_expanded"
    found = check(net, None, [x], only=only)
    assert found.passes, str(found)
    assert "dy_expanded" in str(found.rows)
    wrong = copy.deepcopy(net)
    wrong.register_forward_pre_hook(plant("0", "bias", lambda dw: dw + 1e-9))
    bad = {j.tensor for j in check(net, wrong, [x], only=only) if not j.passes}
    assert bad == {"d0.bias"}


class Autocast(nn.MultiheadAttention):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x, x, x, need_weights=False)[0].float()


def plant(name, weight, mistake):
    """A hook that makes a mistake in a weight's gradient."""

    def hook(module, inputs):
        held = getattr(module.get_submodule(name), weight)
        if held.requires_grad and not hasattr(held, "planted"):
            held.planted = held.register_hook(mistake)

    return hook


def of_values(factor):
    """A mistake in the part of a gradient that belongs to the values."""
    return lambda dw: torch.cat([dw[:24], factor * dw[24:]])


def test_attention_under_autocast_is_right_where_its_scores_are_tiny():
    """The kernel subtracts sum(dy y), of a y in bfloat16, from dP in bfloat16."""
    torch.manual_seed(2)
    net = Autocast(12, 1, batch_first=True)
    x, weight = torch.randn(2, 6, 12), "in_proj_weight"
    found = check(net, None, [x], only="tiny", seed=2)
    assert found.passes, str(found)
    for factor in (0.0, -1.0, 0.9, 1.1):
        wrong = copy.deepcopy(net)
        wrong.register_forward_pre_hook(plant("", weight, of_values(factor)))
        rows = check(net, wrong, [x], only="tiny", seed=2).rows
        bad = {r.trial for r in rows if not r.judgement.passes}
        assert bad == {"given", "given, tiny"}, factor


@pytest.mark.parametrize(("heads", "length", "seed"), [(4, 7, 0), (8, 65, 2)])
def test_values_that_a_cast_makes_equal_are_rounded_alike(heads, length, seed):
    """Beside a bias all values are equal in bfloat16: so is what sum(dy y) loses."""
    torch.manual_seed(seed)
    net = Autocast(4 * heads, heads, batch_first=True)
    x = torch.randn(1, length, 4 * heads)
    found = check(net, None, [x], only="tiny", seed=seed)
    assert found.passes, str(found)
    for factor in (0.0, 1.35):
        wrong, half = copy.deepcopy(net), 8 * heads

        def off(dw, factor=factor, half=half):
            return torch.cat([dw[:half], factor * dw[half:]])

        wrong.register_forward_pre_hook(plant("", "in_proj_weight", off))
        rows = check(net, wrong, [x], only="tiny", seed=seed).rows
        bad = {r.trial for r in rows if not r.judgement.passes}
        assert bad == {"given", "given, tiny"}, factor


def test_attention_in_16_bits_is_no_sum_in_16_bits():
    """A fused kernel keeps its probabilities in bfloat16 or in float32."""
    torch.manual_seed(7)
    net = nn.MultiheadAttention(8, 2, batch_first=True)
    nn.init.normal_(net.in_proj_bias, std=0.5)

    class Itself(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net.bfloat16()

        def forward(self, x):
            return self.inner(x, x, x, need_weights=False)[0]

    x = (1e-3 * torch.randn(2, 5, 8)).bfloat16()
    found = check(Itself(), None, [x], quick=True)
    assert {j.verdict for j in found} == {"agree"}, str(found)
    assert not torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()
    wrong = Itself()
    wrong.register_forward_pre_hook(plant("inner", "in_proj_weight", torch.zeros_like))
    assert check(Itself(), wrong, [x], quick=True).failures


LEAST = torch.finfo(torch.bfloat16).min  # which float32 holds, too
MASKS = {
    "filled": lambda seen, like: torch.zeros_like(like).masked_fill(~seen, -1e30),
    "full": lambda seen, like: torch.where(seen, 0, torch.full_like(like, -1e30)),
    "least": lambda seen, like: torch.where(seen, 0.0, LEAST).to(like.dtype),
    "product": lambda seen, like: ((1 - seen.float()) * LEAST).to(like.dtype),
}


def attended(x, weight, mask, layers, type_of_scores=None):
    """Attention in which one row is wholly masked, by what is added to its scores."""
    seen = torch.tril(torch.ones(8, 8, dtype=torch.bool)).clone()
    seen[2] = False
    for _ in range(layers):
        x = torch.nn.functional.layer_norm(x, (4,))
        scores = x @ weight @ x.mT / 4
        masked = mask(seen, scores).to(type_of_scores or x.dtype)
        x = x + (scores + masked).softmax(-1).to(x.dtype) @ x
    return x


def inputs_in(dtype):
    rng = torch.Generator().manual_seed(0)
    inputs = [torch.randn(2, 8, 4, generator=rng), torch.randn(4, 4, generator=rng) / 4]
    return [x.to(dtype) for x in inputs]


@pytest.mark.parametrize(
    ("layers", "dtype"), [(1, torch.float32), (12, torch.float32), (3, torch.bfloat16)]
)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_a_row_that_is_wholly_masked_is_judged(mask, layers, dtype):
    """A number that fills a tensor is exact: the one that its type holds.

    So is its product with 0 and 1. The sum with a score is that number, also where no
    bound of the score is known, as behind many layers.
    """

    def without(x, weight):
        return attended(x, weight.detach() + 0 * weight, mask, layers)

    function, inputs = partial(attended, mask=mask, layers=layers), inputs_in(dtype)
    right = check(function, inputs=inputs, quick=True)
    assert {j.verdict for j in right} == {"agree"}, str(right)
    wrong = check(function, without, inputs, quick=True)
    assert {j.tensor for j in wrong if j.verdict == "disagree"} == {"dweight"}


@pytest.mark.parametrize(
    ("layers", "dtype", "masked"),
    [
        (1, torch.float32, -1e9),
        (12, torch.float32, -1e9),
        (3, torch.bfloat16, -1e4),
        (3, torch.float16, torch.finfo(torch.float16).min),
        (1, torch.float16, -1e4),
    ],
)
def test_a_score_is_lost_beside_a_mask_or_kept(layers, dtype, masked):
    """In the type of the scores, where float64 has them all; or not, in float64."""

    def mask(seen, like):
        return (1 - seen.to(like.dtype)) * masked

    def of_mask(weight, **how):
        return lambda x, w: attended(x, weight(w), mask, layers, **how)

    function, inputs = of_mask(torch.clone), inputs_in(dtype)
    for right in (function, of_mask(torch.clone, type_of_scores=torch.float64)):
        found = check(function, right, inputs, quick=True)
        assert {j.verdict for j in found} == {"agree"}, str(found)
    wrong = check(function, of_mask(lambda w: w.detach() + 0 * w), inputs, quick=True)
    assert {j.tensor for j in wrong if j.verdict == "disagree"} == {"dw"}
    (row,) = wrong.failures
    assert row.judgement.diagnosis.startswith("dw is zero everywhere")
