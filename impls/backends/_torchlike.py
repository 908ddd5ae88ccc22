"""PyTorch's interface as the ops see it: one adapter for every framework that has it.

A backend file passes its framework in, already imported: TorchLike(torch, "autograd").
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import numpy as np

from impls.contract import Array, Problem, Result, Unsupported, as_tuple


class TorchLike:
    """A backend of a framework with torch's tensors, autograd and Function."""

    def __init__(self, F: Any, dialect: str) -> None:
        self.F = F
        self.framework = F.__name__
        self.dialect = dialect
        # PyTorch says None of an input without a gradient; OneFlow 0.9.0 cannot.
        known = inspect.signature(F.autograd.grad).parameters
        self.unused = {"allow_unused": True} if "allow_unused" in known else {}

    def version(self) -> str:
        """The framework's version."""
        return str(self.F.__version__)

    def missing(self, device: str) -> str:
        """Why a device cannot be used; empty where it can."""
        if device == "cpu" or self.F.cuda.is_available():
            return ""
        return f"{self.framework} sees no CUDA device here"

    def prepare(self, problem: Problem) -> TorchLikeStep:
        """Tensors on the device, and the op's dialect bound to its attributes."""
        said = problem.op.said(self.dialect, self.framework)
        call = getattr(self, f"_{self.dialect}")(said, dict(problem.attributes))
        return TorchLikeStep(self, problem, call)

    def _autograd(self, said: Any, attributes: dict[str, Any]) -> Any:
        return partial(said, self.F, **attributes)

    def _formula(self, said: Any, attributes: dict[str, Any]) -> Any:
        return partial(said, ArrayNames(self.F), **attributes)

    def _custom(self, said: Any, attributes: dict[str, Any]) -> Any:
        return as_function(self.F, said, attributes).apply


def as_function(F: Any, said: type, attributes: dict[str, Any]) -> Any:
    """Make a plain class with static forward and backward a Function of `F`.

    Attributes are bound beforehand: OneFlow's `apply` takes tensors alone.
    """
    methods = {
        name: staticmethod(partial(getattr(said, name), **attributes))
        for name in ("forward", "backward")
    }
    return type(said.__name__, (F.autograd.Function,), methods)


class TorchLikeStep:
    """A problem as tensors of the framework; see `impls.contract.Step`."""

    def __init__(self, backend: TorchLike, problem: Problem, call: Any) -> None:
        self.F, self.unused = backend.F, backend.unused
        self.problem, self.call = problem, call
        self.pure = backend.dialect == "formula"
        self.dtype = getattr(self.F, problem.dtype)
        self.inputs = {
            n: self._tensor(a.copy() if n in problem.op.state else a)
            for n, a in problem.inputs.items()
        }
        self.wanted = [self.inputs[n].requires_grad_() for n in problem.wanted]
        self.cotangents = [
            self._tensor(array)
            for name, array in zip(problem.op.outputs, problem.cotangents, strict=True)
            if name not in problem.op.integers and array is not None
        ]

    def _tensor(self, array: Array) -> Any:
        """Keeps strides, and the memory too where dtype and device allow."""
        if min(array.strides, default=0) < 0:
            raise Unsupported(f"{self.F.__name__} has no negative strides")
        tensor = self.F.from_numpy(array)
        constant = array.dtype.kind in "biu"  # a target, an index, a mask
        return (tensor if constant else tensor.to(self.dtype)).to(self.problem.device)

    def forward(self) -> None:
        """Run the forward pass; the framework records its graph."""
        returned = as_tuple(self.call(*self.problem.arguments(self.inputs)))
        op = self.problem.op
        self.outputs = dict(zip(op.outputs, returned, strict=False))
        new_state = returned[len(op.outputs) :] if self.pure else ()
        self.state = dict(zip(op.state, new_state, strict=False))

    def backward(self) -> None:
        """Run the backward pass, keeping the graph for another."""
        integers = self.problem.op.integers
        floating = [y for name, y in self.outputs.items() if name not in integers]
        self.gradients = self.F.autograd.grad(
            floating, self.wanted, self.cotangents, retain_graph=True, **self.unused
        )

    def wait(self) -> None:
        """Wait for the GPU; OneFlow's door adds what its CPU needs."""
        if self.problem.device != "cpu":
            self.F.cuda.synchronize()

    def read(self) -> Result:
        """Outputs, gradients and state as NumPy arrays."""
        state = {n: self.state.get(n, self.inputs[n]) for n in self.problem.op.state}
        gradients = dict(zip(self.problem.wanted, self.gradients, strict=True))
        everything = {**self.outputs, **state}
        everything.update({f"d{name}": g for name, g in gradients.items()})
        return Result(
            outputs={n: self._array(y) for n, y in self.outputs.items()},
            gradients={
                f"d{n}": None if g is None else self._array(g)
                for n, g in gradients.items()
            },
            state={n: self._array(s) for n, s in state.items()},
            dtypes={
                n: str(t.dtype).rpartition(".")[2]
                for n, t in everything.items()
                if t is not None
            },
        )

    def _array(self, tensor: Any) -> Array:
        tensor = tensor.detach().cpu()
        if "bfloat16" in str(tensor.dtype):  # NumPy has none; float32 holds it exactly
            tensor = tensor.to(self.F.float32)
        return np.array(tensor.numpy())


class ArrayNames:
    """The array API's names over torch's, as far as formulas use them."""

    def __init__(self, F: Any) -> None:
        self.F = F

    def __getattr__(self, name: str) -> Any:
        return getattr(self.F, name)

    def exp2(self, x: Any) -> Any:
        """OneFlow 0.9.0 has no exp2."""
        return self.F.exp2(x) if hasattr(self.F, "exp2") else self.F.pow(2.0, x)

    def sum(self, x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
        """Sum over an axis, several, or all."""
        axes = tuple(range(x.ndim)) if axis is None else axis
        return self.F.sum(x, dim=axes, keepdim=keepdims) if axes != () else x

    def mean(self, x: Any, *, axis: Any = None, keepdims: bool = False) -> Any:
        """Mean over an axis, several, or all."""
        axes = tuple(range(x.ndim)) if axis is None else axis
        return self.F.mean(x, dim=axes, keepdim=keepdims) if axes != () else x

    def max(self, x: Any, *, axis: int, keepdims: bool = False) -> Any:
        """Largest element along an axis."""
        return self.F.max(x, dim=axis, keepdim=keepdims)[0]

    def argmax(self, x: Any, *, axis: int) -> Any:
        """Index of the largest element along an axis."""
        return self.F.argmax(x, dim=axis)

    def permute_dims(self, x: Any, axes: tuple[int, ...]) -> Any:
        """The axes in another order."""
        return self.F.permute(x, axes)

    def broadcast_to(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Copies along new axes and along those of length 1."""
        return x.expand(*shape)

    def stop_gradient(self, x: Any) -> Any:
        """The same values, as a constant."""
        return x.detach()
