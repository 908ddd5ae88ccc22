"""Forty mistakes in backwards as kernels are written, through `check`: most are named.

Where no name is expected the word is empty: nothing says what is wrong there.
Each kernel computes its gradient in another way than the reference's graph does, from
what a fused kernel saves.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

import gradwatch
from gradwatch.harness.diagnosis.sweep import Sweep
from gradwatch.harness.tracing.untraceable import Place


def function(forward, backward):
    """A torch.autograd.Function of two plain functions."""

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *tensors):
            with torch.no_grad():
                y, *saved = forward(*tensors)
            ctx.save_for_backward(*saved)
            return y

        @staticmethod
        def backward(ctx, dy):
            return backward(dy, *ctx.saved_tensors)

    return Kernel.apply


def rows(a):
    return a.reshape(-1, a.shape[-1])


def layer_norm(x, w, b):
    return functional.layer_norm(x, x.shape[-1:], w, b, 1e-5)


def layer_norm_forward(x, w, b, eps=1e-5):
    mu, var = x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
    rstd = (var + eps).rsqrt()
    h = (x - mu) * rstd
    return h * w + b, h, rstd, w, x


def layer_norm_backward(wrong):
    def backward(dy, h, rstd, w, x):
        n, g = h.shape[-1], dy if wrong == "weight" else dy * w
        c1, c2 = (g * h).mean(-1, keepdim=True), g.mean(-1, keepdim=True)
        c1 = c1 * {"c1": 0, "sum c1": n, "n - 1": n / (n - 1)}.get(wrong, 1)
        c2 = c2 * {"c2": 0, "c2 sign": -1, "sum c2": n}.get(wrong, 1)
        dx = (g - h * c1 - c2) * (1 if wrong == "rstd" else rstd)
        dw = rows(dy * (x if wrong == "x for h" else h))
        db = rows(dy)
        return (
            dx * (rstd if wrong == "rstd twice" else 1),
            dw.mean(0) if wrong == "mean dw" else dw.sum(0),
            db[:-1].sum(0) if wrong == "last row" else db.sum(0),
        )

    return function(layer_norm_forward, backward)


def rms_norm(x, w):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def rms_norm_backward(wrong):
    def forward(x, w):
        r = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return x * r * w, x, r, w

    def backward(dy, x, r, w):
        g = dy * w
        c = (g * x).mean(-1, keepdim=True)
        power = {"square": 2, "no power": 0}.get(wrong, 3)
        c = c * {"term": 0, "sign": -1, "twice": 2}.get(wrong, 1)
        dw = rows(dy * x if wrong == "dw without r" else dy * x * r).sum(0)
        return g * r - x * r**power * c, dw

    return function(forward, backward)


def softmax(x):
    return torch.softmax(x, -1)


def softmax_backward(wrong):
    def backward(dy, y):
        total = {
            "no sum": lambda: 0.0,
            "no y": lambda: dy.sum(-1, keepdim=True),
            "mean": lambda: (dy * y).mean(-1, keepdim=True),
            "axis": lambda: (dy * y).sum(0, keepdim=True),
        }.get(wrong, lambda: (dy * y).sum(-1, keepdim=True))()
        return (dy - total) if wrong == "y" else y * (dy - total)

    return function(lambda x: [softmax(x)] * 2, backward)


def attention(q, k, v):
    return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v


def attention_backward(wrong):
    def forward(q, k, v):
        p = torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1)
        return p @ v, q, k, v, p

    def backward(dy, q, k, v, p):
        scale = 1 / math.sqrt(q.shape[-1])
        dp = dy @ v.mT
        delta = (dp * p).sum(-1, keepdim=True)
        ds = p * (dp - (0 if wrong == "delta" else delta))
        ds = ds * scale ** {"scale": 0, "scale twice": 2}.get(wrong, 1)
        dk = (ds if wrong != "dk unscaled" else ds / scale).mT @ q
        dv = (p if wrong != "dv of scores" else q @ k.mT * scale).mT @ dy
        return ds @ k, dk, -dv if wrong == "dv sign" else dv

    return function(forward, backward)


def swiglu(a, b):
    return functional.silu(a) * b


def swiglu_backward(wrong):
    def backward(dy, a, b):
        s = torch.sigmoid(a)
        slope = {
            "sigmoid": lambda: s,
            "lost term": lambda: s * (1 - s),
            "y": lambda: s * (1 + (1 - s)),
        }.get(wrong, lambda: s * (1 + a * (1 - s)))()
        da = dy * slope * (1 if wrong == "no b" else b)
        return da, dy * (a if wrong == "a for silu" else s * a)

    return function(lambda a, b: (swiglu(a, b), a, b), backward)


def cross_entropy(x):
    labels = torch.arange(x.shape[0]) % x.shape[1]
    return functional.cross_entropy(x, labels)


def cross_entropy_backward(wrong):
    def backward(dy, p):
        n, m = p.shape
        hot = functional.one_hot(torch.arange(n) % m, m).to(p.dtype)
        dx = p if wrong == "no target" else p - hot
        dx = dx if wrong == "no mean" else dx / n
        return dx if wrong == "no dy" else -dx * dy if wrong == "sign" else dx * dy

    return function(lambda x: (cross_entropy(x), softmax(x)), backward)


def tanh_gelu(x):
    return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


def gelu_backward(wrong):
    def backward(dy, x):
        t = torch.tanh(0.7978845608 * (x + 0.044715 * x**3))
        three = 1 if wrong == "three" else 3
        inner = 0.7978845608 * (1 + three * 0.044715 * x * x)
        inner = inner / 0.7978845608 if wrong == "root" else inner
        second = 0.5 * x * ((1 - t) if wrong == "no square" else (1 - t * t)) * inner
        return dy * (0.5 * (1 + t) + (0 if wrong == "second" else second))

    return function(lambda x: (tanh_gelu(x), x), backward)


SHAPES = {
    layer_norm: ((6, 16), (16,), (16,)),
    rms_norm: ((6, 16), (16,)),
    softmax: ((6, 6),),
    attention: ((5, 8), (7, 8), (7, 8)),
    swiglu: ((6, 16), (6, 16)),
    cross_entropy: ((6, 9),),
    tanh_gelu: ((6, 16),),
}
#: By kernel, what each mistake has to be called: a word of the sentence on some tensor.
MISTAKES = {
    (layer_norm, layer_norm_backward): {
        "c1": "left out", "c2": "left out", "c2 sign": "wrong sign", "sum c2": "by 16",
        "sum c1": "by 16", "n - 1": "16/15", "weight": "1 stands for w",
        "rstd": "is divided by `1 / sqrt", "rstd twice": "is divided by `sqrt",
        "x for h": "x stands for", "mean dw": "divided by 6", "last row": "last",
    },
    (rms_norm, rms_norm_backward): {
        "term": "left out", "sign": "wrong sign", "twice": "counted twice",
        "square": "1 stands for", "no power": "1e-06)` stands for `1 / sqrt",
        "dw without r": "x stands for `x * (1 / sqrt",
    },
    (softmax, softmax_backward): {
        "no sum": "left out", "no y": "1 stands for `exp", "mean": "divided by 6",
        "axis": "axis 0", "y": "is divided by `exp",
    },
    (attention, attention_backward): {
        "delta": "left out", "scale": "by the root of 8", "scale twice": "root of 8",
        "dk unscaled": "by the root of 8", "dv of scores": "2.82843` for `exp",
        "dv sign": "dv is given the wrong sign",
    },
    (swiglu, swiglu_backward): {
        "sigmoid": "left out", "lost term": "1 stands for a", "y": "1 stands for a",
        "no b": "1 stands for b", "a for silu": "a stands for",
    },
    (cross_entropy, cross_entropy_backward): {
        "no target": "", "no mean": "multiplied by 6", "no dy": "1 stands for dy",
        "sign": "wrong sign",
    },
    (tanh_gelu, gelu_backward): {
        "three": "divided by 3", "root": "1 stands for 0.797885",
        "no square": "is divided by `tanh", "second": "left out",
    },
}  # fmt: skip
ALL = [
    (*pair, wrong, word) for pair, ms in MISTAKES.items() for wrong, word in ms.items()
]


def test_a_number_that_is_computed_from_others_is_one_number():
    """0.7 for the root of 2 / pi is no other 2, and no other pi."""

    def other(x):
        return 0.5 * x * (1 + torch.tanh(0.7 * (x + 0.044715 * x**3)))

    tanh = functools.partial(functional.gelu, approximate="tanh")
    report = gradwatch.check(tanh, other, shapes=[(8, 100)], quick=True)
    (said,) = {j.diagnosis.partition(" in ")[0] for j in report}
    assert said == "0.7 stands for 0.797885"


def test_what_is_kept_hides_no_number_of_the_function():
    """The wrong one keeps the right one's values, too, which no edit may change."""

    def other(x):
        moved = 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3)))
        return tanh_gelu(x).detach() + (moved - moved.detach())

    report = gradwatch.check(tanh_gelu, other, shapes=[(8, 100)], quick=True)
    said = "".join(j.diagnosis for j in report)
    assert said.startswith("0.8 stands for 0.797885 in"), said


