"""PyTorch for `check`: its tensors, its graphs, and the settings of a check."""

from __future__ import annotations

import contextlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch._functorch import config as functorch
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_map_only

from gradwatch.harness.check.frameworks import (
    ARGUMENTS,
    Bound,
    Forward,
    dtype_of,
    observation,
    runs,
)
from gradwatch.harness.check.frameworks.loop import matched
from gradwatch.harness.check.frameworks.runs import Graph, Tensor, floating
from gradwatch.harness.tracing.calls import Call as Call
from gradwatch.harness.tracing.calls import held, receiver, state_of, tensors_in
from gradwatch.harness.tracing.capture import plain_autograd
from gradwatch.harness.tracing.traced import Traced, trace
from gradwatch.harness.workers.arrays import values_of
from gradwatch.impls import graph
from gradwatch.impls.backends._torch_products import product_settings
from gradwatch.impls.backends._torchlike import refusals as refusals
from gradwatch.impls.backends._torchlike_names import ArrayNames
from gradwatch.impls.catalogue import known
from gradwatch.impls.contract import Array

TITLE = "PyTorch"
#: Regimes whose layout a tensor cannot have: its strides are never negative.
FOREIGN = ("negative",)
#: The exceptions of a function for numbers and shapes that it does not take.
RAISED = (RuntimeError, ArithmeticError, AssertionError, LookupError, ValueError)
#: The array functions for the formulas of op pages.
ARRAYS = ArrayNames(torch)
tensors = tensors_in
copies, differentiated, numbers = runs.copies, runs.differentiated, runs.numbers
observe, same, array_of = runs.observe, runs.same, runs.array_of
#: The imports of the script of a failure, and the source that it quotes.
IMPORTS = "from torch.utils._pytree import tree_leaves"
HELD = (observation, runs, state_of, held)


def followed(call: Call, bound: Bound) -> Traced:
    """The trace of a candidate's own forward, under the names of the reference."""
    own = trace(call, [t.detach() for t in bound.tensors])
    results = (*bound.results, *own.results)[: len(own.results)]
    return replace(own, names=bound.names, results=results, wanted=bound.wanted)


def saved(call: Call, bound: Bound) -> list[Tensor]:
    """The tensors that a function saves for its backward."""
    kept = list[Tensor]()

    def note(tensor: Tensor) -> Tensor:
        kept.append(tensor.detach())  # with its node it would never be freed
        return kept[-1]

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        Graph(call, bound.tensors, bound.wanted)
    return kept


