"""A call that cannot be judged says what to write instead."""

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch import nn
from torch.nn import functional as F  # noqa: N812  # as in its documentation

from gradwatch.harness.check import check
from gradwatch.harness.check.child import target
from gradwatch.impls.catalogue import UnknownName


def silu(x):
    return x * torch.sigmoid(x)


def two(x, y):
    return x * torch.sigmoid(x) + 0 * y


def rows(x, *, dim):
    return torch.softmax(x, dim)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        return x * factor

    @staticmethod
    def backward(ctx, dy):
        return dy, None


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(width, width)

    def forward(self, x):
        return self.inner(x)


HERE = rf"{__file__}:\d+\)"


@pytest.mark.parametrize(
    ("functions", "shapes", "says"),
    [
        ([silu, two], ["4x8"], rf"two\(x, y\) \({HERE}: missing .*'y'; give a shape"),
        ([two, silu], ["4x8", "4x8"], rf"silu\(x\) \({HERE}: too many positional"),
        ([two], ["4x8"], rf"two\(x, y\) \({HERE}: missing .*'y'"),
        ([silu, Twice.apply], ["4x8"], rf"forward.*\({HERE}: missing .*'factor'"),
        ([nn.Linear(8, 8), two], ["4x8"], rf"two.*\({HERE}: too many positional"),
        ([nn.Tanh(), Layer(8)], ["4x8", "4x8"], "forward.*: too many positional"),
        ([rows], ["4x8"], rf"{HERE}: missing .*'dim'; .*--arg dim=-1"),
        ([torch.softmax], ["4x8"], 'missing .*"dim"; .*--arg dim=-1'),
        ([F.cross_entropy], ["4x8"], "missing .*'target'; give a shape"),
        ([F.linear], ["4x8"], 'missing .*"weight"; give a shape'),
        ([silu], ["8:10"], "no input takes a gradient: give one of floats"),
        ([silu], ["8:bool"], "no input takes a gradient: give one of floats"),
        ([Layer], ["4x8"], r"Layer is a class: give an instance, Layer\(...\)"),
        ([silu, Layer], ["4x8"], r"Layer is a class: give an instance, Layer\(...\)"),
        ([Twice], ["4x8"], "Twice is a class: give Twice.apply"),
        ([silu, Twice], ["4x8"], "Twice is a class: give Twice.apply"),
        ([silu], ["1000000x100000"], r"needs some 745 GiB.* machine has .*: give sm"),
    ],
)
def test_a_call_that_does_not_fit_is_refused_with_the_way_out(functions, shapes, says):
    with pytest.raises(ValueError, match=says):
        check(*functions, shapes=shapes)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_missed_before_anything_runs():
    def runs(x):
        pytest.fail("it has been called")

    with pytest.raises(ValueError, match="finds no GPU here: gradwatch doctor"):
        check(runs, shapes=["4x8"], device="cuda")


def test_whole_numbers_alone_will_do_for_what_has_parameters():
    assert check(nn.Embedding(10, 3), shapes=["8:10"]).passes


def test_a_module_that_takes_arguments_is_named_as_an_instance():
    with pytest.raises(UnknownName, match=r"'width': make an instance .*file.py:name"):
        target(f"{__file__}:Layer")


def test_a_precision_by_another_name_is_not_known():
    with pytest.raises(UnknownName, match="no dtype is called 'fp16'; did you mean"):
        check(silu, shapes="4x8", dtypes=["fp16"])


def test_one_tensor_is_one_input():
    assert check(silu, inputs=torch.randn(4, 8), quick=True).passes
    with pytest.raises(TypeError, match=r"not numpy.ndarray"):
        check(silu, inputs=np.ones(3))


def test_what_a_kernel_raises_is_shown_with_its_line():
    def kernel(x):
        raise ArithmeticError("blocks of 16")

    report = check(silu, kernel, shapes=["4x8"], quick=True)
    assert f"raised ArithmeticError: blocks of 16 at {__file__}:" in str(report)
    assert 'raise ArithmeticError("blocks of 16")' in str(report)


