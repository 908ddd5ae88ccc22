"""Judges whole modules: PyTorch's gradients, and 36 mistakes in a transformer.

    python -m scripts.studies.modules

The first table judges PyTorch's own gradients of six modules in three precisions. The
second plants 18 mistakes of amount (a factor, an eps, a formula that is a little off)
and 18 of structure (something lost, doubled, turned round), one at a time, in the
backward of the first layer of a transformer (width 32, 16 tokens): the forward stays
right. The third shows how much each mistake changes beside one rounding at each step
in bfloat16: the largest multiple of the allowed error in any tensor or slice, times
`LIMIT`, without any rounding of its own. All are in docs/check.md.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from gradwatch.harness.judging.orders import derivatives
from gradwatch.harness.judging.reference import Asked, Reference
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.harness.tracing.traced import trace
from tests.tracing.test_modules import DTYPES, MODULES, held, judged, trial

Tensor = torch.Tensor
Function = Callable[[Tensor], Tensor]
Planted = dict[str, Function]

TOKENS, WIDTH, HEADS = 16, 32, 4
ROOT = math.sqrt(WIDTH // HEADS)
SQUARES = ("wq", "wk", "wv", "wo")
VECTORS = ("gain1", "bias1", "gain2", "bias2", "c2")
SHAPES: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(SQUARES, (WIDTH, WIDTH)),
    **dict.fromkeys(VECTORS, (WIDTH,)),
    "w1": (WIDTH, 4 * WIDTH),
    "c1": (4 * WIDTH,),
    "w2": (4 * WIDTH, WIDTH),
}


def times(factor: float) -> Function:
    """The gradient times a factor."""
    return lambda x: x * factor


def only(chosen: Callable[[Tensor], Tensor], factor: float) -> Function:
    """The gradient times a factor where an element is chosen."""
    return lambda x: x * torch.where(chosen(x), factor, 1.0).to(x.dtype)


def gelu(x: Tensor, cubic: float = 0.044715) -> Tensor:
    """The approximation by tanh."""
    return 0.5 * x * (1 + torch.tanh(0.7978845608028654 * (x + cubic * x * x * x)))


def inverse_deviation(eps: float) -> Function:
    """The reciprocal of a standard deviation, as a function of the variance."""
    return lambda variance: 1 / (variance + eps).sqrt()


def without_row_sum(scores: Tensor) -> Tensor:
    """A function with the gradient y dy in place of y (dy - sum(y dy))."""
    return torch.softmax(scores, -1).detach() * scores


class ThroughBfloat16(torch.autograd.Function):
    """The identity; its gradient loses all but 8 bits."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, dy: Tensor) -> Tensor:
        return dy.bfloat16().to(dy.dtype)


def last_row(x: Tensor) -> Tensor:
    """The last token's row of each but the first head."""
    heads = torch.arange(x.shape[0])[:, None, None] > 0
    return heads & (torch.arange(x.shape[1])[:, None] == x.shape[1] - 1)


# The place of each mistake, and the function whose gradient is taken there.
MISTAKES: dict[str, Planted] = {
    "layer norm: the mean is constant": {"mean": times(0.0)},
    "layer norm: the variance is constant": {"variance": times(0.0)},
    "layer norm: the variance of n - 1": {"variance": times(WIDTH / (WIDTH - 1))},
    "layer norm: eps 1e-3": {"deviation": inverse_deviation(1e-3)},
    "layer norm: eps 1e-6": {"deviation": inverse_deviation(1e-6)},
    "scale of the scores left out": {"scores": times(ROOT)},
    **{f"scale off by {e:g}": {"scores": times(1 + e)} for e in (1e-2, 1e-3)},
    **{f"scale off by {e:g}": {"scores": times(1 + e)} for e in (1e-4, 1e-5)},
    "softmax without its row sum": {"softmax": without_row_sum},
    "a row of the attention lost": {"attention": only(last_row, 0.0)},
    "attention through bfloat16": {"attention": ThroughBfloat16.apply},
    "gelu: the exact derivative": {"gelu": torch.nn.functional.gelu},
    "gelu: 0.044 for 0.044715": {"gelu": lambda x: gelu(x, 0.044)},
    "gelu: identity above 3": {"gelu": lambda x: torch.where(x > 3, x, gelu(x))},
    "residual doubled at one token": {
        "residual": only(lambda x: torch.arange(TOKENS)[:, None] == 0, 2.0)
    },
    "one element of dw2 1 % off": {
        "w2": only(lambda x: torch.arange(x.numel()).reshape(x.shape) == 5, 1.01)
    },
}

