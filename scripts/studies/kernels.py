"""Published kernels and models on trial, a line each.

    python -m scripts.studies.kernels --install     # .venv-zoo: the packages
    .venv-zoo/bin/python -m scripts.studies.kernels [PATTERN ...] [--share 3/20]
    .venv-zoo/bin/python -m scripts.studies.kernels --plant

What is tried is listed in `kernels.txt`. All of it is taken for right: whatever is
accused is a mistake of the judge's or a defect upstream. `--plant` makes one mistake
in the backward of each function, and counts what is caught. Exit code 1 if a right one
is accused or fewer than 95 % of the mistakes are caught.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # as in its documentation
from torch.utils import checkpoint
from torch.utils._pytree import tree_map

from gradwatch import check
from gradwatch.harness.tracing import tensors_in
from scripts.studies import level3

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_suffix(".txt")
ENVIRONMENT = ROOT / ".venv-zoo"
#: They are installed without what they ask for: PyTorch is that of `.venv`.
PACKAGES = """
    transformers timm torchvision==0.28.0 entmax kornia kornia-rs torchdiffeq e3nn
    opt-einsum opt_einsum_fx vector-quantize-pytorch einx frozendict torch-einops-utils
    rotary-embedding-torch x-transformers hyper-connections local-attention vit-pytorch
    perceiver-pytorch memory-efficient-attention-pytorch torch_geometric geoopt einops
    pytorch-metric-learning monai segmentation-models-pytorch liger-kernel triton
    fla-core flash-linear-attention tokenizers huggingface-hub hf-xet safetensors regex
    loguru tqdm pyyaml requests packaging filelock psutil httpx2 httpcore2 h11 anyio
    idna certifi truststore sniffio charset-normalizer urllib3 pyparsing jinja2 aiohttp
    xxhash
"""
#: Operators that torchvision's wheel lacks where it was built for another PyTorch.
LACKING = """
    nms(Tensor a, Tensor b, float c) -> Tensor
    qnms(Tensor a, Tensor b, float c) -> Tensor
    roi_align(Tensor a) -> Tensor
    qroi_align(Tensor a) -> Tensor
    roi_pool(Tensor a) -> Tensor
    ps_roi_align(Tensor a) -> Tensor
    ps_roi_pool(Tensor a) -> Tensor
    _roi_align_backward(Tensor a) -> Tensor
    _roi_pool_backward(Tensor a) -> Tensor
    _ps_roi_align_backward(Tensor a) -> Tensor
    _ps_roi_pool_backward(Tensor a) -> Tensor
"""
#: Seconds of processor time for one; parameters above which one trial has to do.
LONG, LARGE = 60, 3000


def install() -> None:
    """Make the environment: the packages, and all that `.venv` has."""
    uv = str(ROOT / ".uv/bin/uv")
    subprocess.run([uv, "venv", "--python", sys.executable, ENVIRONMENT], check=True)
    python, home = ENVIRONMENT / "bin/python", f"lib/python3.{sys.version_info[1]}"
    parent = Path(sys.prefix) / home / "site-packages"
    (ENVIRONMENT / home / "site-packages/parent.pth").write_text(f"{parent}\n")
    how = ["--no-deps", "--python", python]
    subprocess.run([uv, "pip", "install", *how, *PACKAGES.split()], check=True)


@dataclass(frozen=True)
class Given:
    """A call of `check`, and what it says of it."""

    reference: Any
    candidate: Any = None
    inputs: tuple[Any, ...] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


def on(function: Any, *inputs: Any, candidate: Any = None, **kwargs: Any) -> Given:
    """Inputs as a user has them."""
    more: dict[str, Any] = {"kwargs": kwargs} if kwargs else {}
    return Given(function, candidate, inputs, more)


def by(function: Any, *shapes: str) -> Given:
    """Shapes alone."""
    return Given(function, None, None, {"shapes": list(shapes)})


def mlp(n: int) -> nn.Module:
    """A perceptron, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(n, 8), nn.Tanh(), nn.Linear(8, 4))


class Checkpointed(nn.Module):
    """A perceptron that is run again in the backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = mlp(6), reentrant

    def forward(self, x: Tensor) -> Any:
        """The perceptron."""
        how = {"use_reentrant": self.reentrant}
        return checkpoint.checkpoint(self.inner, x, **how)


class Autocast(nn.Module):
    """Mixed precision."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.inner, self.norm = mlp(n), nn.LayerNorm(4)

    def forward(self, x: Tensor) -> Any:
        """The perceptron in bfloat16, then a norm in float32."""
        with torch.autocast("cpu", torch.bfloat16):
            return self.norm(self.inner(x))


