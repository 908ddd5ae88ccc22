"""Judges published kernels and models, a line each.

    python -m scripts.studies.kernels --install     # .venv-zoo: the packages
    .venv-zoo/bin/python -m scripts.studies.kernels [PATTERN ...] [--share 3/20]
    .venv-zoo/bin/python -m scripts.studies.kernels --models

`kernels.txt` lists them. All are assumed to be right: a rejected one is a mistake of
the judge's or a defect upstream. `--plant` makes one mistake in the backward of each
function, and counts those that are caught; `--models` prints tables of the modules
alone, in each of `MODES`. Exit code 1 if a right one is accused or fewer than 95 % of
the mistakes are caught.
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
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  # as in its documentation
from torch.utils import checkpoint
from torch.utils._pytree import tree_map

from gradwatch import check
from gradwatch.harness.check.choice import Trial
from gradwatch.harness.judging.cases import REGIMES, cotangent
from gradwatch.harness.tracing.calls import tensors_in
from scripts.studies import level3

ROOT = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_suffix(".txt")
ENVIRONMENT = ROOT / ".venv-zoo"
#: Installed without their dependencies: PyTorch is that of `.venv`.
PACKAGES = """
    transformers timm torchvision==0.28.0 entmax kornia kornia-rs torchdiffeq e3nn
    opt-einsum opt_einsum_fx vector-quantize-pytorch einx frozendict torch-einops-utils
    rotary-embedding-torch x-transformers hyper-connections local-attention vit-pytorch
    perceiver-pytorch memory-efficient-attention-pytorch torch_geometric geoopt einops
    pytorch-metric-learning monai segmentation-models-pytorch liger-kernel triton
    revtorch memcnn performer-pytorch
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
#: Seconds of processor time for a row; parameters above which it gets one trial.
LONG, LARGE = 60, 3000


def install() -> None:
    """Make the environment: the packages, and a path to those of `.venv`."""
    uv = str(ROOT / ".uv/bin/uv")
    subprocess.run([uv, "venv", "--python", sys.executable, ENVIRONMENT], check=True)
    python, home = ENVIRONMENT / "bin/python", f"lib/python3.{sys.version_info[1]}"
    parent = Path(sys.prefix) / home / "site-packages"
    (ENVIRONMENT / home / "site-packages/parent.pth").write_text(f"{parent}\n")
    how = ["--no-deps", "--python", python]
    subprocess.run([uv, "pip", "install", *how, *PACKAGES.split()], check=True)


@dataclass(frozen=True)
class Given:
    """The arguments of a call of `check`."""

    reference: Any
    candidate: Any = None
    inputs: tuple[Any, ...] | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


def on(function: Any, *inputs: Any, candidate: Any = None, **kwargs: Any) -> Given:
    """A call with inputs."""
    more: dict[str, Any] = {"kwargs": kwargs} if kwargs else {}
    return Given(function, candidate, inputs, more)


def by(function: Any, *shapes: str) -> Given:
    """A call with shapes."""
    return Given(function, None, None, {"shapes": list(shapes)})


def mlp(n: int) -> nn.Module:
    """A perceptron, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(n, 8), nn.Tanh(), nn.Linear(8, 4))


class Checkpointed(nn.Module):
    """A perceptron whose forward runs again in the backward."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.inner, self.reentrant = mlp(6), reentrant

    def forward(self, x: Tensor) -> Any:
        """The perceptron."""
        how = {"use_reentrant": self.reentrant}
        return checkpoint.checkpoint(self.inner, x, **how)


class Autocast(nn.Module):
    """A perceptron in mixed precision."""

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


class Of(nn.Module):
    """A module from a function of itself and of its inputs; `parts` are attributes."""

    def __init__(self, function: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs: Any) -> Any:
        """The result of the function for the inputs."""
        return self.function(self, *inputs)


