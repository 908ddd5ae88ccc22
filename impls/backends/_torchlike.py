"""One adapter for every framework with PyTorch's interface.

A backend file passes its framework, already imported: TorchLike(torch, "autograd").
"""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gradwatch.impls.backends._torchlike_names import ArrayNames
from gradwatch.impls.contract import Array, Problem, Result, Unsupported, as_tuple


class TorchLike:
    """A backend of a framework with torch's tensors, autograd and Function."""

    def __init__(self, F: Any, dialect: str) -> None:
        self.F = F
        self.framework = F.__name__
        self.dialect = dialect
        # PyTorch returns None for an input without a gradient; OneFlow 0.9.0 cannot.
        known = inspect.signature(F.autograd.grad).parameters
        self.unused = {"allow_unused": True} if "allow_unused" in known else {}

    def version(self) -> str:
        """The framework's version."""
        return str(self.F.__version__)

    def missing(self, device: str) -> str:
        """Why a device cannot be used; "" if it can."""
        if device == "cpu" or self.F.cuda.is_available():
            return ""
        return f"{self.framework} sees no CUDA device here"

    def prepare(self, problem: Problem) -> TorchLikeStep:
        """Make tensors on the device, and bind the op's dialect to its attributes."""
        version = self.version()
        said = problem.op.said(self.dialect, self.framework, version=version)
        if problem.order == "hvp" and getattr(said, ONCE, False):
            raise Unsupported("the page's backward is declared once differentiable")
        call = getattr(self, f"_{self.dialect}")(said, dict(problem.attributes))
        return TorchLikeStep(self, problem, call)

    def _autograd(self, said: Any, attributes: dict[str, Any]) -> Any:
        return partial(said, self.F, **attributes)

    def _formula(self, said: Any, attributes: dict[str, Any]) -> Any:
        return partial(said, ArrayNames(self.F), **attributes)

    def _custom(self, said: Any, attributes: dict[str, Any]) -> Any:
        return as_function(self.F, said, attributes).apply


#: The attribute of a page's class whose backward uses intermediate values of the
#: forward: autograd takes them for constants, and a second derivative would be wrong.
ONCE = "once_differentiable"


def as_function(F: Any, said: type, attributes: dict[str, Any]) -> Any:
    """Make a plain class with static forward and backward a Function of `F`.

    Attributes are bound beforehand, because OneFlow's `apply` accepts only tensors.
    """
    methods = {
        name: staticmethod(partial(getattr(said, name), **attributes))
        for name in ("forward", "backward", "jvp")
        if hasattr(said, name)
    }
    return type(said.__name__, (F.autograd.Function,), methods)


