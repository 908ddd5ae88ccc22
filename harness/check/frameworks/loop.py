"""A training loop that takes its batches by request and reports on every step.

It runs as a script of its own and needs PyTorch alone, so that a candidate cannot tell
it from anybody's training.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.util
import os
import pickle
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

Tensor = torch.Tensor
Tensors = list["Tensor | None"]

#: Losses of an output and of random numbers of its shape.
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "squares": lambda y, target: (y - target).square().sum(),
    "sum": lambda y, _: y.sum(),
    "falling sum": lambda y, _: -y.sum(),
    "weighted sum": lambda y, weights: (y * weights).sum(),
    "first element": lambda y, _: y.flatten()[:1].sum(),
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "SGD": lambda learned, lr: torch.optim.SGD(learned, lr, momentum=0.9),
    "AdamW": torch.optim.AdamW,
}
#: Steps between two validations.
VALIDATES = 25
#: PyTorch's default number of threads.
THREADS = torch.get_num_threads()
#: The file descriptor of the pipe to the process that runs this script.
PIPE = 3


def loaded(folder: str, name: str, init: Mapping[str, Any] | None = None) -> Any:
    """The object of a name: "file.py:name", "module:name" or a dotted one.

    Classes of modules are constructed, with the arguments `init`.
    """
    sys.path.insert(0, folder)
    file, _, path = name.partition(":")
    if file.endswith(".py"):
        stem = os.path.splitext(os.path.basename(file))[0]
        spec = importlib.util.spec_from_file_location(stem, file)
        assert spec is not None
        assert spec.loader is not None
        held: Any = importlib.util.module_from_spec(spec)
        sys.modules[stem] = held
        spec.loader.exec_module(held)
        for part in path.split("."):
            held = getattr(held, part)
    else:
        held = pkgutil.resolve_name(name)
    if isinstance(held, type) and issubclass(held, torch.autograd.Function):
        return held.apply
    if not isinstance(held, type):
        return held
    torch.manual_seed(0)
    given = init or {}
    return held(*given.get("args", ()), **given.get("kwargs", {}))


class Training:
    """A module or function that is trained, stage by stage."""

    def __init__(self, model: Any) -> None:
        self.model, self.before, self.steps = model, Tensors(), 0
        self.known = dict(globals())

    def stage(self, asked: Mapping[str, Any]) -> dict[str, Tensors]:
        """Begin a stage: set its data, its initial parameters and its optimiser."""
        self.asked, device = asked, asked["device"]
        self.before = []
        torch.manual_seed(asked["seed"])
        torch.set_num_threads(1 if asked["one_thread"] else THREADS)
        self.noise = torch.Generator(device).manual_seed(asked["seed"])
        self.data = tree_map_only(
            Tensor, lambda v: v.detach().clone().to(device), asked["data"]
        )
        self.tables = [v for v in tree_leaves(self.data) if isinstance(v, Tensor)]
        for table, follows in zip(self.tables, asked["follows"], strict=True):
            table.requires_grad_(follows)
        starts = [t.detach().clone().to(device) for t in asked["state"]]
        if isinstance(self.model, torch.nn.Module):
            self.model.to(device).train(asked["train"])
            own, names = _own(self.model), asked["names"]
            self.state = [own[name] for name in matched(self.model, names, starts)]
            for tensor, start in zip(self.state, starts, strict=True):
                tensor.grad = None
                if tensor.dtype != start.dtype:
                    tensor.data = tensor.data.to(start.dtype)
                with torch.no_grad():
                    tensor.copy_(start)
        else:
            pairs = zip(starts, asked["learned"], strict=True)
            self.state = [start.requires_grad_(learned) for start, learned in pairs]
        learned = [t for t in (*self.state, *self.tables) if t.requires_grad]
        self.optimizer = OPTIMIZERS[asked["optimizer"]](learned, lr=asked["lr"])
        return {}

    def step(self, rows: Sequence[int], seed: int | None) -> dict[str, Tensors]:
        """Run a step of the optimiser; return its inputs, outputs and gradients."""
        self.optimizer.zero_grad(set_to_none=self.asked["grad"] != "zeros")
        pairs = zip(self.tables, self.asked["by_rows"], strict=True)
        given = [t[rows] if by else t.clone() for t, by in pairs]
        if self.asked["grad"] == "added up":
            # To -1/2 of the gradients to come, so that sum and difference are exact.
            noise = self.noise.get_state()
            self._swept(given, rows, seed)
            self.noise.set_state(noise)
            for t in (*self.tables, *self.state):
                t.grad = None if t.grad is None else -t.grad / 2
        said = self._swept(given, rows, seed)
        self.optimizer.step()
        self.steps += 1
        if self.steps % VALIDATES == 0:
            self._validate()
        return said

    def _swept(
        self, given: Sequence[Tensor], rows: Sequence[int], seed: int | None
    ) -> dict[str, Tensors]:
        """Run forward and backward; return their inputs, outputs and gradients."""
        self.before, new = copies((*given, *self.state)), iter(given)
        args, kwargs = tree_map_only(Tensor, lambda _: next(new), self.data)
        own = () if isinstance(self.model, torch.nn.Module) else self.state
        self.called = (*args, *own), kwargs
        if seed is not None:
            torch.manual_seed(seed)
        found = tree_leaves(self.model(*args, *own, **kwargs))
        ys = [y for y in found if isinstance(y, Tensor)][: self.asked["count"]]
        odd = [type(y).__name__ for y in ys if type(y) is not Tensor]
        if odd:
            raise TypeError(f"returned {', '.join(odd)}, no tensor")
        every = *self.tables, *self.state
        filled = [None if t.grad is None else t.grad.clone() for t in every]
        outputs, cotangents = copies(ys), self._backward(ys)
        after, gradients = copies((*given, *self.state)), Tensors()
        by_rows = (*self.asked["by_rows"], *[False] * len(self.state))
        for t, before, by in zip(every, filled, by_rows, strict=True):
            added = t.grad if t.grad is None or before is None else t.grad - before
            gradients.append(added[rows] if by and added is not None else added)
        return {
            "tensors": self.before,
            "outputs": outputs,
            "cotangents": copies(cotangents),
            "gradients": copies(gradients),
            "after": after,
        }

    def _validate(self) -> None:
        """Reload the model's state and call it without gradients, as between epochs.

        A copy of the model stays alive, like one that averages the weights.
        """
        args, kwargs = self.called
        is_module, trains = isinstance(self.model, torch.nn.Module), self.asked["train"]
        if is_module:
            self.model.load_state_dict(self.model.state_dict())
            with contextlib.suppress(Exception):  # not every module can be copied
                self.copied = copy.deepcopy(self.model)
            self.model.eval()
        with torch.no_grad():
            self.model(*args, **kwargs)
        if is_module:
            self.model.train(trains)

    def started(self) -> dict[str, Tensors]:
        """The inputs and the state at the beginning of the last step."""
        return {"tensors": self.before}

    def observe(self, text: str, *given: Any) -> Any:
        """The result of `observed`, a function that the text defines, for the model."""
        if "observed" not in self.known:
            exec(text, self.known)
        return self.known["observed"](self.model, *given)

    def _backward(self, ys: Sequence[Tensor]) -> Tensors:
        """Run the backward of a loss of the outputs; return the outputs' cotangents."""
        loss, weight = LOSSES[self.asked["loss"]], self.asked["weight"]
        floats = [y.is_floating_point() or y.is_complex() for y in ys]
        ends = [y for y, follows in zip(ys, floats, strict=True) if follows]
        drawn = {"generator": self.noise, "dtype": self.asked["drawn"]}
        noise = [
            torch.randn(parts(y).shape, device=y.device, **drawn).to(parts(y).dtype)
            for y in ends
        ]

        def total(outputs: Sequence[Tensor]) -> Tensor:
            pairs = zip(outputs, noise, strict=True)
            losses = [weight * loss(parts(y), drawn) for y, drawn in pairs]
            if self.asked["is_mean"]:
                sizes = (max(1, y.numel()) for y in outputs)
                losses = [one / n for one, n in zip(losses, sizes, strict=True)]
            return torch.stack([one.double() for one in losses]).sum()

        apart = [y.detach().clone().requires_grad_() for y in ends]
        flowing = iter(torch.autograd.grad(total(apart), apart) if apart else ())
        with warnings.catch_warnings():  # of a reference cycle until the next step
            warnings.simplefilter("ignore", UserWarning)
            how, end = self.asked["grad"], total(ends)
            kept, again = how in ("added up", "differentiable"), how == "differentiable"
            torch.autograd.backward(end, retain_graph=kept, create_graph=again)
        return [next(flowing) if follows else None for follows in floats]


