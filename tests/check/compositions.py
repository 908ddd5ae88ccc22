"""Random compositions of PyTorch's functions, on numbers of several kinds.

Left out are functions whose gradient PyTorch itself computes with few digits (expm1 far
below 0, logcumsumexp of huge numbers, an erf of small ones in 16 bits), and a `where`
beside an overflow, whose nan is a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # as in its documentation

ONE: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        n: getattr(torch, n)
        for n in ["sin", "tanh", "abs", "square", "atan", "asinh", "sinc"]
    },
    **{
        n: getattr(F, n)
        for n in ["relu", "gelu", "silu", "softplus", "hardtanh", "celu", "mish"]
    },
    **{n: getattr(F, n) for n in ["hardswish", "tanhshrink", "softsign", "selu"]},
    "logsigmoid": F.logsigmoid,
    "exp": lambda x: (x / 4).exp(),
    "log1p": lambda x: x.abs().log1p(),
    "sqrt": lambda x: (x * x + 1).sqrt(),
    "pow": lambda x: (x.abs() + 0.1) ** 1.5,
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "reciprocal": lambda x: 1 / (1 + x.abs()),
    "softmax": lambda x: x.softmax(-1),
    "softmax of columns": lambda x: x.softmax(0),
    "log_softmax": lambda x: x.log_softmax(-1),
    "less its logsumexp": lambda x: x - x.logsumexp(-1, keepdim=True),
    "causal softmax": lambda x: (
        x + torch.full_like(x, torch.finfo(x.dtype).min).triu(1)
    ).softmax(-1),
    "masked softmax": lambda x: (
        x.masked_fill(torch.ones_like(x).triu(1) > 0, -1e9).softmax(-1).tril()
    ),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "centred": lambda x: x - x.mean(-1, keepdim=True),
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "cummax": lambda x: x.cummax(-1).values,
    "sort": lambda x: x.sort(-1).values,
    "less its median": lambda x: x - x.median(-1, keepdim=True).values,
    "less its maximum": lambda x: x - x.amax(-1, keepdim=True),
    "less its detached maximum": lambda x: x - x.amax(-1, keepdim=True).detach(),
    "times its detached self": lambda x: x * x.detach(),
    "straight through": lambda x: x + (x.round() - x).detach(),
    "by bfloat16": lambda x: x.bfloat16().to(x.dtype),
    "twice in place": lambda x: x.clone().mul_(2),
    "the first twice": lambda x: x[..., [0, *range(x.shape[-1] - 1)]],
    "reversed": lambda x: x.gather(-1, torch.arange(x.shape[-1]).flip(0).expand_as(x)),
    "padded": lambda x: F.pad(x, (1, 0))[..., :-1],
    "pooled": lambda x: F.max_pool1d(x[None], 3, 1, 1)[0],
    "interpolated": lambda x: F.interpolate(x[None], 7, mode="linear")[
        0, :, : x.shape[1]
    ],
    "product with itself": lambda x: x @ x.mT @ x / 8,
    "angle": lambda x: torch.atan2(x, x.flip(-1).abs() + 0.1),
}
TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    **{
        n: getattr(torch, n)
        for n in ["add", "sub", "mul", "maximum", "minimum", "logaddexp"]
    },
    "div": lambda a, b: a / (1 + b.abs()),
    "product": lambda a, b: a @ b.mT @ b / 4,
    "the larger": lambda a, b: torch.where(a > b, a, b),
    "interleaved": lambda a, b: torch.cat([a, b], -1)[..., ::2],
    "addcmul": lambda a, b: torch.addcmul(a, b, b),
    "between": lambda a, b: torch.lerp(a, b, 0.3),
    "attention": lambda a, b: F.scaled_dot_product_attention(a[None], b[None], a[None])[
        0
    ],
    "times a loss": lambda a, b: a * F.smooth_l1_loss(a, b),
    "convolved": lambda a, b: F.conv1d(a[:, None], b[:1, None, :3], padding=1)[:, 0],
}
KINDS: dict[str, Callable[[Any, tuple[int, int]], Any]] = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "ties": lambda rng, shape: rng.integers(-1, 2, shape) / 2.0,
    "zeros": lambda rng, shape: rng.standard_normal(shape) * rng.integers(0, 2, shape),
    "large": lambda rng, shape: 30 * rng.standard_normal(shape),
    "shifted": lambda rng, shape: 100 + rng.standard_normal(shape),
    "constant": lambda rng, shape: np.full(shape, rng.standard_normal()),
    "tiny": lambda rng, shape: 1e-5 * rng.standard_normal(shape),
}


@dataclass(frozen=True)
class Composition:
    """Steps by name; each takes one or two of the last three values before it."""

    steps: tuple[tuple[str, int, int], ...]
    kind: str
    inputs: tuple[Tensor, Tensor]
    #: What a mistake makes of the result of a step, and so of its cotangent.
    mistake: Callable[[Tensor], Tensor] = lambda y: y
    at: int = -1

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """The last step's result."""
        values = [x, y, x + y]
        for i, (name, a, b) in enumerate(self.steps):
            given = values[a - 3], values[b - 3]
            made = ONE[name](given[0]) if name in ONE else TWO[name](*given)
            values.append(self.mistake(made) if i == self.at else made)
        return values[-1]

    def __str__(self) -> str:
        steps = "; ".join(f"{name} {a - 3} {b - 3}" for name, a, b in self.steps)
        return f"{self.kind} {tuple(self.inputs[0].shape)}: {steps}"


def compositions(seed: int, dtype: str) -> Iterator[Composition]:
    """Compositions of one to five steps that fit, of finite numbers, without end."""
    rng, names = np.random.default_rng(seed), [*ONE, *TWO]
    while True:
        shape = ((3, 4), (4, 5), (2, 6))[rng.integers(3)]
        kind = str(rng.choice([*KINDS]))
        x, y = (torch.tensor(KINDS[kind](rng, shape)) for _ in range(2))
        steps = tuple(
            (names[rng.integers(len(names))], *map(int, rng.integers(3, size=2)))
            for _ in range(rng.integers(1, 6))
        )
        inputs = x.to(getattr(torch, dtype)), y.to(getattr(torch, dtype))
        drawn = Composition(steps, kind, inputs)
        try:
            finite = drawn(*inputs).isfinite().all()
        except RuntimeError:  # shapes that do not fit
            continue
        if finite:
            yield drawn