def hashes(values: Any) -> set[int]:
    """Hashes of the numbers of tensors in containers, for those that have any."""
    held = (t for t in tensors(values) if t.layout == torch.strided and t.numel())
    wide = (t.float() if t.is_floating_point() and t.itemsize < 4 else t for t in held)
    return {hash(array_of(t).tobytes()) for t in wide}


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Containers with a function applied to each tensor."""
    return tree_map_only(Tensor, function, tree)


def paths(tree: Any) -> list[tuple[Any, Any]]:
    """Each leaf of containers, after its path."""
    return tree_flatten_with_path(tree)[0]


path_name = keystr


def made(values: Array, dtype: str, kind: str, device: str, layout: str) -> Tensor:
    """A tensor of a kind (`shapes.Spec`), on a device and in a layout."""
    tensor = torch.from_numpy(values)
    if kind == "complex":
        tensor = _paired(tensor, dtype)
    elif kind == "float":
        tensor = tensor.to(getattr(torch, dtype))
    return laid_out(tensor.to(device), layout)


def filled(values: Array, like: Tensor, layout: str = "contiguous") -> Tensor:
    """A tensor of the type of another one, from values as `numbers` returns them."""
    held = torch.from_numpy(values)
    held = torch.complex(*held.unbind(-1)) if like.is_complex() else held
    return laid_out(held.to(like.dtype).to(like.device), layout)


def moved(tensor: Tensor, dtype: str, main: str, device: str) -> Tensor:
    """A tensor, moved to a device, and converted to `dtype` if it is of type `main`."""
    held = tensor.detach().to(device).resolve_conj()
    if held.is_complex() and dtype_of(held.real) == main:
        held = _paired(numbers(held), dtype)
    elif dtype_of(held) == main:
        held = held.to(getattr(torch, dtype))
    return held.requires_grad_(tensor.requires_grad)


def _paired(parts: Tensor, dtype: str) -> Tensor:
    """The complex tensor whose real and imaginary parts are the last axis."""
    if dtype == "bfloat16":
        raise ValueError(f"PyTorch has no complex numbers of {dtype}")
    return torch.complex(*parts.to(getattr(torch, dtype)).unbind(-1))


def written(tensor: Tensor) -> str:
    """An expression that constructs a tensor, strides included."""
    whole = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    whole.set_(tensor.detach().untyped_storage())
    dense = tensor.is_contiguous() and whole.numel() == tensor.numel()
    values = values_of(array_of(tensor if dense else whole))
    made = f"torch.tensor({values}, dtype={tensor.real.dtype})"
    made = f"torch.view_as_complex({made})" if tensor.is_complex() else made
    if not dense:
        places = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
        made += f".as_strided{places}"
    return made if tensor.device.type == "cpu" else f'{made}.to("{tensor.device}")'


def relaid(tensor: Tensor, layout: str, scale: float = 1.0) -> Tensor:
    """A tensor with other strides; floats times `scale`."""
    held = tensor.detach()
    held = held * scale if scale != 1.0 and floating(held) else held
    return laid_out(held, layout).requires_grad_(tensor.requires_grad)


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same numbers with other strides; see `harness.workers.arrays.lay_out`."""
    if tensor.ndim == 0 or layout == "contiguous":
        return tensor
    if layout == "permuted":
        order = tuple(range(tensor.ndim))[::-1]
        return tensor.permute(order).contiguous().permute(order)
    if layout == "sliced":
        between = torch.nan if floating(tensor) else 0
        shape = (*tensor.shape[:-1], 2 * tensor.shape[-1])
        wide = torch.full(shape, between, dtype=tensor.dtype, device=tensor.device)
        wide[..., 1::2] = tensor  # with a storage offset, as most slices have
        return wide[..., 1::2]
    for axis, length in enumerate(tensor.shape if layout == "expanded" else ()):
        first = tensor.narrow(axis, 0, 1) if length > 1 else tensor
        if length > 1 and bool((tensor == first).all()):
            return first.expand(tensor.shape)
    return tensor


def forward(call: Any, tensors: Sequence[Tensor], wanted: Sequence[bool]) -> Forward:
    """Run a call; autograd says which outputs are differentiable."""
    graph = Graph(call, tensors, wanted)
    followed = tuple(y.requires_grad for y in graph.outputs)
    return Forward(graph.outputs, followed, frozenset(graph.changed_leaves()))


# Why a double backward is wrong -----------------------------------------------------

#: Source code by which a backward leaves autograd's graph.
LEAVES = re.compile(
    r"\.(detach_?|item|tolist|numpy)\(\)|\.data\b|torch\.no_grad\(\)|\bnp\.\w+"
)


def cause_of(call: Any, bound: Bound) -> str:
    """The reason why a second derivative is not the gradient's; "" if unknown."""
    graph = Graph(call, bound.tensors, bound.wanted)
    inputs = [leaf for leaf in graph.leaves if not leaf.requires_grad]
    kept, left = list[str](), list[str]()
    for ctx in runs.nodes_behind(graph.outputs):
        if not isinstance(ctx, torch.autograd.function.BackwardCFunction):
            continue
        saved = {f"saved_tensors[{i}]": t for i, t in enumerate(ctx.saved_tensors)}
        for name, value in {**vars(ctx), **saved}.items():
            outside = floating(value) and not value.requires_grad
            if outside and not any(same(value, given) for given in inputs):
                kept.append(f"ctx.{name}")
        with contextlib.suppress(OSError, TypeError, LookupError):  # no source
            code = inspect.unwrap(vars(type(ctx))["_forward_cls"].backward)
            lines, first = inspect.getsourcelines(code)
            file = Path(inspect.getfile(code)).name
            left += [
                f"{found[0]} in {file}:{number} ({line.strip()})"
                for number, line in enumerate(lines, first)
                for found in LEAVES.finditer(line.partition("#")[0])
            ]
    if kept:
        return (
            f"the double backward treats {', '.join(kept)} as a constant: computed in "
            "the forward, where autograd records nothing. Save the inputs and outputs "
            "themselves, and compute the rest again in the backward"
        )
    cuts = ", ".join([*dict.fromkeys(left)][:3])
    return cuts and (
        f"the backward computes without autograd's graph, with {cuts}: all that "
        "follows from it is a constant to the double backward"
    )


