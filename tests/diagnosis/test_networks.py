"""Mistakes in the backward of one layer of a deep network are named, of all tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import gradwatch
from gradwatch.harness.diagnosis.sweep import Sweep
from gradwatch.impls import graph

LAYERS, WIDTH, LENGTH, WORDS = 4, 8, 5, 11
Backward = Callable[..., Any]


def with_backward(forward: Callable[..., Tensor], backward: Backward) -> Any:
    """A function whose backward gets the cotangent and the inputs."""

    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *inputs: Tensor) -> Tensor:
            ctx.save_for_backward(*inputs)
            return forward(*inputs)

        @staticmethod
        def backward(ctx: Any, *cotangents: Tensor) -> Any:
            return backward(*cotangents, *ctx.saved_tensors)

    return Custom.apply


class Block(nn.Module):
    """A layer of a transformer; `own` holds what stands for its functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.up, self.down = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.own: dict[str, Callable[..., Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        norm = self.own.get("norm", layer_norm)
        softmax = self.own.get("softmax", lambda scores: scores.softmax(-1))
        gelu = self.own.get("gelu", functional.gelu)
        linear = self.own.get("linear", functional.linear)
        h = norm(x, self.first.weight, self.first.bias)
        scores = self.q(h) @ self.k(h).transpose(-1, -2) / WIDTH**0.5
        x = x + softmax(scores) @ self.v(h)
        h = linear(self.second(x), self.up.weight, self.up.bias)
        return x + self.down(gelu(h))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words)
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(x)
        return y


def layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], w, b)


def of_norm(eps: float = 1e-5, mean: float = 1, weight: bool = True) -> Backward:
    def backward(dy: Tensor, x: Tensor, w: Tensor, _: Tensor) -> Any:
        r = (x.var(-1, keepdim=True, correction=0) + eps).rsqrt()
        h = (x - x.mean(-1, keepdim=True)) * r
        g = dy * w if weight else dy
        along = h * (g * h).mean(-1, keepdim=True)
        dx = r * (g - mean * g.mean(-1, keepdim=True) - along)
        return dx, (dy * h).sum((0, 1)), dy.sum((0, 1))

    return backward


def of_softmax(dy: Tensor, x: Tensor) -> Tensor:
    y = x.softmax(-1)
    return y * (dy - (dy * y).mean(-1, keepdim=True))


def of_gelu(dy: Tensor, x: Tensor) -> Tensor:
    return dy * 0.5 * (1 + torch.erf(x / 2**0.5))


def of_linear(part: float) -> Backward:
    def backward(dy: Tensor, x: Tensor, w: Tensor, b: Tensor) -> Any:
        dw = torch.einsum("bto,bti->oi", dy[:, :-1], x[:, :-1])
        whole = torch.einsum("bto,bti->oi", dy, x)
        return part * (dy @ w), dw if part == 1 else whole, dy.sum((0, 1))

    return backward


MISTAKES: dict[str, tuple[str, Callable[..., Tensor], Backward, str]] = {
    "a mean is forgotten": ("norm", layer_norm, of_norm(mean=0), "is left out"),
    "a mean for a sum": ("norm", layer_norm, of_norm(mean=2), "is counted twice"),
    "another eps": ("norm", layer_norm, of_norm(eps=1e-2), "0.01 stands for 1e-05"),
    "no weight": ("norm", layer_norm, of_norm(weight=False), "1 stands for blocks.2"),
    "softmax": ("softmax", lambda x: x.softmax(-1), of_softmax, "divided by 5"),
    "half of GELU": ("gelu", functional.gelu, of_gelu, "is left out"),
    "0.6 of it": ("linear", functional.linear, of_linear(0.6), "multiplied by 3/5"),
    "the tail": ("linear", functional.linear, of_linear(1), "left out along axis 1"),
}


def of_relu(dy: Tensor, x: Tensor) -> Tensor:
    return dy * (x > 0)


def diagnoses(place: str, own: Callable[..., Tensor]) -> set[str]:
    """What is said of the tensors that are wrong with a function in the third layer."""
    torch.manual_seed(2)
    right = Network()
    for parameter in right.parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, 1.0, 0.3)
    wrong = copy.deepcopy(right)
    wrong.blocks[2].own[place] = own
    inputs = [torch.randint(WORDS, (2, LENGTH))]
    found = gradwatch.check(right, wrong, inputs, quick=True)
    return {j.diagnosis for j in found if not j.passes}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_one_of_several_layers_is_named(name: str) -> None:
    """Also beside the bias of a key: that is zero, and right whatever is wrong."""
    place, forward, backward, words = MISTAKES[name]
    said = diagnoses(place, with_backward(forward, backward))
    said = {one.split(": with this, all")[0] for one in said}
    assert len(said) == 1, said
    assert words in said.pop()


def test_a_mistake_without_a_name_has_a_place() -> None:
    """The slope of a ReLU for GELU's: from its output's gradient to its input's."""
    said = diagnoses("gelu", with_backward(functional.gelu, of_relu))
    places = {one.partition("; all wrong tensors need ")[2] for one in said}
    assert len(places) == 1, said
    first, last = places.pop().split(", up to ")
    assert "* 0.5) * (1 + (...))` (" in first
    assert "`blocks.2.up.bias + (" in last
    assert last.endswith(", and no right ones do")


def test_the_words_for_a_sum_name_its_terms_and_not_theirs():
    """All of theirs, in a Whisper model's gradient, took minutes."""
    x = graph.variable(np.ones(2))

    def build(_):
        (dx,) = graph.gradient([2 * x], [np.ones(2)], [x])
        return {"dx": dx}

    sweep = Sweep(build, "first")
    terms = x
    for _ in range(16):
        terms = terms + terms
    assert sweep.term(terms) == "the sum of a sum of terms"


def test_elements_that_may_be_anything_explain_nothing() -> None:
    """In a part of it each column has scores of its own, which at 1e6 are off by 1."""
    torch.manual_seed(0)
    inputs = [2000 * torch.randn(1, 8, 128, 32) for _ in range(3)]

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / 32**0.5).softmax(-1) @ v

    less = with_backward(lambda v: v.clone(), lambda dv, _: dv * 0.4)
    wrong = gradwatch.check(
        attention, lambda q, k, v: attention(q, k, less(v)), inputs, quick=True
    )
    (found,) = (one.judgement for one in wrong.failures)
    assert found.tensor == "dv"
    assert "zero everywhere" not in found.diagnosis
