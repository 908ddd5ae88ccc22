"""The tensors that a candidate is tried on: regimes that break kernels."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from gradwatch.harness.check.choice import EDGES, FEW, MANY, numbers, planned
from gradwatch.harness.check.runs import floating
from gradwatch.harness.check.shapes import Spec, Specs, named
from gradwatch.harness.judging.cases import REGIMES, Regime, cotangent
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.impls.catalogue import known

Tensor = torch.Tensor
Admits = Callable[["Trial"], bool]

#: Regimes of which a torch tensor has no form: its strides are never negative.
FOREIGN = ("negative",)
#: The caller's own numbers, handed over in these ways.
HANDED_OVER = (
    *("normal", "permuted", "sliced", "dy_zeros", "dy_large", "dy_expanded"),
    *("large", "tiny"),
)
#: The caller's numbers times these: an eps or a threshold shows elsewhere than at 1.
SCALES = {"large": 1e3, "tiny": 1e-3}


#: What a training loop has and a check by the caller's numbers has not: another batch,
#: a mean loss, parameters that have moved far.
IN_THE_LOOP = {
    "batch": Regime("batch"),
    "mean_loss": Regime("mean_loss", cotangent="mean"),
    "parameters": Regime("parameters"),
}


@dataclass(frozen=True)
class Trial:
    """One call to be judged.

    Attributes:
        name: Such as "mixed 7x33".
        dtype: The precision under test.
        args: What both functions are called with, in the layout of the trial.
        kwargs: Likewise.
        regime: Says how cotangents are made and laid out.
        thorough: Whether everything is run a second time, with other cotangents and
            with some inputs that need no gradient.
        as_given: Whether these are the caller's own shape and ordinary numbers, or
            own inputs. A module then keeps its parameters as they are.
        seed: Of the cotangents and of the parameters.
        device: Where it runs.
        cotangents: In place of those of the regime.
        order: What is judged; see `gradwatch.harness.judging.orders`.
        main: The widest type of what the caller gave, which becomes `dtype`; narrower
            ones stay.
    """

    name: str
    dtype: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    regime: Regime
    thorough: bool = False
    as_given: bool = False
    seed: Sequence[int] = (0,)
    device: str = "cpu"
    cotangents: tuple[Tensor | None, ...] = ()
    order: str = "vjp"
    main: str = ""

    def held(self, tensor: Tensor) -> Tensor:
        """A tensor of the caller's, on the device and in the type of the trial."""
        return moved(tensor, self.dtype, self.main, self.device)

    @property
    def edge(self) -> bool:
        """Whether the numbers lie where most functions promise nothing."""
        return self.regime.name in EDGES

    def tangent(self, like: Tensor, place: int) -> Tensor:
        """A tangent for one input: random and signed."""
        rng = np.random.default_rng([*self.seed, 3, place])
        values = np.asarray(rng.standard_normal(tuple(like.shape)))
        return torch.from_numpy(values).to(like.dtype).to(like.device)

    def cotangent(self, like: Tensor, place: int) -> Tensor | None:
        """A cotangent for one output: of the regime, where `cotangents` has none."""
        if self.cotangents:
            return self.cotangents[place]
        rng = np.random.default_rng([*self.seed, 1, place])
        values = cotangent(rng, tuple(like.shape), self.regime.cotangent)
        made = torch.from_numpy(values).to(like.dtype).to(like.device)
        return laid_out(made, self.regime.cotangent_layout)


def torch_dtype(name: str) -> torch.dtype:
    """PyTorch's dtype of one of our precisions.

    Raises:
        UnknownName: There is none.
    """
    dtype: torch.dtype = getattr(torch, known("dtype", name, PRECISIONS))
    return dtype


def moved(tensor: Tensor, dtype: str, main: str, device: str) -> Tensor:
    """A tensor on a device, and of type `dtype` if it is of type `main`."""
    held = tensor.detach().to(device)
    return held.to(torch_dtype(dtype)) if held.dtype == torch_dtype(main) else held


def precision_of(values: Any) -> str:
    """The widest precision among the floats of some arguments; else float32."""
    names = [
        str(t.dtype).removeprefix("torch.") for t in tree_leaves(values) if floating(t)
    ]
    ours = [name for name in names if name in PRECISIONS]
    return max(ours, key=lambda n: PRECISIONS[n].digits, default="float32")


def laid_out(tensor: Tensor, layout: str) -> Tensor:
    """The same numbers with other strides; see `harness.workers.arrays.lay_out`."""
    if tensor.ndim == 0 or layout == "contiguous":
        return tensor
    if layout == "permuted":
        order = tuple(range(tensor.ndim))[::-1]
        return tensor.permute(order).contiguous().permute(order)
    if layout == "sliced":
        between = torch.nan if tensor.is_floating_point() else 0
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


# Trials from shapes ---------------------------------------------------------------


def from_shapes(
    specs: Specs,
    dtype: str,
    *,
    kwargs: Mapping[str, Any],
    seed: int,
    device: str,
    main: str,
    pinned: Sequence[int],
    admits: Admits,
    runs: Admits,
    costly: Admits,
    notes: list[str],
) -> Iterator[Trial]:
    """The trials of some shapes; see `choice.planned`."""
    known("dtype", dtype, PRECISIONS)
    maker = _Maker(dtype, dict(kwargs), seed, device, main)
    yield from planned(
        maker.trial, specs, pinned, admits, runs, costly, notes, foreign=FOREIGN
    )


@dataclass
class _Maker:
    dtype: str
    kwargs: dict[str, Any]
    seed: int
    device: str
    main: str

    def trial(
        self,
        regime: Regime,
        specs: Specs,
        thorough: bool = False,
        as_given: bool = False,
    ) -> Trial:
        name = f"{regime.name} {named(specs)}"
        seed = (self.seed, zlib.crc32(f"{name} {self.dtype}".encode()))
        rng = np.random.default_rng(seed)
        floats = [i for i, spec in enumerate(specs) if spec.kind == "float"]
        args = tuple(
            self._made(rng, spec, regime, regime.first_only and i not in floats[:1])
            for i, spec in enumerate(specs)
        )
        return Trial(
            name,
            self.dtype,
            args,
            self.kwargs,
            regime,
            thorough,
            as_given,
            seed,
            self.device,
            main=self.main,
        )

    def _made(
        self, rng: np.random.Generator, spec: Spec, regime: Regime, plain: bool
    ) -> Tensor:
        values = numbers(rng, spec, regime, plain, PRECISIONS[self.dtype])
        made = torch.from_numpy(values)
        if spec.kind == "float":
            made = made.to(torch_dtype(self.dtype))
        return laid_out(made.to(self.device), regime.layout)


# Trials from the caller's own inputs ------------------------------------------------


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
        described = label if name == "normal" else f"{label}, {name}"
        seeds = (seed, zlib.crc32(f"{described} {dtype}".encode()))
        plain = name == "normal"
        return Trial(
            *(described, dtype, laid, kwargs, regime, plain, plain, seeds, device),
            main=main,
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
    if regime.name in SCALES and held.is_floating_point():
        held = held * SCALES[regime.name]
    return laid_out(held, regime.layout).requires_grad_(value.requires_grad)
