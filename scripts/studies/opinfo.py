"""PyTorch's own gradients on trial: every entry of its OpInfo database.

    python scripts/studies/opinfo.py sweep float64 [--only NAME,...] [--samples 8]

Each entry that has a float autograd on the CPU is traced, PyTorch's gradient of each
sample is judged against the engine's graph, and errors are planted in it. What was
found so far is kept in results/opinfo/<dtype>.json, one record an entry.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from harness.judging.precisions import PRECISIONS
from harness.judging.reference import (
    Reference,
    _differ,
    _selects,
    _truths,
    limit_for,
    wider,
)
from harness.judging.rounding import longest_reduction
from harness.judging.verdict import PASSING, judge_tensors
from harness.tracing import Traced, Untraceable, trace
from impls import graph

ROOT = Path(__file__).resolve().parent.parent.parent
Record = dict[str, Any]
RESULTS = ROOT / "results" / "opinfo"
SECONDS = 60  # for all samples of an entry; the slowest of the honest ones take 20
PLANTED = {"float64": 1e-6, "float32": 1e-3}  # scale of the planted error


class Late(Exception):
    """An entry has used up its time."""


def entries(dtype: torch.dtype) -> Iterator[Any]:
    """OpInfo's entries whose gradients PyTorch says it has for this dtype on a CPU."""
    from torch.testing._internal.common_methods_invocations import op_db

    for entry in op_db:
        if entry.supports_autograd and dtype in entry.supported_backward_dtypes("cpu"):
            yield entry


def as_function(
    entry: Any, sample: Any
) -> tuple[Callable[..., Any], list[Any], list[bool]]:
    """A sample as a function of its tensors, they, and which of them want gradients."""
    flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]

    def function(*tensors: torch.Tensor) -> Any:
        given = list(flat)
        for place, tensor in zip(places, tensors, strict=True):
            given[place] = tensor
        first, args, kwargs = tree_unflatten(given, spec)
        out = entry.op(first, *args, **kwargs)
        return tuple(_results(sample.output_process_fn_grad(out)))

    tensors = [flat[i].detach() for i in places]
    return function, tensors, [flat[i].requires_grad for i in places]


def _results(out: Any) -> list[torch.Tensor]:
    return [v for v in tree_leaves(out) if isinstance(v, torch.Tensor)]