def alive(module: nn.Module) -> nn.Module:
    """The module with random numbers in weights of zero, which would hide others."""
    for weight in module.parameters():
        if weight.ndim > 1 and not weight.any():
            nn.init.normal_(weight, std=0.1)
    return module


def tiny(package: Any, config: str, model: str, more: Mapping[str, Any]) -> nn.Module:
    """A model of transformers, small, in evaluation mode."""
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    small |= {"intermediate_size": 32, "vocab_size": 30}
    made = getattr(package, f"{config}Config")(**{**small, **more})
    built: nn.Module = getattr(package, model)(made)
    return built.eval()


def names() -> dict[str, Any]:
    """The names that the rows of the list may use."""

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
        "Of": Of,
        "alive": alive,
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
    """The rows of the list: package, name, the lines that run first, and the call."""
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
    """Raise TimeoutError after some seconds of processor time."""

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
    """The call of a row of the list."""
    space = names()
    torch.manual_seed(0)
    for line in first:
        exec(line, space)  # our own list
    given: Given = eval(call, space)  # likewise
    return given


def judge(given: Given) -> dict[str, Any]:
    """The verdict on a call, and its reason."""
    more = dict(given.more)
    if isinstance(given.reference, nn.Module):
        count = sum(p.numel() for p in given.reference.parameters())
        more.setdefault("quick", count > LARGE)
    report = check(given.reference, given.candidate, given.inputs, **more)
    verdicts = Counter(row.judgement.verdict for row in report.rows)
    shown: dict[tuple[str, str], set[str]] = {}
    for row in report.rows:
        if row.own:
            shown.setdefault((row.judgement.tensor, row.dtype), set()).add(row.shown)
    if report.failures:
        ended, why = "accused", report.failures[0].story
    elif report.silent:
        ended, why = "silent", ", ".join(name for name, _ in report.silent)
    elif report.passes and "imprecise" in verdicts:
        ended, why = "imprecise", ""
    else:
        ended, why = "passes" if report.passes else "unsupported", ""
    found = {"ended": ended, "why": why, "silent": len(report.silent)}
    vacuous = sum(verdicts == {"vacuous"} for verdicts in shown.values())
    found |= {"tensors": len(shown), "vacuous": vacuous, "verdicts": dict(verdicts)}
    return found