FIRST_HEAD = only(lambda x: torch.arange(x.shape[0])[:, None, None] == 0, 0.0)
LAST_TOKEN = only(lambda x: torch.arange(x.shape[0])[:, None] == TOKENS - 1, 0.0)
STRUCTURE: dict[str, Planted] = {
    "layer norm: the mean is constant": {"mean": times(0.0)},
    "layer norm: the variance is constant": {"variance": times(0.0)},
    "layer norm: dgain is a mean, no sum": {"gain": times(1 / TOKENS)},
    "layer norm: the last token gets nothing": {"normed": LAST_TOKEN},
    "sign of the queries' gradient": {"queries": times(-1.0)},
    "the first head's keys get nothing": {"keys": FIRST_HEAD},
    "the heads of the values in reverse": {"values": lambda v: v.flip(0)},
    "scale of the scores left out": {"scores": times(ROOT)},
    "the scores' gradient transposed": {"scores": lambda s: s.transpose(-1, -2)},
    "softmax without its row sum": {"softmax": without_row_sum},
    "softmax along the other axis": {"softmax": lambda s: torch.softmax(s, -2)},
    "a row of the attention lost": {"attention": only(last_row, 0.0)},
    "gelu: the slope of a ReLU": {"gelu": torch.relu},
    "gelu: the slope of SiLU": {"gelu": torch.nn.functional.silu},
    "residual doubled at one token": MISTAKES["residual doubled at one token"],
    "residual path lost": {"path": times(0.0)},
    "dc1 is a mean, no sum": {"c1": times(1 / TOKENS)},
    "a column of dw2 lost": {
        "w2": only(lambda x: torch.arange(x.shape[1])[None, :] == 0, 0.0)
    },
}


