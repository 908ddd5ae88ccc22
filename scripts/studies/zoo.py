"""Real networks on trial: PyTorch's own gradients of tiny ones, a line each.

    python -m scripts.studies.zoo [--dtype bfloat16] [--train] [PATTERN ...]

Needs torchvision, transformers and timm beside gradwatch. Every tensor that is wrong is
listed: right gradients are judged here, so each is a mistake of the judge's, or a
defect of PyTorch's. Exit code 1 if there is one.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import click
import torch

from gradwatch import check

Made = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]
WORDS, PICTURE = torch.arange(16).reshape(2, 8) % 13 + 1, (4, 3, 32, 32)
TINY = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
TINY |= {"intermediate_size": 32, "vocab_size": 30}
VISION = "resnet18 mobilenet_v3_small efficientnet_b0 shufflenet_v2_x0_5 regnet_y_400mf"
TIMM = "vit resnet convnext efficientnet mambaout byobnet nfnet"
TEXT = "Llama Mistral Qwen2 Bert Roberta Albert Electra GPTNeoX Phi"


class First(torch.nn.Module):
    """The first output of a model that returns several."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: torch.Tensor) -> Any:
        """As torch calls it."""
        return self.model(*inputs)[0]


def zoo() -> dict[str, Callable[[], Made]]:
    """Functions that make a model and its inputs, by name."""
    import timm
    import torchvision
    import transformers

    def text(name: str) -> Made:
        made = getattr(transformers, f"{name}Config")(**TINY)
        return First(getattr(transformers, f"{name}Model")(made)), (WORDS,)

    def image(make: Callable[..., Any], *name: str) -> Made:
        size = (2, 3, 160, 160) if "test_vit" in name else PICTURE
        return make(*name, num_classes=5), (torch.randn(size),)

    models = torchvision.models
    found: dict[str, Callable[[], Made]] = {
        n: lambda n=n: text(n) for n in TEXT.split()
    }
    found |= {n: lambda n=n: image(getattr(models, n)) for n in VISION.split()}
    names = [f"test_{name}" for name in TIMM.split()]
    return found | {n: lambda n=n: image(timm.create_model, n) for n in names}


@click.command()
@click.argument("patterns", nargs=-1)
@click.option("--dtype", default="float32")
@click.option("--train", is_flag=True)
def main(patterns: tuple[str, ...], dtype: str, *, train: bool) -> None:
    """Judge each network once, and print its verdicts."""
    total: Counter[str] = Counter()
    for name, make in zoo().items():
        if any(fnmatchcase(name, p) for p in patterns or "*"):
            torch.manual_seed(0)
            model, inputs = make()
            report = check(model.train(train), None, inputs, dtypes=[dtype], quick=True)
            counts = Counter(row.judgement.verdict for row in report.rows)
            total += counts
            click.echo(f"{name}: {dict(counts)}, {report.seconds:.0f} s")
            wrong = [r.judgement for r in report.rows if not r.judgement.passes]
            click.echo("".join(f"    {j.message}\n" for j in wrong), nl=False)
    click.echo(dict(total))
    sys.exit(1 if total["disagree"] + total["nonfinite"] + total["malformed"] else 0)


if __name__ == "__main__":
    main()
