"""The tensors that a candidate is tried on: regimes that break kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from gradwatch.harness.check.choice import (
    FEW,
    HANDED_OVER,
    MANY,
    SCALES,
    Drawn,
    identity,
    widest,
)
from gradwatch.harness.check.runs import floating, numbers
from gradwatch.harness.check.shapes import Specs
from gradwatch.harness.judging.cases import REGIMES, Regime
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.impls.catalogue import known

Tensor = torch.Tensor
Admits = Callable[["Trial"], bool]

#: Regimes of which a torch tensor has no form: its strides are never negative.
FOREIGN = ("negative",)

#: What a training loop has and a check by the caller's numbers has not: another batch,
#: a mean loss, parameters that have moved far.
IN_THE_LOOP = {
    "batch": Regime("batch"),
    "mean_loss": Regime("mean_loss", cotangent="mean"),
    "parameters": Regime("parameters"),
}


@dataclass(frozen=True, kw_only=True)
class Trial(Drawn):
    """One call to be judged.

    Attributes:
        args: What both functions are called with, in the layout of the trial.
        kwargs: Likewise.
        device: Where it runs.
        cotangents: In place of those of the regime.
        order: What is judged; see `gradwatch.harness.judging.orders`.
        main: The widest type of what the caller gave, which becomes `dtype`; narrower
            ones stay.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    device: str = "cpu"
    cotangents: tuple[Tensor | None, ...] = ()
    order: str = "vjp"
    main: str = ""

    def held(self, tensor: Tensor) -> Tensor:
        """A tensor of the caller's, on the device and in the type of the trial."""
        return moved(tensor, self.dtype, self.main, self.device)

    def tangent(self, like: Tensor, place: int) -> Tensor:
        """A tangent for one input: random and signed."""
        values = self.drawn_tangent(numbers(like).shape, place)
        return filled(values, like)

    def cotangent(self, like: Tensor, place: int) -> Tensor | None:
        """A cotangent for one output: of the regime, where `cotangents` has none."""
        if self.cotangents:
            return self.cotangents[place]
        values = self.drawn_cotangent(numbers(like).shape, place)
        return laid_out(filled(values, like), self.regime.cotangent_layout)


def filled(values: Any, like: Tensor) -> Tensor:
    """A tensor of the type of another one, of the values that `numbers` has."""
    made = torch.from_numpy(values)
    made = torch.complex(*made.unbind(-1)) if like.is_complex() else made
    return made.to(like.dtype).to(like.device)


def torch_dtype(name: str) -> torch.dtype:
    """PyTorch's dtype of one of our precisions.

    Raises:
        UnknownName: There is none.
    """
    dtype: torch.dtype = getattr(torch, known("dtype", name, PRECISIONS))
    return dtype


def moved(tensor: Tensor, dtype: str, main: str, device: str) -> Tensor:
    """A tensor on a device, and of type `dtype` if it is of type `main`."""
    held = tensor.detach().to(device).resolve_conj()
    if held.is_complex() and held.real.dtype == torch_dtype(main):
        return paired(numbers(held), dtype)
    return held.to(torch_dtype(dtype)) if held.dtype == torch_dtype(main) else held


def paired(parts: Tensor, dtype: str) -> Tensor:
    """Complex numbers of real ones, whose last axis has the two parts.

    Raises:
        ValueError: PyTorch has none of that precision.
    """
    if dtype == "bfloat16":
        raise ValueError(f"PyTorch has no complex numbers of {dtype}")
    return torch.complex(*parts.to(torch_dtype(dtype)).unbind(-1))


def precision_of(values: Any) -> str:
    """The widest precision among the floats of some arguments; else float32."""
    floats = filter(floating, tree_leaves(values))
    return widest(str(t.real.dtype).removeprefix("torch.") for t in floats)


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
        wide[..., ::2] = tensor
        return wide[..., ::2]
    constant = (i for i, n in enumerate(tensor.shape) if n > 1 and _constant(tensor, i))
    for axis in constant:
        return tensor.narrow(axis, 0, 1).expand(tensor.shape)
    return tensor


def _constant(tensor: Tensor, axis: int) -> bool:
    return bool((tensor == tensor.narrow(axis, 0, 1)).all())


def from_arrays(
    arrays: Sequence[Any],
    specs: Specs,
    *,
    kwargs: Mapping[str, Any],
    device: str,
    main: str,
    **identity: Any,
) -> Trial:
    """A trial of numbers that were made here; see `choice.planned`."""
    dtype, layout = torch_dtype(identity["dtype"]), identity["regime"].layout
    made = []
    for tensor, spec in zip(map(torch.from_numpy, arrays), specs, strict=True):
        if spec.kind == "complex":
            tensor = paired(tensor, identity["dtype"])
        elif spec.kind == "float":
            tensor = tensor.to(dtype)
        made.append(laid_out(tensor.to(device), layout))
    return Trial(args=tuple(made), kwargs=kwargs, device=device, main=main, **identity)


def from_inputs(
    args: Sequence[Any],
    dtype: str,
    *,
    kwargs: Mapping[str, Any],
    seed: int,
    device: str,
    costly: Admits,
    main: str,
    label: str = "given",
    admits: Admits | None = None,
) -> Iterator[Trial]:
    """The caller's numbers as they are, in several layouts, with several cotangents.

    Where that would take long, two of them have to do. With `admits` come those of
    `IN_THE_LOOP`, as far as it takes them.
    """

    def held(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        return moved(value, dtype, main, device).requires_grad_(value.requires_grad)

    args, kwargs = tree_map(held, tuple(args)), tree_map(held, dict(kwargs))
    size = sum(t.numel() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor))

    def trial(name: str) -> Trial:
        regime = IN_THE_LOOP.get(name) or REGIMES[name]
        laid = tree_map(lambda v: _relaid(v, regime), args)
        if name == "batch":
            laid = _another_batch(laid, np.random.default_rng(seed))
        plain = name == "normal"
        described = label if plain else f"{label}, {name}"
        return Trial(
            args=laid,
            kwargs=kwargs,
            device=device,
            main=main,
            **identity(described, dtype, regime, seed, plain, plain),
        )

    first = trial("normal")
    yield first
    few = size > MANY or costly(first)
    yield from map(trial, (FEW if few else HANDED_OVER)[1:])
    yield from filter(admits, map(trial, IN_THE_LOOP)) if admits else ()


def _another_batch(args: Any, rng: np.random.Generator) -> Any:
    """Rows of the arguments, drawn with replacement; fewer or more than there are."""
    batches = [len(t) for t in tree_leaves(args) if isinstance(t, Tensor) and t.ndim]
    if not batches or not batches[0]:
        return args
    other = rng.choice([n for n in range(1, 2 * batches[0] + 2) if n != batches[0]])
    rows = torch.from_numpy(rng.integers(batches[0], size=other))

    def drawn(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.ndim or len(value) != batches[0]:
            return value
        taken = value.detach()[rows.to(value.device)]
        return taken.requires_grad_(value.requires_grad)

    return tree_map(drawn, args)


def _relaid(value: Any, regime: Regime) -> Any:
    if not isinstance(value, Tensor):
        return value
    held = value.detach()
    if regime.name in SCALES and floating(held):
        held = held * SCALES[regime.name]
    return laid_out(held, regime.layout).requires_grad_(value.requires_grad)