@pytest.mark.parametrize(
    ("right", "slope", "words"),
    [
        (functional.relu, 0.01, "0.01 stands for 0 in `share(input, 0)`"),
        (functional.leaky_relu, 0.0, "the term through `input * 0.01` to input is"),
    ],
)
def test_the_slope_below_zero_is_named(right, slope, words):
    kernel = function(
        lambda x: (right(x), x), lambda dy, x: torch.where(x > 0, dy, slope * dy)
    )
    report = gradwatch.check(right, kernel, shapes=[(6, 40)], quick=True)
    assert words in "".join(j.diagnosis for j in report)


def diagnoses(reference, kernel):
    torch.manual_seed(3)
    inputs = [torch.randn(s) for s in SHAPES[reference]]
    report = gradwatch.check(reference, kernel, inputs=inputs, quick=True)
    return report, {j.diagnosis for j in report if j.diagnosis}


@pytest.mark.parametrize("pair", MISTAKES, ids=lambda pair: pair[0].__name__)
def test_the_right_kernel_has_no_diagnosis(pair):
    reference, backward = pair
    report, said = diagnoses(reference, backward(""))
    assert report.passes
    assert not said


@pytest.mark.slow
def test_most_of_forty_mistakes_in_kernels_are_named():
    named = []
    for reference, backward, wrong, word in ALL:
        report, said = diagnoses(reference, backward(wrong))
        assert not report.passes, (reference.__name__, wrong)
        if word and any(word in s and "elements agree" in s for s in said):
            named.append((reference.__name__, wrong))
    assert len(ALL) >= 40
    assert len(named) >= 38, sorted(named)


