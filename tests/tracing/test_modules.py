"""Modules: PyTorch's own gradients pass in three precisions, planted errors do not."""

import functools

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  # after importorskip

from gradwatch.harness.judging.reference import Asked, Reference  # noqa: E402  # likewise
from gradwatch.harness.judging.verdict import judge_tensors  # noqa: E402  # likewise
from gradwatch.harness.tracing.traced import trace  # noqa: E402  # likewise
from tests.tracing.slopes import gradients  # noqa: E402  # likewise


class Words(nn.Module):
    """An embedding with repeated words, then RMSNorm."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(7, 6), nn.RMSNorm(6)

    def forward(self, words):
        return self.norm(self.table(words))


class Recurrent(nn.Module):
    """The outputs of an LSTM, without its states."""

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 5, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[0]


def layer():
    return nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)


WORDS = torch.tensor([[1, 2, 1], [6, 1, 0]])
MODULES = {
    "MLP": (lambda: nn.Sequential(nn.Linear(5, 8), nn.GELU(), nn.Linear(8, 3)), (4, 5)),
    "conv, batch norm, pool": (
        lambda: nn.Sequential(
            *(nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)),
            *(nn.ReLU(), nn.MaxPool2d(2)),
        ),
        (3, 2, 6, 6),
    ),
    "embedding, RMSNorm": (Words, WORDS),
    "LSTM": (Recurrent, (2, 4, 4)),
    "transformer": (layer, (2, 5, 8)),
    "transformer of 6": (
        lambda: nn.Sequential(*(layer() for _ in range(6))),
        (2, 5, 8),
    ),
}
NAMES = [
    pytest.param(n, marks=pytest.mark.slow) if n == "transformer of 6" else n
    for n in MODULES
]
DTYPES = ["float64", "float32", "bfloat16"]


def held(tensor):
    return tensor.detach().double().numpy()


def trial(make, shape, dtype, seed=0):
    """The reference, and what PyTorch's autograd computes, by the reference's names."""
    torch.manual_seed(seed)
    kind = getattr(torch, dtype)
    module = make().to(kind)
    x = shape if isinstance(shape, torch.Tensor) else torch.randn(shape).to(kind)
    traced = trace(module, [x])
    x = x.requires_grad_() if x.is_floating_point() else x
    y = module(x)
    dy = torch.randn(y.shape).to(kind)
    leaves = dict(module.named_parameters())
    if x.is_floating_point():
        leaves[traced.names[0]] = x

    def build(wide):
        made = traced.graph(wide)
        found = gradients(made, {"y": held(dy).astype(wide)}, list(leaves))
        return {"y": made.outputs["y"], **found}

    wanted = torch.autograd.grad(y, list(leaves.values()), dy)
    got = {f"d{n}": held(g) for n, g in zip(leaves, wanted, strict=True)}
    return Reference(Asked(build, dtype)), {"y": held(y), **got}


def judged(right, got, dtype):
    return judge_tensors(right, got, dict.fromkeys(got, dtype))


@functools.cache
def examined(name, dtype):
    """A trial of a module, and what the judge says of PyTorch's gradients."""
    right, got = trial(*MODULES[name], dtype)
    return right, got, judged(right, got, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_the_gradients_of_pytorch_pass(name, dtype):
    _, _, found = examined(name, dtype)
    assert [j.message for j in found if not j.passes] == []
    if dtype != "bfloat16":  # whose 8 bits leave nothing of a deep network to compare
        assert sum(j.verdict == "agree" for j in found) > len(found) / 2


def largest_lost(gradient):
    """The gradient without its largest element."""
    lost = gradient.copy()
    lost.reshape(-1)[np.argmax(np.abs(lost))] = 0
    return lost


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_planted_errors_are_caught(name, dtype):
    """Scaled, turned round, its largest lost: of each gradient that says something."""
    right, got, found = examined(name, dtype)
    scale = {"float64": 1 + 1e-6, "float32": 1 + 1e-3, "bfloat16": 1.5}[dtype]
    told = {j.tensor: j.vacuous for j in found if j.verdict == "agree"}
    # Of a tensor that is judged as a whole, one element is not seen.
    single = [tensor for tensor, vacuous in told.items() if vacuous < 0.5]
    planted = [
        {tensor: got[tensor] * scale for tensor in told},
        {tensor: -got[tensor] for tensor in told},
        {tensor: largest_lost(got[tensor]) for tensor in single},
    ]
    missed = [
        verdict.tensor
        for wrong in planted
        for verdict in judged(right, wrong, dtype)
        if verdict.passes
    ]
    number = sum(map(len, planted))
    assert len(missed) <= number / 18, f"{missed}, of {number}"  # 17 of 18 caught


def pooled(norm):
    """Layers with many choices that rounding to 8 bits may turn around."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2)
    )


POOLED = {
    "batch": (lambda: pooled(nn.BatchNorm2d(8)), (4, 3, 8, 8)),
    "group": (lambda: pooled(nn.GroupNorm(2, 8)), (2, 3, 8, 8)),
}


@functools.cache
def contested(norm, seed):
    return trial(*POOLED[norm], "bfloat16", seed)


# Seeds with a choice that PyTorch makes the other way.
@pytest.mark.parametrize(
    ("norm", "seed"), [("batch", 13), ("batch", 16), ("group", 26)]
)
def test_contested_choices_of_a_bfloat16_network_may_be_made_either_way(norm, seed):
    right, got = contested(norm, seed)
    assert [j.message for j in judged(right, got, "bfloat16") if not j.passes] == []


@pytest.mark.parametrize(
    ("norm", "seed"), [("batch", 13), ("batch", 16), ("group", 26)]
)
@pytest.mark.parametrize(
    "plant",
    [lambda dx: 2 * dx, lambda dx: -dx, lambda dx: np.roll(dx, 1, axis=-1)],
    ids=["twice", "negative", "shifted"],
)
def test_a_wrong_gradient_of_a_bfloat16_network_is_caught(norm, seed, plant):
    right, got = contested(norm, seed)
    (verdict,) = judged(right, {"dinput": plant(got["dinput"])}, "bfloat16")
    assert not verdict.passes
