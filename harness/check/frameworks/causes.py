"""Why a double backward is wrong: what is kept, and where autograd's graph is left."""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from gradwatch.harness.check.frameworks import Bound
from gradwatch.harness.check.frameworks.runs import (
    Graph,
    Tensor,
    floating,
    nodes_behind,
    replica,
    same,
)

#: The node of a `torch.autograd.Function` of the caller's.
OWN = torch.autograd.function.BackwardCFunction


def cause_of(call: Any, bound: Bound, cotangents: Sequence[Tensor | None]) -> str:
    """Why a second derivative is another one than the gradient's; "" if unknown."""
    graph = Graph(call, bound.tensors, bound.wanted)
    inputs = [leaf for leaf in graph.leaves if not leaf.requires_grad]
    kept = []  # of a Function's floating tensors those outside of the graph
    for ctx in (n for n in nodes_behind(graph.outputs) if isinstance(n, OWN)):
        saved = {f"saved_tensors[{i}]": t for i, t in enumerate(ctx.saved_tensors)}
        for name, value in {**vars(ctx), **saved}.items():
            outside = floating(value) and not value.requires_grad
            if outside and not any(same(value, given) for given in inputs):
                kept.append(f"ctx.{name}")
    if kept:
        return (
            f"the double backward treats {', '.join(kept)} as a constant: computed in "
            "the forward, where autograd records nothing. Save the inputs and outputs "
            "themselves, and compute the rest again in the backward"
        )
    cuts = ", ".join(cuts_of(call, bound, cotangents)[:3])
    return cuts and (
        f"the backward computes without autograd's graph, with {cuts}: all that "
        "follows from it is a constant to the double backward"
    )


#: What makes a constant of a tensor, by how a person writes it.
CUTS: Mapping[Any, str] = {
    Tensor.detach: ".detach()",
    Tensor.detach_: ".detach_()",
    Tensor.data.__get__: ".data",  # type: ignore[attr-defined]  # a C descriptor
    Tensor.numpy: ".numpy()",
    Tensor.__array__: "a NumPy function",
    Tensor.item: ".item()",
    Tensor.tolist: ".tolist()",
}


class _Watch(TorchFunctionMode):
    """Notes each call that takes a tensor of the graph and returns a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.cuts: dict[str, None] = {}

    def begin(self, _: Any) -> None:
        """Before a node's backward; PyTorch's engine forgets it where that raises.

        A mode around `torch.autograd.grad` would see that call alone.
        """
        self.__enter__()  # type: ignore[no-untyped-call]  # PyTorch has no types here

    def end(self, *_: Any) -> None:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # likewise

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = (v for v in tree_leaves((args, kwargs)) if isinstance(v, Tensor))
        followed = any(tensor.requires_grad for tensor in given)
        if followed and func in CUTS:
            self.cuts[f"{CUTS[func]} in {_line()}"] = None
        elif followed and not torch.is_grad_enabled() and floating(out):
            self.cuts[f"torch.no_grad() around {_line()}"] = None
        return out


def cuts_of(call: Any, bound: Bound, cotangents: Sequence[Tensor | None]) -> list[str]:
    """The cuts in a candidate's backwards: ".detach() in silu.py:9 (...)".

    PyTorch's own backwards are not written in Python, so that none of them is seen.
    """
    graph = Graph(call, bound.tensors, bound.wanted)
    along = [None if dy is None else replica(dy).requires_grad_() for dy in cotangents]
    outputs, dys = graph.differentiable(along)
    watch = _Watch()
    for node in nodes_behind(outputs):
        if isinstance(node, OWN):
            node.register_prehook(watch.begin)
            node.register_hook(watch.end)
    graph.swept(outputs, dys, again=True)
    return list(watch.cuts)


def _line() -> str:
    """The innermost line outside PyTorch and this module, and what stands there."""
    frames = reversed(traceback.extract_stack())
    theirs = (
        f for f in frames if f.filename != __file__ and "/torch/" not in f.filename
    )
    at = next(theirs)
    return f"{Path(at.filename).name}:{at.lineno}" + (
        f" ({at.line})" if at.line else ""
    )