def test_the_sentence_is_in_the_table_and_names_the_line():
    report, _ = diagnoses(rms_norm, rms_norm_backward("term"))
    (line,) = [x for x in str(report).splitlines() if x.startswith("diagnosis: ")]
    assert "left out" in line
    assert "test_diagnosis.py" in line
    assert "</code> is left out (test_diagnosis.py" in report._repr_html_()


def test_the_example_of_the_page_is_what_a_check_says(tmp_path):
    page = Path(__file__).parents[2] / "docs" / "diagnosis.md"
    text = page.read_text(encoding="utf-8")
    code = re.search(r"^```python\n(.*?)^```", text, re.M | re.S)[1]
    shown = re.search(r"^```text\n(.*?)^```", text, re.M | re.S)[1]
    (tmp_path / "norm.py").write_text(code, encoding="utf-8")
    place = importlib.util.spec_from_file_location("norm", tmp_path / "norm.py")
    norm = importlib.util.module_from_spec(place)
    place.loader.exec_module(norm)
    report = gradwatch.check(
        norm.rms_norm, norm.Fast.apply, shapes=[(8, 12), (12,)], only=["normal"]
    )
    (line,) = [x for x in str(report).splitlines() if x.startswith("diagnosis: ")]
    assert line.split() == shown.split()


def test_what_changes_from_run_to_run_is_named_as_that():
    runs = iter(range(1000))

    def backward(dy, x):
        return dy * (1 + 0.1 * next(runs) * torch.sin(99 * x))

    report = gradwatch.check(
        lambda x: 1.0 * x,
        function(lambda x: (1.0 * x, x), backward),
        inputs=[torch.randn(3, 5)],
        quick=True,
    )
    assert any("changes from run to run" in j.diagnosis for j in report)


def test_a_step_whose_line_is_not_known_has_no_empty_brackets():
    sweep = SimpleNamespace(lines={1: Place("a.py", 1), 2: Place("", 0)})
    assert Sweep.line(sweep, 1) == " (a.py:1: )"
    assert Sweep.line(sweep, 2) == Sweep.line(sweep, 3) == ""


def scan(x, k):
    """Of a long loop the edits are many: the likeliest are tried first."""
    h, ys = 0 * x[0], []
    for i in range(8):
        h = torch.sigmoid(k[i]) * h + torch.tanh(x[i]) * functional.softplus(k[i])
        ys.append(torch.sin(h) * x[i] + torch.cos(h) * k[i])
    return torch.stack(ys)


def scan_forward(x, k):
    return scan(x, k), x, k


def scan_backward(decays):
    def backward(dy, x, k):
        s, t, p = torch.sigmoid(k), torch.tanh(x), functional.softplus(k)
        hs = [0 * x[0]]
        for i in range(8):
            hs.append(s[i] * hs[-1] + t[i] * p[i])
        h, dh = torch.stack(hs[1:]), 0 * x[0]
        dx, dk = dy * torch.sin(h), dy * torch.cos(h)
        for i in reversed(range(8)):
            dh = dh + dy[i] * (torch.cos(h[i]) * x[i] - torch.sin(h[i]) * k[i])
            dx[i] += dh * (1 - t[i] ** 2) * p[i]
            dk[i] += dh * (t[i] * s[i] + hs[i] * s[i] * (1 - s[i]))
            dh = dh * s[i] if decays else dh
        return dx, dk

    return backward


def test_a_step_that_is_wrong_in_each_pass_of_a_long_loop_is_named():
    shapes = ["=8x5", "=8x5"]
    for decays in (True, False):
        kernel = function(scan_forward, scan_backward(decays))
        report = gradwatch.check(scan, kernel, shapes=shapes, quick=True)
        said = [row.judgement.diagnosis for row in report.failures]
        assert bool(said) != decays
    assert all("1 stands for `sigmoid(k[" in one for one in said)
    assert all("in each of 7 copies" in one for one in said)
