"""Compositions of PyTorch's functions that were accused, though PyTorch is right."""

import itertools
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
from torch.nn import functional as F  # noqa: E402, N812  # after importorskip

from gradwatch.harness.check import check  # noqa: E402  # likewise
from tests.check.compositions import compositions  # noqa: E402  # likewise


class Wrong(torch.autograd.Function):
    """A function whose backward is changed on its way to the inputs."""

    @staticmethod
    def forward(ctx, function, change, *inputs):
        ctx.change, ctx.inputs = change, [x.detach().requires_grad_() for x in inputs]
        with torch.enable_grad():
            ctx.y = function(*ctx.inputs)
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, dy):
        made = torch.autograd.grad(ctx.y, ctx.inputs, dy, allow_unused=True)
        return None, None, *(None if d is None else ctx.change(d) for d in made)


def row(*values):
    return torch.tensor([values])


def near(n=5, size=4):
    """Numbers around 100, of which bfloat16 keeps halves."""
    return 100 + torch.randn(size, n, generator=torch.Generator().manual_seed(1))


ORDINARY = torch.linspace(-1, 1, 6)[None]
TIED = row(0.0, -0.5, 0.0, 0.5, -0.5, 0.0), row(0.0, 0.0, 0.5, 0.0, -0.5, -0.5)