def layer(x: Tensor, p: dict[str, Tensor], planted: Planted) -> Tensor:
    """One layer of a transformer, its backward wrong where something is planted."""

    def at(place: str, value: Tensor, right: Function = lambda v: v) -> Tensor:
        if place not in planted:
            return right(value)
        wrong = planted[place](value)
        return right(value).detach() + (wrong - wrong.detach())

    def norm(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        centred = x - at("mean", x.mean(-1, keepdim=True))
        variance = at("variance", (centred * centred).mean(-1, keepdim=True))
        deviation = at("deviation", variance, inverse_deviation(1e-5))
        return at("normed", centred * deviation) * at("gain", gain) + bias

    def heads(x: Tensor) -> Tensor:
        return x.reshape(TOKENS, HEADS, WIDTH // HEADS).permute(1, 0, 2)

    h = norm(x, p["gain1"], p["bias1"])
    q, k, v = (
        at(place, heads(h @ p[name]))
        for place, name in (("queries", "wq"), ("keys", "wk"), ("values", "wv"))
    )
    scores = at("scores", q @ k.transpose(-1, -2) / ROOT)
    weights = at("softmax", scores, lambda s: torch.softmax(s, -1))
    mixed = (at("attention", weights) @ v).permute(1, 0, 2).reshape(TOKENS, WIDTH)
    x = at("residual", at("path", x) + mixed @ p["wo"])
    h = norm(x, p["gain2"], p["bias2"])
    z = at("gelu", h @ p["w1"] + at("c1", p["c1"]), gelu)
    return x + z @ at("w2", p["w2"]) + p["c2"]


class Transformer:
    """Some layers, and inputs in one precision, held in that or a wider type."""

    def __init__(self, layers: int, dtype: str, held_in: str = "") -> None:
        torch.manual_seed(0)
        kind = getattr(torch, dtype)
        self.layers, self.dtype = layers, dtype
        self.tensors = {"x": torch.randn(TOKENS, WIDTH).to(kind)}
        for i in range(layers):
            for name, shape in SHAPES.items():
                drawn = torch.randn(shape) * (shape[0] ** -0.5 if shape[1:] else 0.1)
                self.tensors[f"{name}_{i}"] = (drawn + name.startswith("gain")).to(kind)
        self.dy = torch.randn(TOKENS, WIDTH).to(kind)
        if held_in:
            wide = getattr(torch, held_in)
            self.tensors = {n: t.to(wide) for n, t in self.tensors.items()}
            self.dy = self.dy.to(wide)

    def __call__(self, *tensors: Tensor, planted: Planted | None = None) -> Tensor:
        """The output; mistakes are planted in the first layer."""
        named = dict(zip(self.tensors, tensors, strict=True))
        x = named["x"]
        for i in range(self.layers):
            p = {name: named[f"{name}_{i}"] for name in SHAPES}
            x = layer(x, p, planted or {} if i == 0 else {})
        return x

    def gradients(self, planted: Planted) -> dict[str, Any]:
        """The gradients of autograd, as NumPy arrays."""
        leaves = [t.clone().requires_grad_() for t in self.tensors.values()]
        found = torch.autograd.grad(self(*leaves, planted=planted), leaves, self.dy)
        return {f"d{n}": held(g) for n, g in zip(self.tensors, found, strict=True)}

    def reference(self) -> Reference:
        """The truth, by tracing the forward."""
        traced = trace(lambda *tensors: self(*tensors), [*self.tensors.values()])

        def build(wide: Any) -> dict[str, Any]:
            made = traced.graph(wide)
            dy = {"y": held(self.dy).astype(wide)}
            found, _ = derivatives("vjp", made.outputs, made.leaves, dy, {})
            return dict(
                zip((f"d{n}" for n in self.tensors), found.values(), strict=True)
            )

        return Reference(Asked(build, self.dtype))


def module_row(name: str) -> list[str]:
    """PyTorch's gradients of a module by verdict, in each precision."""
    return [
        _listed(Counter(j.verdict for j in judged(*trial(*MODULES[name], d), d)))
        for d in DTYPES
    ]


def transformer_row(layers: int, dtype: str) -> list[Any]:
    """The right gradients by verdict, the caught mistakes, and the missed ones."""
    model = Transformer(layers, dtype)
    right = model.reference()

    def verdicts(planted: Planted) -> Any:
        got = model.gradients(planted)
        names = dict.fromkeys(got, dtype)
        return judge_tensors(right, got, names)

    counts = Counter(j.verdict for j in verdicts({}))
    caught, missed = [], []
    for mistakes in (MISTAKES, STRUCTURE):
        passed = [n for n, p in mistakes.items() if all(j.passes for j in verdicts(p))]
        caught.append(f"{len(mistakes) - len(passed)} of {len(mistakes)}")
        missed += passed
    return [layers, dtype, _listed(counts), *caught, "; ".join(missed)]


def effects(layers: int, dtype: str = "bfloat16") -> dict[str, float]:
    """The change by each mistake, over that of one rounding at each step."""
    right = Transformer(layers, dtype).reference()
    wholes = right.radii().wholes()
    model = Transformer(layers, dtype, "float64")
    exact = model.gradients({})
    found = {}
    for name, planted in {**MISTAKES, **STRUCTURE}.items():
        wrong = model.gradients(planted)
        found[name] = max(
            wholes[n].worst(wholes[n].value + wrong[n] - exact[n])[0] for n in wholes
        )
    return found


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{n} {verdict}" for verdict, n in counts.most_common())


def main() -> None:
    """Three Markdown tables."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print("| module |", " | ".join(DTYPES), "|\n|---|---|---|---|")
    for name in MODULES:
        print(f"| {name} | {' | '.join(module_row(name))} |", flush=True)
    print("\n| layers | precision | right gradients | amount | structure | missed |")
    print("|---:|---|---|---:|---:|---|")
    for layers in (1, 6):
        for dtype in DTYPES:
            row = transformer_row(layers, dtype)
            print(f"| {' | '.join(map(str, row))} |", flush=True)
    print("\n| mistake | 1 layer | 6 layers |\n|---|---:|---:|")
    one, six = effects(1), effects(6)
    for name in one:
        print(f"| {name} | {one[name]:.2g} | {six[name]:.2g} |")


if __name__ == "__main__":
    main()
