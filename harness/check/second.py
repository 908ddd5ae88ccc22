"""A candidate differentiated twice, or forwards: run, judged, and put in words."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from gradwatch.harness.check.inputs import Trial
from gradwatch.harness.check.report import Row
from gradwatch.harness.check.runs import (
    Graph,
    Tensor,
    differentiated,
    nodes_behind,
    replica,
    same,
)
from gradwatch.harness.check.subjects import Subject
from gradwatch.harness.check.subjects.binding import Bound, Call, array_of
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.verdict import judge_tensors
from gradwatch.impls.backends._torchlike import refusals
from gradwatch.impls.contract import Unsupported

WHY = (
    "{what}: computed in the forward, where autograd records nothing. Save the inputs "
    "and outputs themselves, and compute the rest again in the backward"
)
UNRECORDED = (
    "the double backward is a constant: the backward computes without autograd's graph "
    "(torch.no_grad, .data, .detach() or NumPy)"
)
CUT = (
    "the backward computes without autograd's graph, with {cuts}: all that follows "
    "from it is a constant to the double backward"
)


@dataclass(frozen=True)
class Second:
    """A candidate at one trial, in the trial's order."""

    subject: Subject
    bound: Bound
    call: Call
    trial: Trial
    cotangents: Sequence[Tensor | None]

    @property
    def tangents(self) -> list[Tensor | None]:
        """One for each tensor that needs a gradient."""
        pairs = zip(self.bound.tensors, self.bound.wanted, strict=True)
        return [
            self.trial.tangent(tensor, i) if wanted else None
            for i, (tensor, wanted) in enumerate(pairs)
        ]

    @property
    def names(self) -> tuple[str, ...]:
        """What is computed, in the order of `runs.differentiated`."""
        results = self.subject.results(self.bound)
        pairs = zip(results, self.cotangents, strict=False)
        outputs = [name for name, dy in pairs if dy is not None]
        if self.trial.order == "jvp":
            return tuple(f"jvp.{name}" for name in outputs)
        wanted = zip(self.bound.names, self.bound.wanted, strict=True)
        inputs = [name for name, w in wanted if w]
        return tuple(f"hvp.d{n}" for n in (*inputs, *(f"d{y}" for y in outputs)))

    def right(self, compute: str | None = None) -> Any:
        """The reference."""
        arrays = [None if dy is None else array_of(dy) for dy in self.cotangents]
        along = [None if v is None else array_of(v) for v in self.tangents]
        trial = self.trial
        return self.subject.second(
            self.bound, arrays, along, trial.order, trial.dtype, compute
        )

    def rows(self, compute: str | None = None) -> list[Row]:
        """What is said of each tensor."""
        judgements = list(self._judged(compute))
        return [Row(self.trial.name, self.trial.dtype, j) for j in judgements]

    def _judged(self, compute: str | None) -> Iterator[Judgement]:
        tangents, dys = self.tangents, list(self.cotangents)
        given = [None if t is None else t.clone() for t in (*tangents, *dys)]
        order, bound = self.trial.order, self.bound
        try:
            with refusals():
                got = differentiated(
                    order, self.call, bound.tensors, bound.wanted, dys, tangents
                )
        except Unsupported as words:
            yield Judgement("all", "unsupported", message=f"PyTorch: {words}")
            return
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises
            message = f"raised {type(error).__name__}: {error}".partition("\n")[0]
            yield Judgement("all", "error", message=message)
            return
        if not all(map(same, given, (*tangents, *dys))):
            message = "a cotangent or a tangent was overwritten"
            yield Judgement("cotangents", "malformed", message=message)
        named = dict(zip(self.names, got, strict=True))
        judgements = self._numbers(named, compute)
        wrong = order == "hvp" and not all(j.passes for j in judgements)
        cause = self._cause() if wrong else ""
        for judgement in judgements:
            yield _explained(judgement, named[judgement.tensor], cause)

    def _numbers(
        self, named: dict[str, Tensor | None], compute: str | None
    ) -> tuple[Judgement, ...]:
        dtype = self.trial.dtype
        arrays = {n: None if t is None else array_of(t) for n, t in named.items()}
        dtypes = {
            n: str(t.dtype).removeprefix("torch.")
            for n, t in named.items()
            if t is not None
        }
        return judge_tensors(self.right(compute), arrays, dtypes, dtype=dtype)

    def _cause(self) -> str:
        """Why a second derivative is another one than the gradient's; "" if unknown."""
        if constants := self._constants():
            what = "the double backward treats " + ", ".join(constants)
            return WHY.format(what=f"{what} as a constant")
        cuts = cuts_of(self.call, self.bound, self.cotangents)
        return CUT.format(cuts=", ".join(cuts[:3])) if cuts else ""

    def _constants(self) -> list[str]:
        """What the candidate keeps for its backward and autograd does not follow."""
        graph = Graph(self.call, self.bound.tensors, self.bound.wanted)
        kept = [leaf for leaf in graph.leaves if not leaf.requires_grad]
        own = torch.autograd.function.BackwardCFunction
        functions = [n for n in nodes_behind(graph.outputs) if isinstance(n, own)]
        return [what for node in functions for what in _kept(node, kept)]


def _explained(judgement: Judgement, got: Tensor | None, cause: str) -> Judgement:
    """With the cause, where a second derivative by an input is wrong."""
    if judgement.passes or not judgement.tensor.startswith("hvp.d"):
        return judgement
    cause = cause or (UNRECORDED if got is None else "")
    if not cause:
        return judgement
    return replace(judgement, message=f"{judgement.message}; {cause}")


def _kept(ctx: Any, inputs: Sequence[Tensor]) -> Iterator[str]:
    """Names of the floating tensors that a Function keeps outside of the graph."""

    def outside(value: Any) -> bool:
        return (
            isinstance(value, Tensor)
            and value.is_floating_point()
            and not value.requires_grad
            and not any(same(value, given) for given in inputs)
        )

    yield from (f"ctx.{name}" for name, value in vars(ctx).items() if outside(value))
    saved = ctx.saved_tensors
    names = _saved_names(ctx._forward_cls)
    for i, tensor in enumerate(saved):
        if outside(tensor):
            named = f"{names[i]} (" if len(names) == len(saved) else ""
            yield f"{named}ctx.saved_tensors[{i}]" + (")" if named else "")


def _saved_names(function: Any) -> list[str]:
    """What stands in its one call of save_for_backward, if its source can be read."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    calls = [
        node.args
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "save_for_backward"
    ]
    return [ast.unparse(argument) for argument in calls[0]] if len(calls) == 1 else []


# Where a backward leaves autograd's graph: the call and its line.

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
