"""One adapter for every framework with PyTorch's interface.

A backend file passes its framework, already imported: TorchLike(torch, "autograd").
"""

from __future__ import annotations

import contextlib
import inspect
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
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


#: What a page's class says of itself whose backward keeps intermediate values of the
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


class ArrayNames:
    """The names of the array API and of the graph engine, on top of torch's.

    Names and arguments are those of the graph engine. A function that torch has with
    the same name and arguments is passed on unchanged.
    """

    def __init__(self, F: Any) -> None:
        self.F = F

    def __getattr__(self, name: str) -> Any:
        return getattr(self.F, name)

    def exp2(self, x: Any) -> Any:
        """OneFlow 0.9.0 has no exp2."""
        return self.F.exp2(x) if hasattr(self.F, "exp2") else self.F.pow(2.0, x)

    def pow(self, a: Any, b: Any) -> Any:
        """a to the power of b."""
        return a**b

    def maximum(self, a: Any, b: Any) -> Any:
        """The larger of two elements; torch's function takes no number."""
        return self.F.maximum(a, self._beside(a, b))

    def minimum(self, a: Any, b: Any) -> Any:
        """The smaller of two elements."""
        return self.F.minimum(a, self._beside(a, b))

    def where(self, c: Any, a: Any, b: Any) -> Any:
        """Elements of a where the condition holds, of b elsewhere."""
        return self.F.where(c, self._beside(b, a), self._beside(a, b))

    def _beside(self, a: Any, b: Any) -> Any:
        """A number as a tensor like `a`: OneFlow 0.9.0 takes it to be float32."""
        if not isinstance(b, (int, float)) or isinstance(a, (int, float)):
            return b
        return self.F.tensor(b, dtype=a.dtype, device=a.device)

    def equal(self, a: Any, b: Any) -> Any:
        """Element by element; torch's own function returns one bool."""
        return a == b

    def asarray(self, value: Any, *, dtype: Any = None) -> Any:
        """A tensor as it is; anything else as a tensor."""
        return self.F.as_tensor(value, dtype=dtype)

    def astype(self, x: Any, dtype: Any) -> Any:
        """The values in another dtype."""
        names = {"int64": self.F.int64, "int32": self.F.int32, "bool": self.F.bool}
        return x.to(names.get(str(dtype), dtype))

    def sum(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Sum over an axis, several, or all."""
        axes = tuple(range(x.ndim)) if axis is None else axis
        return self.F.sum(x, dim=axes, keepdim=keepdims) if axes != () else x

    def mean(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Mean over an axis, several, or all."""
        axes = tuple(range(x.ndim)) if axis is None else axis
        return self.F.mean(x, dim=axes, keepdim=keepdims) if axes != () else x

    def max(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Largest element along an axis, several, or all."""
        if isinstance(axis, int):
            return self.F.max(x, dim=axis, keepdim=keepdims)[0]
        axes = tuple(range(x.ndim)) if axis is None else axis
        return self.F.amax(x, dim=axes, keepdim=keepdims)

    def min(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Smallest element along an axis, several, or all."""
        return -self.max(-x, axis, keepdims=keepdims)

    def prod(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Product over one axis, or all."""
        if axis is None:
            return self.F.prod(x)
        return self.F.prod(x, dim=axis, keepdim=keepdims)

    def var(
        self,
        x: Any,
        axis: Any = None,
        *,
        correction: float = 0.0,
        keepdims: bool = False,
    ) -> Any:
        """Mean square distance from the mean; torch's correction is 1."""
        return self.F.var(x, dim=axis, correction=correction, keepdim=keepdims)

    def std(self, x: Any, axis: Any = None, **options: Any) -> Any:
        """Square root of the variance."""
        return self.F.sqrt(self.var(x, axis, **options))

    def logsumexp(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """log(sum(exp(x)))."""
        axes = tuple(range(x.ndim)) if axis is None else axis
        return self.F.logsumexp(x, dim=axes, keepdim=keepdims)

    def argmax(self, x: Any, axis: Any = None, *, keepdims: bool = False) -> Any:
        """Index of the largest element along an axis, or of all."""
        return self.F.argmax(x, dim=axis, keepdim=keepdims)

    def cumulative_sum(
        self, x: Any, axis: int = 0, *, include_initial: bool = False
    ) -> Any:
        """Sums of the elements up to each one."""
        y = self.F.cumsum(x, dim=axis)
        if not include_initial:
            return y
        return self.F.cat([self.F.zeros_like(x.narrow(axis, 0, 1)), y], dim=axis)

    def cumulative_prod(self, x: Any, axis: int = 0) -> Any:
        """Products of the elements up to each one."""
        return self.F.cumprod(x, dim=axis)

    def permute_dims(self, x: Any, axes: tuple[int, ...]) -> Any:
        """The axes in another order."""
        return self.F.permute(x, axes)

    def broadcast_to(self, x: Any, shape: tuple[int, ...]) -> Any:
        """Copies along new axes and along those of length 1."""
        return x.expand(*shape)

    def expand_dims(self, x: Any, axis: int = 0) -> Any:
        """A new axis of length 1."""
        return self.F.unsqueeze(x, axis)

    def matrix_transpose(self, x: Any) -> Any:
        """The last two axes exchanged."""
        return self.F.transpose(x, -2, -1)

    def concat(self, arrays: Any, axis: int = 0) -> Any:
        """Arrays one after another along an axis."""
        return self.F.cat(tuple(arrays), dim=axis)

    def stack(self, arrays: Any, axis: int = 0) -> Any:
        """Arrays of one shape along a new axis."""
        return self.F.stack(tuple(arrays), dim=axis)

    def unstack(self, x: Any, *, axis: int = 0) -> Any:
        """The parts of an array along an axis."""
        return self.F.unbind(x, dim=axis)

    def flip(self, x: Any, axis: Any = None) -> Any:
        """Elements in reverse order along axes, or along all."""
        axes = tuple(range(x.ndim)) if axis is None else axis
        return self.F.flip(x, (axes,) if isinstance(axes, int) else axes)

    def roll(self, x: Any, shift: Any, axis: Any = None) -> Any:
        """Elements moved along axes; those at the end move to the start."""
        return self.F.roll(x, shift, axis)

    def repeat(self, x: Any, repeats: Any, *, axis: Any = None) -> Any:
        """Each element several times."""
        return self.F.repeat_interleave(x, repeats, dim=axis)

    def tril(self, x: Any, *, k: int = 0) -> Any:
        """The elements up to the k-th diagonal, zeros above."""
        return self.F.tril(x, diagonal=k)

    def triu(self, x: Any, *, k: int = 0) -> Any:
        """The elements from the k-th diagonal on, zeros below."""
        return self.F.triu(x, diagonal=k)

    def diagonal(self, x: Any, *, offset: int = 0) -> Any:
        """The diagonal of the last two axes."""
        return self.F.diagonal(x, offset, -2, -1)

    def take(self, x: Any, indices: Any, *, axis: int = 0) -> Any:
        """Elements of an axis by their positions."""
        return x[(slice(None),) * (axis % x.ndim) + (indices,)]

    def take_along_axis(self, x: Any, indices: Any, *, axis: int = -1) -> Any:
        """Elements of an axis, picked separately at each place of the other axes."""
        return self.F.gather(x, axis, self.F.as_tensor(indices))

    def gather(self, *sources: Any, index: Any) -> Any:
        """Elements picked by their flat position; -1 gives 0."""
        flat = [source.reshape(-1) for source in sources]
        return self.F.cat([*flat, flat[0].new_zeros(1)])[self.F.as_tensor(index)]

    def scatter_add(self, values: Any, *, index: Any, shape: tuple[int, ...]) -> Any:
        """Zeros of a shape, to which each value is added at its flat position."""
        count = math.prod(shape)
        places = self.F.as_tensor(index).reshape(-1) % (count + 1)  # -1 is past the end
        whole = values.new_zeros(count + 1)
        return whole.index_add(0, places, values.reshape(-1))[:-1].reshape(shape)

    def put(self, values: Any, *, index: Any, shape: tuple[int, ...]) -> Any:
        """Zeros of a shape, to which the values are added at [index]."""
        places = self.F.arange(math.prod(shape)).reshape(shape)[index]
        return self.scatter_add(values, index=places, shape=shape)

    def pad(
        self, x: Any, width: Any, mode: str = "constant", *, value: float = 0.0
    ) -> Any:
        """A border around an array."""
        sides = [(width, width)] * x.ndim if isinstance(width, int) else list(width)
        flat = [n for pair in reversed(sides) for n in pair]
        if mode == "constant":
            return self.F.nn.functional.pad(x, flat, value=value)
        for axis, (before, after) in enumerate(sides):
            n = x.shape[axis]
            places = np.pad(np.arange(n), (before, after), mode=mode)  # type: ignore[call-overload]  # the mode is np.pad's
            x = self.take(x, self.F.as_tensor(places), axis=axis)
        return x

    def sliding_windows(
        self,
        x: Any,
        size: Any,
        *,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        value: float = 0.0,
    ) -> Any:
        """The windows of a convolution or a pooling: (..., *positions, *size)."""
        sizes = (size,) if isinstance(size, int) else tuple(size)
        every = [
            (n,) * len(sizes) if isinstance(n, int) else n
            for n in (stride, padding, dilation)
        ]
        lead = x.ndim - len(sizes)
        x = self.pad(x, [(0, 0)] * lead + [(p, p) for p in every[1]], value=value)
        for axis, (n, step, gap) in enumerate(
            zip(sizes, every[0], every[2], strict=True)
        ):
            x = x.unfold(lead + axis, (n - 1) * gap + 1, step)[..., ::gap]
        return x

    def tensordot(self, a: Any, b: Any, *, axes: Any = 2) -> Any:
        """Products summed over the last axes of a and the first of b, or over pairs."""
        return self.F.tensordot(a, b, dims=axes)

    def vecdot(self, a: Any, b: Any, *, axis: int = -1) -> Any:
        """Sum of products along an axis."""
        return self.F.sum(a * b, dim=axis)

    def sum_to(self, x: Any, *, shape: tuple[int, ...]) -> Any:
        """Sum over the axes along which an input of this shape was copied."""
        return x.sum_to_size(shape)

    def stop_gradient(self, x: Any) -> Any:
        """The same values, as a constant."""
        return x.detach()
