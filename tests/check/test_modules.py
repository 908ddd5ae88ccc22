"""PyTorch's gradients of whole modules are right; a planted mistake is seen."""

import pytest
import torch
from torch import nn

from gradwatch.harness.check import check


class Embedded(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(11, 16), nn.RMSNorm(16)

    def forward(self, tokens):
        return self.norm(self.table(tokens))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.LSTM(5, 6, batch_first=True)

    def forward(self, x):
        return self.cells(x)[0]


def module(name):
    torch.manual_seed(0)
    if name == "mlp":
        return nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 5))
    if name == "embedding":
        return Embedded()
    if name == "lstm":
        return Recurrent()
    if name == "transformer":
        return nn.TransformerEncoderLayer(
            16, 2, 32, dropout=0.0, batch_first=True, norm_first=True
        )
    layers = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(54, 4))


def inputs(name):
    draw = torch.Generator().manual_seed(1)
    if name == "embedding":
        return (torch.randint(11, (4, 7), generator=draw),)
    shapes = {
        "mlp": (8, 20), "conv": (4, 3, 8, 8), "lstm": (2, 3, 5),
        "transformer": (1, 4, 16),
    }  # fmt: skip
    return (torch.randn(shapes[name], generator=draw),)


# Not conv in bfloat16: there a rounded sum decides which element of a pool is largest,
# and the spread does not always notice (ratio 26 of 22).
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, "float32") for name in ("mlp", "conv", "embedding", "lstm")),
        *((name, "bfloat16") for name in ("mlp", "embedding", "lstm", "transformer")),
        *((name, "float64") for name in ("mlp", "conv", "embedding")),
        ("transformer", "float32"),
    ],
)
def test_pytorch_s_gradients_of_a_module_pass(name, dtype):
    found = check(module(name), None, inputs(name), dtypes=[dtype])
    assert found.passes, str(found)


class Off(torch.autograd.Function):
    """The identity, its gradient off by one part in a thousand."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        return 1.001 * dy


class AfterOff(nn.Module):
    def __init__(self, name):
        super().__init__()
        self.inner = module(name)

    def forward(self, *args):
        return Off.apply(self.inner(*args))


@pytest.mark.usefixtures("undiagnosed")
@pytest.mark.parametrize("name", ["mlp", "conv", "embedding", "lstm", "transformer"])
def test_a_gradient_off_by_a_thousandth_is_seen_in_float32(name):
    assert check(module(name), AfterOff(name), inputs(name), quick=True).failures