def test_nothing_is_compared_of_no_elements():
    lines = str(check(silu, inputs=[torch.randn(0, 4)], quick=True)).splitlines()
    assert all("nan" not in line for line in lines)


def threads():
    """The numbers of threads of the BLAS libraries in this process."""
    return {p["num_threads"] for p in threadpool_info() if p["user_api"] == "blas"}


def test_numpy_s_products_have_one_thread_and_the_caller_s_come_back():
    seen = []

    def watched(x):
        seen.append(threads())
        return silu(x)

    with threadpool_limits(2, "blas"):
        check(silu, watched, shapes=["4x8"], quick=True)
        assert threads() == {2}
    assert all(found == {1} for found in seen)
    assert seen


def test_a_similarity_of_long_rows_is_judged_at_size():
    def loss(a, b):
        return (1 - F.cosine_similarity(a, b, dim=1)).mean()

    inputs = [torch.randn(64, 2000), torch.randn(64, 2000)]
    assert check(loss, inputs=inputs, quick=True).passes


def test_a_norm_that_counts_its_batches_is_judged_at_size():
    layer, x = nn.BatchNorm2d(4), torch.randn(8, 4, 32, 32)
    assert check(layer, inputs=[x], quick=True).passes


def test_a_long_recurrence_is_judged_whole_and_not_in_parts_of_all_its_steps():
    layer, x = nn.LSTM(16, 64, batch_first=True), torch.randn(2, 40, 16)
    report = check(lambda x: layer(x)[0], inputs=[x], quick=True)
    assert report.passes
    assert "were judged in full" not in str(report)


class Cached(nn.Module):
    """A layer that makes a buffer in its first call, as rotary embeddings do."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 4))

    def forward(self, x):
        if not hasattr(self, "cos"):
            cos = torch.arange(4).to(x.dtype).cos()
            self.register_buffer("cos", cos, persistent=False)
        return (x * self.weight * self.cos).tanh()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_buffer_that_the_first_call_makes_is_no_other_parameter(dtype):
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    report = check(Cached(), inputs=[x], dtypes=dtype, quick=True, train=20)
    assert report.passes, str(report)

    class Wrong(Cached):
        def forward(self, x):
            return super().forward(x + (0.1 * x - 0.1 * x.detach()))

    report = check(Cached(), Wrong(), [x], dtypes=dtype, quick=True)
    assert [r.judgement.tensor for r in report.failures] == ["dx"]
    more = Cached()
    more.extra = nn.Parameter(torch.ones(4))
    with pytest.raises(ValueError, match="parameters are not the reference's"):
        check(Cached(), more, [x], dtypes=dtype, quick=True)


class Masked(nn.Module):
    """Causal attention by a mask that is a buffer, or without one."""

    def __init__(self, mask):
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(4, 12)
        if mask:
            self.register_buffer("mask", torch.ones(9, 9).tril() == 0)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        if not hasattr(self, "mask"):
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores, mask = q @ k.mT / 2, self.mask[: len(x), : len(x)]
        return scores.masked_fill(mask, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("mask", [True, False])
def test_a_buffer_that_one_module_alone_has_is_its_own(mask):
    x = torch.randn(7, 4, generator=torch.Generator().manual_seed(0))
    report = check(Masked(mask), Masked(not mask), [x])
    assert report.passes, str(report)
    assert ("buffers of the reference alone: mask" in report.notes) == mask
    wrong = Masked(not mask)
    wrong.qkv.register_forward_hook(lambda _, inputs, y: y * 1.01 - 0.01 * y.detach())
    assert not check(Masked(mask), wrong, [x], quick=True).passes
    lacking, turned = Masked(not mask), Masked(not mask)
    turned.qkv.weight = nn.Parameter(turned.qkv.weight.detach().T)
    with pytest.raises(ValueError, match=r"weight 4x12.*expected qkv.weight 12x4"):
        check(Masked(mask), turned, [x], quick=True)
    lacking.qkv.bias = None
    with pytest.raises(ValueError, match="parameters are not the reference's"):
        check(Masked(mask), lacking, [x], quick=True)
