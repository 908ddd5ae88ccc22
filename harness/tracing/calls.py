"""A function, its arguments and a module's state as a function of tensors alone."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

Tensor = torch.Tensor


def state_of(function: Any) -> dict[str, Tensor]:
    """A module's parameters and buffers by name; a plain function has none."""
    if not isinstance(function, torch.nn.Module):
        return {}
    return {**dict(function.named_parameters()), **dict(function.named_buffers())}


@contextlib.contextmanager
def held(module: torch.nn.Module, state: Mapping[str, Tensor]) -> Iterator[None]:
    """Give a module other parameters and buffers; its own are restored afterwards."""
    for name, _ in module.named_parameters():
        if name in state:
            state[name]._is_param = True  # by which isinstance takes it for a Parameter
    tables = [(vars(part), dict(vars(part))) for part in module.modules()]
    try:
        swapped = torch.nn.utils.stateless._reparametrize_module
        with swapped(module, dict(state), tie_weights=True):
            yield
    finally:
        for table, before in tables:
            table.clear()
            table.update(before)


@dataclass(frozen=True)
class Call:
    """A function of tensors alone: the tensors among its arguments, then its state.

    `state` names the tensors that replace a module's parameters and buffers. Each call
    starts from `draws`: the states of generators, None being PyTorch's own. They stay
    where the call leaves them, so that a backward that draws again gets other numbers.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    state: tuple[str, ...] = ()
    draws: Mapping[torch.Generator | None, Tensor] = field(default_factory=dict)
    results: tuple[str, ...] = ()

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors in the function's result; those with names as in `results`."""
        out, place = self.returned(*tensors), self.results.index
        if isinstance(out, Mapping) and {*self.results} >= {*map(str, out)}:
            out = [out[name] for name in sorted(out, key=lambda name: place(str(name)))]
        return tuple(tensors_in(out))

    def returned(self, *tensors: Tensor) -> Any:
        """The function's own result."""
        set_draws(self.draws)
        flat, spec = tree_flatten((self.args, dict(self.kwargs)))
        given = iter(tensors)
        flat = [next(given) if isinstance(v, Tensor) else v for v in flat]
        args, kwargs = tree_unflatten(flat, spec)
        with self.holding(tensors):
            own = () if isinstance(self.function, torch.nn.Module) else given
            return self.function(*args, *own, **kwargs)

    def holding(self, tensors: Sequence[Tensor]) -> Any:
        """A context with a module's state from these: a backward may run it again."""
        if not isinstance(self.function, torch.nn.Module):
            return contextlib.nullcontext()
        own = tensors[len(tensors) - len(self.state) :]
        state, has = dict(zip(self.state, own, strict=True)), state_of(self.function)
        if state and all(has[name] is tensor for name, tensor in state.items()):
            return contextlib.nullcontext()  # an enclosing call has set the state
        return held(self.function, state)


def receiver(function: Any) -> tuple[Callable[..., Any], int]:
    """The code that gets a call's arguments, and how many come before these: ctx."""
    owner = getattr(function, "__self__", None)
    if not (inspect.isclass(owner) and issubclass(owner, torch.autograd.Function)):
        return getattr(function, "forward", function), 0
    has_ctx = owner.setup_context is torch.autograd.Function.setup_context
    return owner.forward, int(has_ctx)


def set_draws(states: Mapping[torch.Generator | None, Tensor]) -> None:
    """Set the states of generators."""
    for generator, state in states.items():
        (generator or torch.default_generator).set_state(state)


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors in a tree of lists, dictionaries and dataclasses, in order."""
    found: list[Tensor] = []
    for value in tree_leaves(tree):
        if isinstance(value, Tensor):
            found.append(value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            found += tensors_in([getattr(value, f.name) for f in fields(value)])
    return found