def _own(module: torch.nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def matched(
    module: torch.nn.Module, names: Sequence[str], tensors: Sequence[Tensor]
) -> list[str]:
    """The names of a module's own tensors, in the order of the reference's.

    By name, or in order where the names differ; ValueError where shapes differ, too.
    """
    own = _own(module)
    mine = {name.removeprefix("_orig_mod."): name for name in own}
    made = (own[mine[name]] for name in mine.keys() - {*names})  # buffers, as it runs
    if mine.keys() >= {*names} and not any(t.requires_grad for t in made):
        pairs = [(own[mine[n]], t.shape) for n, t in zip(names, tensors, strict=True)]
        if all(is_lazy(p) or p.shape == s or not p.requires_grad for p, s in pairs):
            return [mine[name] for name in names]
    has = {n: tuple(t.shape) for n, t in own.items()}
    expected = {n: tuple(t.shape) for n, t in zip(names, tensors, strict=True)}
    if list(has.values()) == list(expected.values()):
        return list(own)
    raise ValueError(
        f"the candidate's parameters are not the reference's: {_listed(has)}; expected "
        f"{_listed(expected)} (which a plain function is given after its inputs)"
    )


def _listed(shapes: Mapping[str, Sequence[int]]) -> str:
    named = (f"{n} {'x'.join(map(str, s))}" for n, s in shapes.items())
    return ", ".join(named) or "none"


def parts(tensor: Tensor) -> Tensor:
    """A tensor as real numbers; a complex one gets a last axis of its two parts."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def copies(tensors: Iterable[Tensor | None]) -> Tensors:
    """Copies that later steps do not change."""
    return [None if t is None else t.detach().clone() for t in tensors]


def packed(value: Any) -> Any:
    """A tensor as its type, its shape and its bytes; any other value as it is."""
    if not isinstance(value, Tensor):
        return value
    held = value.detach().cpu().resolve_conj().resolve_neg()
    flat = torch.empty(held.numel(), dtype=held.dtype)  # one element has any stride
    flat.copy_(held.reshape(-1))
    content = flat.view(torch.uint8).numpy().tobytes()
    return {"dtype": str(held.dtype), "shape": list(held.shape), "content": content}


def main() -> None:
    """Answer requests: first to load a candidate, then for stages and steps."""
    pipe, training = Connection(PIPE), Training(None)
    while True:
        try:
            what, *given = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        try:
            if what == "load":
                training = Training(model := loaded(*given))
                found = [*_own(model)] if isinstance(model, torch.nn.Module) else []
            else:
                found = getattr(training, what)(*given)
            said = {"found": tree_map(packed, found)}
        except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises
            raised = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0]
            said = {"raised": raised}
        pipe.send_bytes(pickle.dumps(said))


if __name__ == "__main__":
    main()
