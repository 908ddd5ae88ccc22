"""A traced function: its values, its gradients, its names, and what it refuses."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  # after importorskip
from torch.nn import functional as F  # noqa: E402, N812  # after importorskip; as in its docs

from gradwatch.harness.judging.reference import Asked, Reference  # noqa: E402  # likewise
from gradwatch.harness.judging.verdict import judge_tensors  # noqa: E402  # likewise
from gradwatch.harness.tracing import Untraceable  # noqa: E402  # after importorskip
from gradwatch.harness.tracing.traced import trace  # noqa: E402  # after importorskip
from gradwatch.harness.tracing.untraceable import name_of  # noqa: E402  # likewise
from tests.tracing.slopes import gradients  # noqa: E402  # likewise


def tensor(*shape, seed=0):
    draws = np.random.default_rng(seed).standard_normal(shape)
    return torch.from_numpy(draws)


def tail_of_both(x, y):
    return torch.cat([x, y.t()], 0)[1:] @ y


FUNCTIONS = {
    "softmax": (lambda x: torch.softmax(x, -1), [(3, 5)]),
    "linear": (F.linear, [(4, 5), (3, 5), (3,)]),
    "layer_norm": (lambda x: F.layer_norm(x, (5,)), [(4, 5)]),
    "conv2d": (
        lambda x, w: F.conv2d(x, w, padding=1, stride=2),
        [(2, 3, 7, 6), (4, 3, 3, 2)],
    ),
    "moves": (tail_of_both, [(4, 3), (3, 5)]),
    "repeated indices": (lambda w: w[torch.tensor([1, 1, 0])] ** 2, [(3, 2)]),
    "reductions": (lambda x: x.var(0).sqrt() + x.prod(0) + x.cumsum(0)[-1], [(4, 3)]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_autograd(name):
    """PyTorch's backward is an independent tool here: the trace never uses it."""
    function, shapes = FUNCTIONS[name]
    inputs = [tensor(*shape, seed=i) for i, shape in enumerate(shapes)]
    traced = trace(function, inputs).graph()
    wanted = [x.clone().requires_grad_() for x in inputs]
    y = function(*wanted)
    dy = tensor(*y.shape, seed=9)
    found = gradients(traced, {"y": dy.numpy()})
    np.testing.assert_allclose(traced.outputs["y"].value, y.detach(), rtol=1e-12)
    for node, expected in zip(
        found.values(), torch.autograd.grad(y, wanted, dy), strict=True
    ):
        np.testing.assert_allclose(node.value, expected, rtol=1e-10, atol=1e-12)


def test_attention_that_sees_nothing_in_one_row_has_the_gradient_of_autograd():
    """Where the row of a mask is all false: zeros, and no nan in any gradient."""
    q, k, v = (tensor(4, 3, seed=i) for i in range(3))
    mask = torch.ones(4, 4, dtype=torch.bool)
    mask[1] = False

    def attention(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    dy = tensor(4, 3, seed=9)
    found = gradients(trace(attention, [q, k, v]).graph(), {"y": dy.numpy()})
    leaves = [x.requires_grad_() for x in (q, k, v)]
    wanted = torch.autograd.grad(attention(*leaves), leaves, dy)
    assert not wanted[0][1].any()
    for node, expected in zip(found.values(), wanted, strict=True):
        np.testing.assert_allclose(node.value, expected, rtol=1e-10, atol=1e-12)


def test_the_same_trace_is_evaluated_in_extended_precision():
    traced = trace(torch.exp, [tensor(3)])
    wide = traced.graph(np.longdouble)
    (dx,) = gradients(wide, {"y": np.ones(3)}).values()
    assert dx.value.dtype == wide.outputs["y"].value.dtype == np.longdouble
    assert traced.graph().outputs["y"].value.dtype == np.float64


def test_a_module_s_parameters_and_buffers_are_leaves_by_name():
    module = nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).double()
    traced = trace(module, [tensor(4, 5)])
    assert set(traced.graph().leaves) == {
        *("input", "0.weight", "0.bias", "1.weight", "1.bias"),
        *("1.running_mean", "1.running_var"),
    }
    assert set(traced.graph().outputs) > {"y", "1.running_mean", "1.running_var"}
    assert module[1].num_batches_tracked == 0, "the module itself is left alone"


def test_names_are_those_of_the_signature():
    traced = trace(
        lambda query, parts: query + parts[0] * parts[1],
        [tensor(2), [tensor(2), tensor(2)]],
    )
    assert list(traced.graph().leaves) == ["query", "parts[0]", "parts[1]"]