class Odeint(nn.Module):
    """A differential equation with a perceptron for its right-hand side."""

    def __init__(self, solver: Callable[..., Tensor], times: Tensor) -> None:
        super().__init__()
        self.inner, self.solver = mlp(4), solver
        self.register_buffer("times", times)

    def forward(self, x: Tensor) -> Tensor:
        """The values at the times."""

        class Field(nn.Module):
            def __init__(self, inner: nn.Module) -> None:
                super().__init__()
                self.inner = inner

            def forward(self, t: Tensor, y: Tensor) -> Any:
                return self.inner(y)

        return self.solver(Field(self.inner), x, self.get_buffer("times"), method="rk4")


def tiny(package: Any, config: str, model: str, more: Mapping[str, Any]) -> nn.Module:
    """A model of transformers, small, in evaluation mode."""
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    small |= {"intermediate_size": 32, "vocab_size": 30}
    made = getattr(package, f"{config}Config")(**{**small, **more})
    built: nn.Module = getattr(package, model)(made)
    return built.eval()


def names() -> dict[str, Any]:
    """What the rows of the list may use."""

    def whole(n: int, *shape: int) -> Tensor:
        return torch.randint(n, shape)

    words = whole(28, 2, 6) + 1
    corners = torch.rand(4, 2)
    seq = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1}
    seq |= {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    seq |= {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    return {
        "torch": torch,
        "nn": nn,
        "F": F,
        "on": on,
        "by": by,
        "mlp": mlp,
        "Checkpointed": Checkpointed,
        "Autocast": Autocast,
        "Odeint": Odeint,
        "KB": level3,
        "tiny": tiny,
        "R": torch.randn,
        "I": whole,
        "U": lambda *shape: 0.05 + 0.9 * torch.rand(shape),
        "WORDS": {"input_ids": words, "attention_mask": mask},
        "LABELS": words.masked_fill(mask == 0, -100),
        "BOXES": torch.cat([corners, corners + 0.5], 1),
        "EDGES": torch.tensor([[0, 1, 2, 3, 4, 0, 2], [1, 2, 0, 4, 3, 3, 4]]),
        "SEQ2SEQ": {**seq, "vocab_size": 30, "max_position_embeddings": 16},
    }


def rows() -> Iterator[tuple[str, str, list[str], str]]:
    """Package, name, the lines that run first, and the call, of all that is listed."""
    package, first = "", list[str]()
    for line in LIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            package, first = line.strip("[]"), []
        elif line.startswith(">"):
            first.append(line.removeprefix("> "))
        elif line and not line.startswith("#"):
            name, _, call = line.partition(" = ")
            yield package, name, list(first), call


@contextlib.contextmanager
def limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError after some seconds of the processor's."""

    def late(*_: Any) -> None:
        raise TimeoutError(f"over {seconds} s")

    before = signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def made(first: list[str], call: str) -> Given:
    """What a row of the list gives."""
    space = names()
    torch.manual_seed(0)
    for line in first:
        exec(line, space)  # our own list
    given: Given = eval(call, space)  # likewise
    return given


def judge(given: Given) -> dict[str, Any]:
    """The verdict on one, and what it says."""
    more = dict(given.more)
    if isinstance(given.reference, nn.Module):
        count = sum(p.numel() for p in given.reference.parameters())
        more["quick"] = count > LARGE
    report = check(given.reference, given.candidate, given.inputs, **more)
    verdicts = Counter(row.judgement.verdict for row in report.rows)
    tensors = {(r.judgement.tensor, r.dtype) for r in report.rows}
    if report.failures:
        ended, why = "accused", report.failures[0].story
    elif report.silent:
        ended, why = "silent", ", ".join(name for name, _ in report.silent)
    else:
        ended, why = "passes" if report.passes else "unsupported", ""
    found = {"ended": ended, "why": why, "silent": len(report.silent)}
    return {**found, "tensors": len(tensors), "verdicts": dict(verdicts)}


class Planted(torch.autograd.Function):
    """The identity; its backward is wrong in one way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mistake: str) -> Tensor:
        """The same numbers."""
        ctx.mistake = mistake
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> Any:
        """The cotangent, with a mistake."""
        return MISTAKES[ctx.mistake](dys[0]), None


def _without_last(dy: Tensor) -> Tensor:
    flat = dy.reshape(-1).clone()
    flat[-1:] = 0
    return flat.reshape(dy.shape)


MISTAKES: dict[str, Callable[[Tensor], Tensor]] = {
    "a factor of 1.001": lambda dy: dy * 1.001,
    "the last element lost": _without_last,
    "the other sign": torch.neg,
    "a mean in place of a sum": lambda dy: dy / max(dy.shape[:1] or [2]) + 0 * dy,
    "in bfloat16": lambda dy: dy.bfloat16().to(dy.dtype),
    "turned round": lambda dy: dy.flip(-1) if dy.ndim else -dy,
}


def planted(given: Given, mistake: str, place: int) -> Given:
    """The same, with a candidate that makes a mistake.

    It is made behind one layer of a module, or behind the first output of a function.
    """
    plain = given.candidate or given.reference
    done: list[bool] = []

    def wrong(y: Any) -> Any:
        if not isinstance(y, Tensor) or not y.requires_grad or done:
            return y
        done.append(True)
        return Planted.apply(y, mistake)

    def hook(module: nn.Module, inputs: Any, output: Any) -> Any:
        done.clear()
        return tree_map(wrong, output)

    def candidate(*args: Any, **kwargs: Any) -> Any:
        done.clear()
        return tuple(map(wrong, tensors_in(plain(*args, **kwargs))))

    if not isinstance(plain, nn.Module):
        return Given(given.reference, candidate, given.inputs, given.more)
    module = copy.deepcopy(plain)
    layers = [m for m in module.modules() if not [*m.children()] and [*m.parameters()]]
    chosen = layers[place % len(layers)] if layers else module
    chosen.register_forward_hook(hook)
    return Given(given.reference, module, given.inputs, given.more)


@click.command()
@click.argument("patterns", nargs=-1)
@click.option("--share", default="1/1", help="such as 3/20: every 20th, from the third")
@click.option("--json", "file", type=click.Path(path_type=Path))
@click.option("--plant", is_flag=True, help="judge functions with a mistake in each")
@click.option("--install", "wanted", is_flag=True, help="make .venv-zoo")
def main(
    patterns: tuple[str, ...],
    share: str,
    file: Path | None,
    *,
    plant: bool,
    wanted: bool,
) -> None:
    """Judge all that is listed, or what fits a pattern such as "entmax*"."""
    if wanted:
        install()
        return
    os.environ.setdefault("TRITON_INTERPRET", "1")
    warnings.simplefilter("ignore")
    library = torch.library.Library("torchvision", "DEF")
    for schema in LACKING.strip().splitlines():
        library.define(schema.strip())
    which, count = map(int, share.split("/"))
    found = []
    for place, (package, name, first, call) in enumerate(rows()):
        fits = any(fnmatchcase(f"{package}: {name}", f"*{p}*") for p in patterns or "*")
        if not fits or place % count != which % count:
            continue
        record: dict[str, Any] = {"package": package, "name": name}
        clock = os.times()
        try:
            with limit(LONG):
                given = made(first, call)
                if plant:
                    record["mistake"] = list(MISTAKES)[place % len(MISTAKES)]
                    given = planted(given, record["mistake"], place)
                record |= judge(given)
        except Exception as error:  # noqa: BLE001  # all that it may raise is a verdict
            words = str(error).strip().splitlines()
            why = f"{type(error).__name__}: {words[0] if words else ''}"
            record |= {"ended": "refused", "why": why}
        record["seconds"] = round(os.times().user - clock.user, 1)
        found.append(record)
        said = record.get("mistake", "")
        click.echo(
            f"{record['ended']:8} {package.split(',')[0]:16} {name}"
            f" ({record['seconds']} s) {said} {record['why'][:200]}"
        )
    counts = Counter(record["ended"] for record in found)
    click.echo(dict(counts))
    if file is not None:
        file.write_text(json.dumps(found, indent=1), encoding="utf-8")
    if plant:
        tried = [r for r in found if r["ended"] != "refused"]
        caught = sum(r["ended"] == "accused" for r in tried)
        sys.exit(caught < 0.95 * len(tried))
    sys.exit(counts["accused"] > 0)


if __name__ == "__main__":
    main()