def forks() -> bool:
    """Whether a fork of this process can run PyTorch: no GPU, no compiler, no JAX."""
    threads = {"torch._inductor.async_compile", "jax"} & sys.modules.keys()
    return hasattr(os, "fork") and not (threads or torch.cuda.is_available())


# Binding ----------------------------------------------------------------------------


def bind(
    candidate: Callable[..., Any], reference: Call, tensors: Sequence[Tensor]
) -> Call:
    """The candidate as a function of the tensors of the reference's call.

    A module gets the reference's parameters and buffers, as `loop.matched` has them, a
    plain function after the inputs; ValueError where they do not fit.
    """
    call = replace(reference, function=candidate)
    if not isinstance(candidate, torch.nn.Module):
        require_fit(candidate, (*call.args, *call.state), call.kwargs)
        return call
    require_fit(candidate, call.args, call.kwargs)
    own = tensors[len(tensors) - len(call.state) :]
    return replace(call, state=tuple(matched(candidate, call.state, own)))


def require_fit(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise ValueError for arguments that do not fit a signature, if there is one."""
    takes, ahead = receiver(function)
    try:
        signature = inspect.signature(takes)
    except (TypeError, ValueError):  # of most of PyTorch's own functions
        return
    try:
        signature.bind(*[None] * ahead, *args, **kwargs)
    except TypeError as error:
        code = getattr(inspect.unwrap(takes), "__code__", None)
        at = f" ({code.co_filename}:{code.co_firstlineno})" if code else ""
        name = getattr(takes, "__qualname__", repr(takes))
        raise ValueError(f"{name}{signature}{at}: {error}; {ARGUMENTS}") from None


def observed(
    candidate: Any, given: Sequence[Any], tensors: Sequence[Any], *how: Any
) -> dict[str, Any]:
    """The `runs.observe` of a candidate; `given` are fields of a reference's `Call`."""
    call = bind(candidate, Call(candidate, *given), tensors)
    return vars(observe(call, tensors, *how))


#: The functions that a candidate's process needs to bind the reference's call.
BINDING = require_fit, bind, observed


# Settings -----------------------------------------------------------------------------


def device(name: str) -> str:
    """The name of a device; ValueError where there is none."""
    known("device", name.partition(":")[0], ("cpu", "cuda"))
    if name != "cpu" and not torch.cuda.is_available():
        version = torch.__version__
        raise ValueError(f"PyTorch {version} finds no GPU here: gradwatch doctor")
    return name


def precision(dtype: str) -> contextlib.AbstractContextManager[None]:
    """Set nothing: PyTorch's types need no setting."""
    return contextlib.nullcontext()


@contextlib.contextmanager
def settings(device: str, compute: str | None) -> Iterator[None]:
    """Set PyTorch for all trials; restore the caller's settings afterwards.

    An autocast or no_grad around the check has no effect. Graphs that are compiled
    meanwhile keep their buffers, since a graph is swept more than once.
    """
    has = hasattr(functorch, "donated_buffer")  # older versions keep them anyway
    kept = functorch.patch(donated_buffer=False) if has else contextlib.nullcontext()
    drawn = torch.random.fork_rng([] if device == "cpu" else [device])
    products = _products_on_a_gpu(device, compute)
    on = contextlib.nullcontext() if device == "cpu" else graph.on(device)
    # Small tensors lose by threads, which wait for each other in a loop: on a busy
    # machine three layers of 300 took twenty times the processor time.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with plain_autograd(), threadpool_limits(1, "blas"), products, kept, drawn, on:
            yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def _products_on_a_gpu(device: str, compute: str | None) -> Iterator[None]:
    """Set TF32 only where it is asked for, and sums of 16 bits in float32, as `agree`.

    By default cuDNN's convolutions use TF32, and a right one would be rejected.
    """
    if device == "cpu":
        yield
        return
    wanted = product_settings(compute == "tf32")
    before = [(o, name, _setting(getattr, o, name)) for o, name, _ in wanted]
    general = _setting(torch.get_float32_matmul_precision)
    if general not in ("highest", None):  # or its getter would raise
        torch.set_float32_matmul_precision("highest")
    try:
        for owner, name, value in wanted:
            setattr(owner, name, value)
        yield
    finally:
        if general not in ("highest", None):
            torch.set_float32_matmul_precision(general)
        for owner, name, value in before:
            if value is not None:
                setattr(owner, name, value)


def _setting(read: Callable[..., Any], *given: Any) -> Any:
    """Return a setting; None where PyTorch's two interfaces contradict each other."""
    try:
        return read(*given)
    except RuntimeError:
        return None