def test_a_mean_of_a_window_knows_nothing_of_what_lies_outside():
    x = torch.ones(1, 4, 6, dtype=torch.float64)
    x[0, 0, 0] = torch.inf
    y = trace(lambda x: F.adaptive_avg_pool2d(x, (2, 3)), [x]).graph().outputs["y"]
    np.testing.assert_array_equal(y.value, [[[np.inf, 1, 1], [1, 1, 1]]])


def test_where_no_path_leads_there_is_no_gradient():
    traced = trace(lambda x, unused: x * 2.0, [tensor(2), tensor(2)])
    assert gradients(traced.graph(), {"y": np.ones(2)})["dunused"] is None


@torch.no_grad()
def mean(x):
    return x.mean()


def with_the_switch(x):
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    m = mean(x)
    torch.set_grad_enabled(before)
    return x * m


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        with torch.no_grad():
            self.seen.mul_(0.5).add_(x.mean())
        return x * self.seen + mean(x).detach()


STOPPED = {"decorator": lambda x: x * mean(x), "switch": with_the_switch}


@pytest.mark.parametrize("name", [*STOPPED, "buffer"])
def test_what_no_grad_stops_is_stopped(name):
    function = STOPPED[name] if name in STOPPED else Normed()
    x = tensor(4).requires_grad_()
    made = trace(function, [x.detach()]).graph()
    (dx,) = gradients(made, {"y": np.ones(4)}, wanted=["x"]).values()
    (expected,) = torch.autograd.grad(function(x).sum(), x)
    np.testing.assert_allclose(dx.value, expected, rtol=1e-14)


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x**3

    @staticmethod
    def backward(ctx, dy):
        return dy


class New(Cubed):
    @staticmethod
    def forward(x, power=3):
        with torch.no_grad():
            return x.detach() ** power

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass


@pytest.mark.parametrize(
    "function",
    [Cubed.apply, New.apply, lambda x: New.apply(x, 3), lambda x: CUBED(x) * 1],
)
def test_of_a_function_with_a_backward_of_its_own_the_forward_is_followed(function):
    x = tensor(3)
    dx = gradients(trace(function, [x]).graph(), {"y": np.ones(3)}, ["x"])["dx"]
    np.testing.assert_allclose(dx.value, 3 * x**2, rtol=1e-14)


CUBED = Cubed.apply


def test_numbers_that_leave_pytorch_are_refused_by_their_line():
    def leaving(x):
        return torch.from_numpy(x.numpy() ** 2)

    with pytest.raises(Untraceable, match=r"Tensor.numpy.*leaving|numpy\(\)") as raised:
        trace(leaving, [tensor(3)])
    assert raised.value.kind == "numpy"


REFUSED = {
    "random": lambda x: torch._standard_gamma(x.exp()),
    "complex": lambda x: torch.fft.fft(x).logcumsumexp(0).abs(),
    "factorisation": lambda x: torch.geqrf(x)[0],
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_is_refused_with_operator_line_and_way_round(kind):
    with pytest.raises(Untraceable) as raised:
        trace(REFUSED[kind], [tensor(3, 3)]).graph()
    assert raised.value.kind == kind
    assert raised.value.op.startswith("aten.")
    assert "test_traced.py" in raised.value.line
    assert raised.value.way_round in str(raised.value)


def test_a_product_of_no_terms_is_judged():
    """Rows of length 0: a matrix of zeros, which nothing rounds."""
    a, b = tensor(2, 0), tensor(0, 3)
    traced = trace(torch.mm, [a, b])

    def build(wide):
        made = traced.graph(wide)
        return {"y": made.outputs["y"], **gradients(made, {"y": np.ones((2, 3))})}

    right = Reference(Asked(build, "float64"))
    got = {"y": np.zeros((2, 3)), "dx0": np.zeros((2, 0)), "dx1": np.zeros((0, 3))}
    found = judge_tensors(right, got, dict.fromkeys(got, "float64"))
    assert all(j.passes for j in found)
    wrong = {"y": np.ones((2, 3))}
    (planted,) = judge_tensors(right, wrong, {"y": "float64"})
    assert planted.verdict == "disagree"


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (torch.softmax, "torch.softmax"),
        (F.silu, "torch.nn.functional.silu"),
        (torch.fft.fft, "torch.fft.fft"),
        (torch.linalg.inv, "torch.linalg.inv"),
    ],
)
def test_a_function_is_named_as_a_person_writes_it(function, name):
    assert name_of(function) == name
