"""Where a backward of one's own leaves autograd's graph: the call and its line."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from harness.check.runs import Graph, Tensor, nodes_behind, replica
from harness.check.subjects import Bound, Call

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
        """After it."""
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # likewise

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        followed = any(_in_graph(value) for value in tree_leaves((args, kwargs)))
        if followed and func in CUTS:
            self.cuts[f"{CUTS[func]} in {_line()}"] = None
        elif followed and not torch.is_grad_enabled() and _is_float(out):
            self.cuts[f"torch.no_grad() around {_line()}"] = None
        return out


def cuts_of(call: Call, bound: Bound, cotangents: Sequence[Tensor | None]) -> list[str]:
    """The cuts in a candidate's backwards: ".detach() in silu.py:9 (...)".

    PyTorch's own backwards are not written in Python, so that none of them is seen.
    """
    graph = Graph(call, bound.tensors, bound.wanted)
    leaves = [t for t, w in zip(graph.leaves, bound.wanted, strict=True) if w]
    pairs = [
        (y, replica(dy).requires_grad_())
        for y, dy in zip(graph.outputs, cotangents, strict=False)
        if dy is not None and y.requires_grad
    ]
    outputs, dys = [y for y, _ in pairs], [dy for _, dy in pairs]
    watch = _Watch()
    for node in nodes_behind(outputs):
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            node.register_prehook(watch.begin)
            node.register_hook(watch.end)
    torch.autograd.grad(outputs, leaves, dys, create_graph=True, allow_unused=True)
    return list(watch.cuts)


def _in_graph(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _line() -> str:
    """The innermost line outside PyTorch and this module, and what stands there."""
    frame = sys._getframe(1)
    while frame.f_back and (
        frame.f_code.co_filename == __file__ or "/torch/" in frame.f_code.co_filename
    ):
        frame = frame.f_back
    file, number = frame.f_code.co_filename, frame.f_lineno
    text = linecache.getline(file, number).strip()
    return f"{Path(file).name}:{number}" + (f" ({text})" if text else "")