class Planted(torch.autograd.Function):
    """The identity; its backward is wrong in one way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mistake: str) -> Tensor:
        """A copy of the input."""
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


def _without_row(dy: Tensor) -> Tensor:
    kept = dy.clone()
    kept[-1:] = 0
    return kept if dy.ndim else dy * 0


def _overwritten(dy: Tensor) -> Tensor:
    """The cotangent with its second half in place of the first, too."""
    flat = dy.reshape(-1).clone()
    half = len(flat) // 2
    flat[:half] = flat[len(flat) - half :]
    return flat.reshape(dy.shape) if half else 2 * dy


MISTAKES: dict[str, Callable[[Tensor], Tensor]] = {
    "a factor of 1.001": lambda dy: dy * 1.001,
    "the last element lost": _without_last,
    "the other sign": torch.neg,
    "a mean in place of a sum": lambda dy: dy / max(dy.shape[:1] or [2]) + 0 * dy,
    "in bfloat16": lambda dy: dy.bfloat16().to(dy.dtype),
    "turned round": lambda dy: dy.flip(-1) if dy.ndim else -dy,
    "a factor of 1.05": lambda dy: dy * 1.05,
    "zero": lambda dy: dy * 0,
    "the last row lost": _without_row,
    "transposed": lambda dy: (dy.mT if dy.ndim > 1 else dy.flip(0)).reshape(dy.shape),
    "overwritten": _overwritten,
}
#: Sites of a mistake in a layer: the input of its backward, its output, its weight's.
SITES = ("behind", "before", "weight")


def planted(given: Given, mistake: str, place: int) -> Given:
    """A call with a candidate that makes a mistake.

    It is made at one of `SITES` of a layer of a module, or behind the first output of a
    function.
    """
    plain = given.candidate or given.reference
    done: list[bool] = []

    def wrong(y: Any) -> Any:
        if not isinstance(y, Tensor) or not y.requires_grad or done:
            return y
        done.append(True)
        return Planted.apply(y, mistake)

    def once(module: nn.Module, inputs: Any, *output: Any) -> Any:
        done.clear()
        return tree_map(wrong, output[0] if output else inputs)

    def at_weight(module: nn.Module, inputs: Any) -> None:
        weight = next(module.parameters(recurse=False))
        if weight.requires_grad and not hasattr(weight, "planted"):
            weight.planted = weight.register_hook(MISTAKES[mistake])

    def candidate(*args: Any, **kwargs: Any) -> Any:
        done.clear()
        return tuple(map(wrong, tensors_in(plain(*args, **kwargs))))

    if not isinstance(plain, nn.Module):
        return Given(given.reference, candidate, given.inputs, given.more)
    module = copy.deepcopy(plain)
    layers = [m for m in module.modules() if not [*m.children()] and [*m.parameters()]]
    chosen = layers[place % len(layers)] if layers else module
    site = SITES[place % len(SITES)] if layers else "behind"
    if site == "behind":
        chosen.register_forward_hook(once)
    else:
        chosen.register_forward_pre_hook(at_weight if site == "weight" else once)
    return Given(given.reference, module, given.inputs, given.more)


def change(given: Given) -> float:
    """The largest change of a gradient by a mistake, over its norm, in float64.

    A gradient that is zero but for rounding has none.
    """
    kind = torch.float64
    start = Trial(dtype="float64", framework=None).called("given").seed

    def leaf(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return value.detach().to(kind).requires_grad_()

    def cotangent_of(y: Tensor, place: int) -> Tensor:
        rng = np.random.default_rng([*start, 1, place])
        values = cotangent(rng, tuple(y.shape), REGIMES["normal"].cotangent)
        return torch.from_numpy(values).to(kind)

    def gradients(function: Any) -> list[Any]:
        torch.manual_seed(0)
        called, module = copy.deepcopy(given), copy.deepcopy(function).to(kind)
        args, kwargs = tree_map(leaf, (called.inputs, called.more.get("kwargs", {})))
        outputs = enumerate(tensors_in(module(*args, **kwargs)))
        made = {y: cotangent_of(y, i) for i, y in outputs if y.requires_grad}
        torch.autograd.backward([*made], [*made.values()])
        by = [t for t in tensors_in((args, kwargs)) if t.requires_grad]
        return [t.grad for t in (*by, *module.parameters()) if t.requires_grad]

    right, wrong = map(gradients, (given.reference, given.candidate))
    both = [(a, b) for a, b in zip(right, wrong, strict=True) if a is not None]
    sizes = [float(a.norm()) for a, _ in both]
    off = [float((a - b).norm()) if b is not None else 0.0 for a, b in both]
    least = 1e-12 * max(sizes, default=0.0)
    pairs = zip(sizes, off, strict=True)
    return max((d / size for size, d in pairs if size > least and d == d), default=0.0)


#: The modes of the tables: whether in training, the precision, whether with a mistake
#: in a layer.
MODES = {
    "float32, evaluation": (False, "float32", False),
    "float32, training": (True, "float32", False),
    "bfloat16, evaluation": (False, "bfloat16", False),
    "float32, one mistake": (False, "float32", True),
    "bfloat16, one mistake": (False, "bfloat16", True),
}
ENDS = ("passes", "imprecise", "silent", "refused", "accused")


def is_visible(record: Mapping[str, Any]) -> bool:
    """Whether a mistake changes some gradient so much that it has to be caught."""
    least = 0.1 if record.get("mode", "").startswith("bfloat16") else 1e-5
    return bool(record.get("change", 1.0) > least)


def record_of(
    first: list[str],
    call: str,
    place: int,
    mode: str = "",
    plant: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """The verdict on a row of the list; with a mode, empty for all but modules."""
    record: dict[str, Any] = {"mode": mode} if mode else {}
    clock = os.times()
    try:
        with limit(LONG):
            given = made(first, call)
            given = replace(given, more={**given.more, "seed": seed})
            if mode:
                train, dtype, plant = MODES[mode]
                module = given.reference
                if given.candidate or not isinstance(module, nn.Module):
                    return {}
                if isinstance(module, torch.jit.ScriptModule):
                    return {}
                more = {**given.more, "quick": True, "dtypes": dtype}
                given = Given(module.train(train), None, given.inputs, more)
            if plant:
                place += seed
                record["mistake"] = list(MISTAKES)[place % len(MISTAKES)]
                given = planted(given, record["mistake"], place)
                if mode:
                    record["change"] = change(given)
            if not is_visible(record):
                return {**record, "ended": "too small", "why": "", "seconds": 0.0}
            record |= judge(given)
    except Exception as error:  # noqa: BLE001  # all that it may raise is a verdict
        words = str(error).strip().splitlines()
        why = f"{type(error).__name__}: {words[0] if words else ''}"
        record |= {"ended": "refused", "why": why}
    return {**record, "seconds": round(os.times().user - clock.user, 1)}


def tabled(found: list[dict[str, Any]]) -> Iterator[str]:
    """The table of modules, in Markdown."""
    yield "| mode | modules | tensors | vacuous | " + " | ".join(ENDS) + " |"
    yield "|---|" + "---:|" * (3 + len(ENDS))
    for mode in MODES:
        rows = [r for r in found if r.get("mode") == mode and is_visible(r)]
        tensors = sum(r.get("tensors", 0) for r in rows)
        share = sum(r.get("vacuous", 0) for r in rows) / max(tensors, 1)
        ends = Counter(r["ended"] for r in rows)
        cells = [len(rows), tensors, f"{share:.1%}", *(ends[e] for e in ENDS)]
        yield f"| {mode} | {' | '.join(map(str, cells))} |"


@click.command()
@click.argument("patterns", nargs=-1)
@click.option("--share", default="1/1", help="such as 3/20: every 20th, from the third")
@click.option("--json", "file", type=click.Path(path_type=Path))
@click.option("--plant", is_flag=True, help="judge functions with a mistake in each")
@click.option("--models", is_flag=True, help="tables of the modules, in each mode")
@click.option("--mode", "modes", multiple=True, type=click.Choice([*MODES]))
@click.option("--seed", default=0, help="of numbers, and of what is wrong and where")
@click.option("--install", "wanted", is_flag=True, help="make .venv-zoo")
def main(
    patterns: tuple[str, ...],
    share: str,
    file: Path | None,
    modes: tuple[str, ...],
    *,
    plant: bool,
    models: bool,
    seed: int,
    wanted: bool,
) -> None:
    """Judge all rows of the list, or those that fit a pattern such as "entmax*"."""
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
        for mode in modes or (MODES if models else ("",)):
            record = record_of(first, call, place, mode, plant, seed)
            if not record:
                break
            found.append({"package": package, "name": name, **record})
            if file is not None:  # after each, as it may be stopped
                file.write_text(json.dumps(found, indent=1), encoding="utf-8")
            said = [record.get("mode", ""), record.get("mistake", "")]
            click.echo(
                f"{record['ended']:8} {package.split(',')[0]:16} {name}"
                f" ({record['seconds']} s) {' '.join(said)} {record['why'][:200]}"
            )
    click.echo(dict(Counter(record["ended"] for record in found)))
    for line in tabled(found) if modes or models else ():
        click.echo(line)
    tried = [r for r in found if "mistake" in r and r["ended"] != "refused"]
    seen = [r for r in tried if is_visible(r)]
    caught = sum(r["ended"] == "accused" for r in seen)
    accused = any(r["ended"] == "accused" for r in found if "mistake" not in r)
    sys.exit(accused or caught < 0.95 * len(seen))


if __name__ == "__main__":
    main()