RIGHT = {
    "products beside zeros": (
        lambda x: x.cumprod(-1),
        row(-0.8, 0.0, 0.0, 0.3, 1.7, 0.9) * torch.linspace(1, 2, 20)[:, None],
    ),
    "the smaller of two at a bound of relu": (
        lambda x, y: F.relu(torch.minimum(x, y)) + torch.minimum(x, 2 * y),
        *TIED,
    ),
    "the smaller of two at a bound of clamp": (
        lambda x, y: torch.minimum(x.clamp(-0.5, 0.5), y),
        *TIED,
    ),
    "a sum of distances at a bound of relu": (
        lambda x, y: F.relu(x.abs() + y),
        *TIED,
    ),
    "a tie at a kink": (
        lambda x: torch.maximum(F.selu(x), x),
        TIED[0],
    ),
    "a tie of a pooling beside a kink": (
        lambda x: (y := F.max_pool1d(x, 3, 1, 1)) + y.abs(),
        TIED[0],
    ),
    "equal numbers, interpolated": (
        lambda x: F.interpolate(x[None, None], size=(5, 7), mode="bilinear"),
        torch.full((4, 4), -1.36454201),
    ),
    "a saturated erf": (F.gelu, row(-10.0, -12.0, -8.0, 1.0, -9.5, 0.3)),
    "ties that a cast makes": (
        lambda x: (x / (1 + x.abs())).bfloat16().float().sort(-1).values,
        near(),
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_compositions_are_not_accused(name):
    function, *inputs = RIGHT[name]
    report = check(function, None, tuple(inputs), dtypes="float32", quick=True)
    assert not report.failures


@pytest.mark.parametrize("name", [n for n in RIGHT if "cast" not in n])
def test_wrong_compositions_are_accused(name):
    function, *inputs = RIGHT[name]
    inputs = [torch.where(x == 0, 0.25, x) for x in inputs]
    for change in (torch.zeros_like, torch.neg, lambda d: 1.01 * d):
        report = check(
            function,
            lambda *x, change=change: Wrong.apply(function, change, *x),
            tuple(inputs),
            dtypes="float32",
            quick=True,
        )
        assert report.failures, change


RIGHT_IN_BFLOAT16 = {
    # In bfloat16 all of these lie within a unit in the last place as a whole, so that
    # what is saved of the sort might be what is sorted.
    "a loss of sorted sums": (
        lambda x, y: (x + y).sort(-1).values.logsumexp(-1).square().mean(),
        torch.tensor(
            [[99.5, 99, 100, 98.5, 99.5, 101], [99, 100, 100, 99.5, 100, 101]]
        ),
        torch.tensor(
            [[99.5, 98.5, 101.5, 99, 100.5, 100.5], [100, 99, 100, 99.5, 100, 101]]
        ),
    ),
    "a cast to a type of a smaller range": (lambda x: x.half(), 1e-6 * ORDINARY),
    "a median of sums": (
        lambda x, y: (x + y) - (x + y).median(-1, keepdim=True).values,
        torch.tensor(
            [[99.5, 100.5, 98.5, 99.5, 100.0], [99.5, 99.5, 97.0, 99.5, 101.0]]
        ),
        torch.tensor(
            [[100.5, 100.5, 102.0, 99.5, 102], [101, 100.5, 99.5, 101.0, 99.5]]
        ),
    ),
    "a maximum of sums": (
        lambda x, y: torch.maximum(*[(s := x + y) - s.amax(-1, keepdim=True)] * 2),
        torch.tensor(
            [
                [98.5, 100.0, 99.5, 99.5, 98.5, 100.5],
                [98.5, 100.5, 100.5, 100.0, 99.5, 102.0],
            ]
        ),
        torch.tensor(
            [
                [101.5, 100.5, 99.0, 98.0, 100.0, 98.5],
                [99.0, 101.0, 101.0, 100.5, 100.0, 101.5],
            ]
        ),
    ),
}


@pytest.mark.parametrize("name", RIGHT_IN_BFLOAT16)
def test_right_compositions_are_not_accused_in_bfloat16(name):
    function, *inputs = RIGHT_IN_BFLOAT16[name]
    given = tuple(x.bfloat16() for x in inputs)
    report = check(function, None, given, dtypes="bfloat16", quick=True)
    assert not report.failures


CANCELLED = {
    "a step and back": lambda x, y: (x + y) - x,
    "a step and back beside another": lambda x, y: torch.cat([(x + y) - x, x], -1),
    "a step and back, a slope of both": lambda x, y: ((x + y) - y).exp() + y.sin(),
}


@pytest.mark.parametrize("order", ["vjp", "jvp", "hvp"])
@pytest.mark.parametrize("name", CANCELLED)
def test_parts_of_a_gradient_that_cancel_are_added_up_in_any_order(name, order):
    """Of (a, -a, b) the sum is b without a rounding, or (a + b) - a with one."""
    function = CANCELLED[name]
    given = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(0)).unbind()
    assert check(function, None, given, quick=True, order=order).passes
    if order == "jvp":  # which a custom Function without `jvp` does not have
        return
    for factor in (0.0, 1.0001, -1.0):

        def wrong(x, y, factor=factor):
            return function(x, Wrong.apply(lambda y: y * 1, lambda d: factor * d, y))

        assert check(function, wrong, given, quick=True, order=order).failures


# Wrong, where little would tell ------------------------------------------------------

LOST = {
    "a saturated gate, bfloat16": (
        lambda x: x.sigmoid() * x + (1 - x.sigmoid()) * x.tanh(),
        "bfloat16",
        near(),
    ),
    "a log-sigmoid at 0, float32": (
        lambda x: F.logsigmoid(x - 0.25),
        "float32",
        row(0.25, 0.25, 0.25),
    ),
}


@pytest.mark.parametrize("change", [torch.zeros_like, lambda d: 0.9 * d])
@pytest.mark.parametrize("name", LOST)
def test_a_mistake_behind_a_saturation_is_seen(name, change):
    function, dtype, x = LOST[name]
    x = x.to(getattr(torch, dtype))
    assert not check(function, None, (x,), dtypes=dtype, quick=True).failures

    def wrong(x):
        return Wrong.apply(lambda y: y * 1, change, function(x))

    assert check(function, wrong, (x,), dtypes=dtype, quick=True).failures


def test_a_mistake_of_second_order_is_said_of_a_forward_that_is_the_definition():
    """PyTorch's second derivative of log-sigmoid is 0 from 17 in float32."""
    x = row(30.0, 0.5)
    report = check(F.logsigmoid, None, (x,), quick=True, order="hvp")
    assert [r.judgement.tensor for r in report.failures] == ["hvp.dx"]


def test_a_result_that_is_an_input_of_its_name_is_judged():
    x, y = torch.ones(2, 3), torch.linspace(0, 1, 6).reshape(2, 3)
    assert check(lambda x, y: y, None, (x, y), quick=True).passes

    def twice(x, y):
        return Wrong.apply(lambda x, y: y + 0, lambda d: 2 * d, x, y)

    assert check(lambda x, y: y, twice, (x, y), quick=True).failures


TRAPS = {
    "a pole of lgamma": lambda x: torch.where(x > 0, x.lgamma(), x),
    "a root that is cast": lambda x: torch.where(
        x > 0, x.abs().sqrt().half().float(), x
    ),
    "a root of what was cast": lambda x: torch.where(x > 0, x.abs().half().sqrt(), x),
    "an overflow of expm1": lambda x: torch.where(x < 9, x, x.expm1() / x.exp()),
    "an overflow of exp": lambda x: torch.where(x > 9, x, x.exp() - 1),
}


@pytest.mark.parametrize("name", TRAPS)
def test_a_nan_from_the_branch_not_taken_is_said(name):
    x = row(100.0, 0.0, 2.0, 0.0, -100.0)
    report = check(TRAPS[name], None, (x,), dtypes="float32", quick=True)
    assert "nonfinite" in {j.verdict for j in report if j.tensor == "dx"}


@pytest.mark.parametrize(
    ("dtype", "count"), [("float64", 100), ("float32", 200), ("bfloat16", 60)]
)
def test_random_compositions_are_not_accused(dtype, count):
    for drawn in itertools.islice(compositions(0, dtype), count):
        report = check(drawn, None, drawn.inputs, dtypes=dtype, quick=True)
        assert not report.failures, drawn


def gradients(function, inputs):
    """The gradients in float64 for a cotangent drawn anew."""
    leaves = [x.double().requires_grad_() for x in inputs]
    y = function(*leaves)
    dy = torch.randn(y.shape, generator=torch.Generator().manual_seed(0)).double()
    return torch.autograd.grad(y, leaves, dy, materialize_grads=True, allow_unused=True)


CHANGES = (torch.neg, torch.zeros_like, lambda d: d.flip(-1), lambda d: 1.2 * d)


def test_mistakes_in_random_compositions_do_not_pass():
    """Where they change a gradient by a tenth; of constants nothing is told.

    Of an attention with scores of 10^5 neither: exp(s - logsumexp(s)) loses as much.
    """
    tried = caught = 0
    for i, drawn in enumerate(itertools.islice(compositions(1, "float32"), 120)):
        change = CHANGES[i % len(CHANGES)]

        def wrong(y, change=change):
            return Wrong.apply(lambda y: y * 1, change, y)

        planted = replace(drawn, mistake=wrong, at=i % len(drawn.steps))
        pairs = zip(
            *(gradients(f, drawn.inputs) for f in (drawn, planted)), strict=True
        )
        if not max((a - b).norm() / (a.norm() + 1e-3) for a, b in pairs) > 0.1:
            continue
        tried += 1
        report = check(drawn, planted, drawn.inputs, dtypes="float32", quick=True)
        caught += bool(report.failures)
        verdicts = {row.judgement.verdict for row in report.rows}
        assert report.failures or "vacuous" in verdicts, (drawn, i % len(CHANGES))
    assert tried > 60
    assert caught > 0.95 * tried