class TorchLikeStep:
    """A problem as tensors of the framework; see `gradwatch.impls.contract.Step`."""

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
        """A tensor with the array's strides; shares its memory where possible."""
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

    def jvp(self) -> Result:
        """Forward mode, by dual numbers: `torch.func.jvp` is made of them, too."""
        with self._forward_mode() as dual:
            inputs = {**self.inputs, **self._duals(dual)}
            returned = as_tuple(self.call(*self.problem.arguments(inputs)))
            outputs = dict(zip(self.problem.op.outputs, returned, strict=False))
            names = self.problem.differentiated
            tangents = [dual.unpack_dual(outputs[name]).tangent for name in names]
        return self._derivatives(tangents)

    def _duals(self, dual: Any) -> dict[str, Any]:
        """Copies where elements share memory, which a tangent beside them cannot."""
        tangents = self.problem.tangents
        return {
            name: dual.make_dual(
                x.detach().contiguous() if 0 in x.stride() else x.detach(),
                self._tensor(tangents[name]),
            )
            for name, x in zip(self.problem.wanted, self.wanted, strict=True)
        }

    @contextlib.contextmanager
    def _forward_mode(self) -> Iterator[Any]:
        dual = getattr(self.F.autograd, "forward_ad", None)
        if dual is None:
            raise Unsupported(f"{self.F.__name__} has no forward mode")
        with refusals(), dual.dual_level(), warnings.catch_warnings():
            # PyTorch's own import, at its first dual number.
            warnings.simplefilter("ignore", DeprecationWarning)
            yield dual

    def hvp(self) -> Result:
        """The double backward, through a backward that records its own graph."""
        self.forward()
        outputs = [self.outputs[name] for name in self.problem.differentiated]
        cotangents = [dy.requires_grad_() for dy in self.cotangents]
        sources = [*self.wanted, *cotangents]
        with refusals():
            first = self.F.autograd.grad(
                outputs, self.wanted, cotangents, create_graph=True, **self.unused
            )
            along = [
                self._tensor(self.problem.tangents[n]) for n in self.problem.wanted
            ]
            pairs = [
                (dx, v)
                for dx, v in zip(first, along, strict=True)
                if dx is not None and dx.requires_grad
            ]
            if not pairs:  # no gradient depends on anything, as far as autograd sees
                return self._derivatives([None] * len(sources))
            second = self.F.autograd.grad(
                [dx for dx, _ in pairs], sources, [v for _, v in pairs], **self.unused
            )
        return self._derivatives(second)

    def _derivatives(self, tensors: Sequence[Any]) -> Result:
        """The tensors of a second order, in the order of `Problem.derivatives`."""
        named = dict(zip(self.problem.derivatives, tensors, strict=True))
        # A copy, since PyTorch's zeros of forward mode are in no memory.
        there = {n: t.detach().clone() for n, t in named.items() if t is not None}
        arrays = self.fetch(there)
        dtypes = {n: str(t.dtype).rpartition(".")[2] for n, t in there.items()}
        return Result({}, {n: arrays.get(n) for n in named}, {}, dtypes)

    def wait(self) -> None:
        """Wait for the GPU; `_oneflow` also waits for the CPU."""
        if self.problem.device != "cpu":
            self.F.cuda.synchronize()

    def read(self) -> Result:
        """Outputs, gradients and state as NumPy arrays."""
        state = {n: self.state.get(n, self.inputs[n]) for n in self.problem.op.state}
        gradients = dict(zip(self.problem.wanted, self.gradients, strict=True))
        everything = {**self.outputs, **state}
        everything.update({f"d{name}": g for name, g in gradients.items()})
        tensors = {n: t for n, t in everything.items() if t is not None}
        arrays = self.fetch(tensors)
        return Result(
            outputs={n: arrays[n] for n in self.outputs},
            gradients={f"d{n}": arrays.get(f"d{n}") for n in gradients},
            state={n: arrays[n] for n in state},
            dtypes={n: str(t.dtype).rpartition(".")[2] for n, t in tensors.items()},
        )

    def fetch(self, tensors: Mapping[str, Any]) -> dict[str, Array]:
        """Tensors as NumPy arrays of their own; `_oneflow` brings all at once."""
        return {name: self._array(tensor) for name, tensor in tensors.items()}

    def _array(self, tensor: Any) -> Array:
        tensor = tensor.detach().cpu()
        if "bfloat16" in str(tensor.dtype):  # NumPy has none; float32 holds it exactly
            tensor = tensor.to(self.F.float32)
        return np.array(tensor.numpy())


#: How PyTorch says that something cannot be differentiated twice, or forwards.
REFUSALS = (
    "is not implemented",
    "that does not support it because it has not been implemented",
    "marked with @once_differentiable",
    "You must implement the jvp function",
    "don't support automatic differentiation",  # of what is called with out=
)


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Raise `Unsupported`, in the framework's words, where it refuses an order."""
    try:
        yield
    except RuntimeError as error:  # NotImplementedError is one
        words = str(error).strip().partition("\n")[0]
        if any(known in words for known in REFUSALS):
            raise Unsupported(words) from None
        raise