def by_autograd(
    function: Callable[..., Any], tensors: list[Any], wanted: list[bool], seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """PyTorch's gradients, outputs and the cotangents they are for, all by name."""
    copies = [t.clone().requires_grad_(w) for t, w in zip(tensors, wanted, strict=True)]
    outputs = dict(zip(_output_names(function, copies), function(*copies), strict=True))
    draw = torch.Generator().manual_seed(seed)
    cotangents = {
        name: torch.randn(y.shape, generator=draw, dtype=torch.float64).to(y.dtype)
        for name, y in outputs.items()
        if y.requires_grad and y.is_floating_point()
    }
    if not cotangents:
        raise Untraceable("aten", "has no differentiable output", "no rule")
    leaves = {f"x{i}" if len(copies) > 1 else "x": t for i, t in enumerate(copies)}
    leaves = {n: t for n, t in leaves.items() if t.requires_grad}
    found = torch.autograd.grad(
        [outputs[n] for n in cotangents],
        list(leaves.values()),
        list(cotangents.values()),
        allow_unused=True,
    )
    gradients = dict(zip((f"d{n}" for n in leaves), found, strict=True))
    return gradients, {n: outputs[n] for n in cotangents}, cotangents


def _output_names(function: Callable[..., Any], tensors: list[Any]) -> list[str]:
    count = len(function(*tensors))
    return ["y"] if count == 1 else [f"y{i}" for i in range(count)]


def numbers(tensor: Any) -> Any:
    """In NumPy; bfloat16, which NumPy lacks, in float32."""
    if tensor is None:
        return None
    tensor = tensor.detach().resolve_neg()
    tensor = torch.zeros_like(tensor) if tensor._is_zerotensor() else tensor
    return tensor.float().numpy() if tensor.dtype == torch.bfloat16 else tensor.numpy()


def reference(
    traced: Traced, cotangents: dict[str, Any], wanted: list[str], dtype: str
) -> tuple[Reference, set[str]]:
    """The truth of outputs and gradients, and the gradients that no path leads to."""
    precision = PRECISIONS[dtype]
    wide = wider(precision)
    truths = {}
    for convention in graph.TIES:
        with graph.ties(convention):
            built = traced.graph(wide)
            found = built.gradients(cotangents, wanted)
            nodes = {
                n: graph.variable(np.zeros_like(built.leaves[n[1:]].value))
                if g is None
                else g
                for n, g in found.items()
            }
        nodes |= {n: built.outputs[n] for n in cotangents}
        order = graph.topological_order(nodes.values())
        made = _truths(nodes, order, precision, wide)
        if not truths or _differ(truths["first"], made):
            truths[convention] = made
        if not _selects(order):
            break
    limit = limit_for(longest_reduction(order))
    return Reference(truths, limit, wide.name), {
        n for n, g in found.items() if g is None
    }


def one_sample(entry: Any, sample: Any, dtype: str) -> dict[str, Any]:
    """Verdicts on outputs and gradients of a sample."""
    function, tensors, wanted = as_function(entry, sample)
    gradients, outputs, cotangents = by_autograd(function, tensors, wanted)
    traced = trace(function, tensors)
    held = {n: numbers(c).astype(np.longdouble) for n, c in cotangents.items()}
    right, unreached = reference(traced, held, [n[1:] for n in gradients], dtype)
    got = {
        n: numbers(g)
        for n, g in {**gradients, **outputs}.items()
        if not (g is None and n in unreached)
    }
    dtypes = {n: a.dtype.name for n, a in got.items() if a is not None}
    judged = judge_tensors(right, got, dtypes, dtype=dtype)
    return {
        "elements": sum(t.numel() for t in tensors),
        "ops": traced.ops,
        "judged": [
            {
                "tensor": j.tensor,
                "verdict": j.verdict,
                "ratio": j.ratio,
                "limit": j.limit,
                "vacuous": j.vacuous,
                "message": j.message,
            }
            for j in judged
        ],
    }


def one_entry(
    entry: Any, dtype: str, samples: int, verbose: bool = False
) -> dict[str, Any]:
    """All samples of an entry, with the reason of each that was not judged."""
    record: Record = {"name": entry.formatted_name, "samples": [], "not": []}
    torch.manual_seed(0)
    started = time.monotonic()
    signal.alarm(SECONDS)
    try:
        made = entry.sample_inputs("cpu", getattr(torch, dtype), requires_grad=True)
        for i, sample in enumerate(itertools.islice(made, samples)):
            try:
                record["samples"].append(one_sample(entry, sample, dtype))
            except Untraceable as no:
                record["not"].append(
                    {"sample": i, "kind": no.kind, "op": no.op, "why": no.why}
                )
            except Late:
                raise
            except Exception as error:  # noqa: BLE001  # one entry must not end the sweep
                if verbose:
                    traceback.print_exc()
                why = f"{type(error).__name__}: {str(error)[:200]}"
                record["not"].append(
                    {"sample": i, "kind": "error", "op": "", "why": why}
                )
    except Late:
        record["not"].append(_why(-1, "time", "", f"over {SECONDS} s"))
    except Exception as error:  # noqa: BLE001  # PyTorch's own makers of samples fail too
        record["not"].append(_why(-1, "samples", "", str(error)[:200]))
    finally:
        signal.alarm(0)
    record["seconds"] = round(time.monotonic() - started, 2)
    return record


def _why(sample: int, kind: str, op: str, why: str) -> Record:
    return {"sample": sample, "kind": kind, "op": op, "why": why}


def sweep(dtype: str, samples: int, only: set[str], path: Path) -> None:
    """One record an entry, written after each."""

    def late(*_: Any) -> None:
        raise Late

    signal.signal(signal.SIGALRM, late)
    records = []
    for entry in entries(getattr(torch, dtype)):
        if not only or entry.formatted_name in only:
            records.append(one_entry(entry, dtype, samples, verbose=bool(only)))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(records))
    summary(records)


def summary(records: list[dict[str, Any]]) -> None:
    """What the sweep found, in lines."""
    whole = sum(bool(r["samples"]) and not r["not"] for r in records)
    part = sum(bool(r["samples"]) for r in records) - whole
    print(f"{len(records)} entries: {whole} judged completely, {part} in part")
    judged = [
        (r["name"], j) for r in records for s in r["samples"] for j in s["judged"]
    ]
    print(Counter(j["verdict"] for _, j in judged))
    for r in records:
        for why in {f"{n['kind']}: {n['op']} {n['why'][:90]}" for n in r["not"]}:
            print("NOT", r["name"], why)
    for name, j in judged:
        if j["verdict"] not in PASSING:
            print(j["verdict"].upper(), name, j["message"][:200])


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["sweep", "summary"])
    parser.add_argument("dtype")
    parser.add_argument("--only", default="")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    path = given.out or RESULTS / f"{given.dtype}.json"
    if given.what == "summary":
        summary(json.loads(path.read_text()))
        return
    only = set(given.only.split(",")) if given.only else set()
    sweep(given.dtype, given.samples, only, path)


if __name__ == "__main__":
    main()
