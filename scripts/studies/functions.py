"""How often right gradients of complex, factorised and drawn functions are accused.

    python -m scripts.studies.functions SECONDS [--seed N] [--only NAME]

PyTorch's own gradients of the functions below, in every regime, float32 and float64,
at seeds from N on, until SECONDS of processor time are spent. Then each gradient is
1e-3 (float32) or 1e-6 (float64) too large: an error counts where the right gradient
agrees by numbers. Exit code 1 if a right one is accused.
"""

from __future__ import annotations

import itertools
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

import click
import torch
from torch import fft, linalg
from torch.nn import functional as F  # noqa: N812  # as usual

from gradwatch.harness.check.entry import check

Function = Callable[..., Any]
SCALE = {"float32": 1e-3, "float64": 1e-6}
TARGETS = torch.tensor([[1, 2, 2], [2, 0, 0]])
LENGTHS = torch.tensor([4, 3]), torch.tensor([3, 1])


def positive(x: torch.Tensor) -> torch.Tensor:
    """A positive definite matrix."""
    return x @ x.mT + torch.eye(x.shape[-2], dtype=x.dtype)


def convolved(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """By a Fourier transform."""
    n = x.shape[-1] + kernel.shape[-1] - 1
    return fft.irfft(fft.rfft(x, n=n) * fft.rfft(kernel, n=n), n=n)


def rooted(x: torch.Tensor) -> torch.Tensor:
    """A matrix's square root."""
    w, v = linalg.eigh(positive(x))
    return (v * w.sqrt()) @ v.mT


def gumbel(x: torch.Tensor) -> torch.Tensor:
    """A soft choice."""
    return F.gumbel_softmax(x, tau=0.7)


def ctc(x: torch.Tensor) -> torch.Tensor:
    """The loss of a sequence."""
    return F.ctc_loss(x.log_softmax(-1), TARGETS, *LENGTHS)


ELEMENTWISE = "exp log sqrt sin cos tanh abs angle sgn asin acos atan asinh acosh atanh"
FUNCTIONS: dict[str, tuple[Function, list[str]]] = {
    **{
        f"complex {name}": (getattr(torch, name), ["5x6:complex"])
        for name in ELEMENTWISE.split()
    },
    "complex mul": (torch.mul, ["5x6:complex"] * 2),
    "complex div": (torch.div, ["5x6:complex"] * 2),
    "complex mm": (torch.mm, ["5x6:complex", "6x3:complex"]),
    "complex prod": (lambda z: z.cumprod(-1), ["5x=4:complex"]),
    "complex inv": (linalg.inv, ["=4x=4:complex"]),
    "complex det": (linalg.det, ["=4x=4:complex"]),
    "complex solve": (linalg.solve, ["=4x=4:complex", "=4x2:complex"]),
    **{f"fft {n}": (fft.fft, [f"3x={n}:complex"]) for n in (7, 8, 97, 128)},
    "rfft": (fft.rfft, ["3x=12"]),
    "irfft": (lambda z: fft.irfft(z, n=12), ["3x=7:complex"]),
    "fft2": (fft.fft2, ["2x5x6:complex"]),
    "fft convolution": (convolved, ["3x16", "5"]),
    "cholesky": (lambda x: linalg.cholesky(positive(x)), ["4x5"]),
    "logdet": (lambda x: torch.logdet(positive(x)), ["4x5"]),
    "lu": (lambda a, b: linalg.lu_solve(*linalg.lu_factor(a), b), ["4x4", "4x2"]),
    "qr": (lambda x: torch.linalg.qr(x)[0] @ torch.linalg.qr(x)[1].tanh(), ["5x3"]),
    "eigvalsh": (lambda x: linalg.eigvalsh(x + x.mT), ["4x4"]),
    "eigh": (rooted, ["4x5"]),
    "svdvals": (linalg.svdvals, ["4x5"]),
    "pinv": (linalg.pinv, ["5x3"]),
    "dropout": (lambda x: F.dropout(x, 0.3) ** 2, ["5x6"]),
    "alpha dropout": (lambda x: F.alpha_dropout(x, 0.3, training=True), ["5x6"]),
    "gumbel": (gumbel, ["5x6"]),
    "sample": (lambda m, s: m + s.exp() * torch.randn_like(s), ["5x6", "5x6"]),
    "ctc": (ctc, ["=4x=2x=3"]),
}


def larger(function: Function, scale: float) -> Function:
    """The function with a gradient that is too large."""
    return lambda *given: function(*(x + scale * (x - x.detach()) for x in given))


@click.command()
@click.argument("seconds", type=float)
@click.option("--seed", default=0)
@click.option("--only", default="", help="A part of the names.")
def main(seconds: float, seed: int, only: str) -> None:
    """Print the counts, and what was accused or missed."""
    warnings.filterwarnings("ignore")
    verdicts: Counter[str] = Counter()
    planted: Counter[bool] = Counter()
    accused = 0
    chosen = [name for name in FUNCTIONS if only in name]
    for step, dtype in ((k, d) for k in itertools.count(seed) for d in SCALE):
        for name in chosen:
            function, shapes = FUNCTIONS[name]
            how: dict[str, Any] = {"shapes": shapes, "dtypes": [dtype], "seed": step}
            rows = check(function, **how, edges="skip").rows
            verdicts.update(row.judgement.verdict for row in rows)
            wrong = [row for row in rows if not row.judgement.passes]
            for row in wrong:
                click.echo(f"accused: {name}, seed {step}: {row}")
            accused += len(wrong)
            own = {r.judgement.tensor for r in rows if r.own}
            said = {r.judgement.tensor for r in rows if r.judgement.verdict == "agree"}
            other = check(function, larger(function, SCALE[dtype]), **how, quick=True)
            for row in other.rows:
                tensor = row.judgement.tensor
                if tensor.startswith("d") and tensor in own & said:
                    planted[not row.judgement.passes] += 1
                    if row.judgement.passes:
                        click.echo(f"missed: {name} {dtype}, seed {step}: {row}")
            if time.process_time() > seconds:
                click.echo(f"{sum(verdicts.values())} tensors: {dict(verdicts)}")
                click.echo(f"{accused} accused; caught: {planted[True]}", nl=False)
                click.echo(f" of {planted.total()}")
                sys.exit(bool(accused))


if __name__ == "__main__":
    main()
