"""One adapter for every framework that differentiates functions instead of tensors.

A door, such as `_jax`, says how a framework makes a tensor, reads an array, takes a
VJP and is waited for; a backend is that door with a dialect.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np

from gradwatch.impls.contract import (
    Array,
    Problem,
    Result,
    Unsupported,
    as_tuple,
    dtype_name,
)

ALL = ("float64", "float32", "float16", "bfloat16")


class Names:
    """The functions that a formula may call: a door's own, a module's, compositions.

    Names in `composed` are compositions, though the module has them.
    """

    def __init__(self, module: Any, *composed: str, **own: Any) -> None:
        self._module, self._composed = module, composed
        self.__dict__.update(own)

    def __getattr__(self, name: str) -> Any:
        here = hasattr(self._module, name) and name not in self._composed
        if here or name not in COMPOSED:
            return getattr(self._module, name)
        return partial(COMPOSED[name], self)


def own_names(traits: Mapping[str, Any], **modules: Any) -> dict[str, Any]:
    """The functions of modules that a door's traits name."""
    called = {n: path.partition(".") for n, path in traits["names"].items() if n}
    return {
        name: attrgetter(path)(modules[module])
        for name, (module, _, path) in called.items()
        if module in modules
    }


def sliding_windows(
    xp: Any,
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
    count, lead = len(sizes), len(x.shape) - len(sizes)
    steps, pads, gaps = (
        (n,) * count if isinstance(n, int) else n for n in (stride, padding, dilation)
    )
    widths = [(0, 0)] * lead + [(p, p) for p in pads]
    x = xp.pad(x, widths, "constant", constant_values=value) if any(pads) else x
    for i in reversed(range(count)):  # an axis becomes two: positions, places in each
        last = x.shape[lead + i] - gaps[i] * (sizes[i] - 1)
        places = np.arange(0, last, steps[i])[:, None] + gaps[i] * np.arange(sizes[i])
        x = xp.take(x, places, axis=lead + i)
    split = [lead + 2 * i + part for part in (0, 1) for i in range(count)]
    return xp.permute_dims(x, (*range(lead), *split))


def take(xp: Any, x: Any, indices: Any, *, axis: int = 0) -> Any:
    """Elements of an axis by their positions."""
    return x[(slice(None),) * (axis % len(x.shape)) + (indices,)]


def take_along_axis(xp: Any, x: Any, indices: Any, *, axis: int = -1) -> Any:
    """Elements of an axis, picked separately at each place of the other axes."""
    places = list(np.ix_(*map(np.arange, indices.shape)))
    places[axis] = indices
    return x[tuple(places)]


#: Functions composed of others, for modules that lack these.
COMPOSED: dict[str, Callable[..., Any]] = {
    "sliding_windows": sliding_windows,
    "take": take,
    "take_along_axis": take_along_axis,
    "exp2": lambda xp, x: 2.0**x,
    "concat": lambda xp, arrays, axis=0: xp.concatenate(arrays, axis=axis),
    "permute_dims": lambda xp, x, axes: xp.transpose(x, axes),
    "matrix_transpose": lambda xp, x: xp.swapaxes(x, -1, -2),
    "cumulative_sum": lambda xp, x, axis=0: xp.cumsum(x, axis=axis),
    "astype": lambda xp, x, dtype: x.astype(dtype),
}


@dataclass(frozen=True)
class Call:
    """A page's function of an op, as a pure function of its tensors.

    Equal calls compute the same, so that a compiler compiles one once for a shape.
    """

    said: Any
    inputs: tuple[str, ...]  # the tensor of each argument
    wanted: tuple[str, ...]
    returned: tuple[str, ...]  # outputs, then the new state
    floating: tuple[str, ...]  # outputs that have a gradient
    attributes: str  # as text: 1, 1.0 and True are equal
    bound: Callable[..., Any] = field(compare=False)

    def __call__(self, wanted: Sequence[Any], others: Mapping[str, Any]) -> Any:
        """The outputs that have a gradient, then everything by name."""
        tensors = {**others, **dict(zip(self.wanted, wanted, strict=True))}
        values = as_tuple(self.bound(*(tensors[name] for name in self.inputs)))
        named = dict(zip(self.returned, values, strict=True))
        return tuple(named[name] for name in self.floating), named


def bound(problem: Problem, said: Any, first: Any) -> Callable[..., Any]:
    """A page's function with its attributes bound, as a function of tensors."""
    return partial(said, first, **problem.attributes)


_last: list[str] = []  # the op of the last problem: its compiled code is kept


@dataclass(frozen=True)
class Functional:
    """A backend: a dialect, spoken through the door of a framework.

    Args:
        framework: The name of its module.
        number: Its version.
        dialect: The backend's dialect on a page.
        first: The first argument of a page's function: array names, or the framework.
        tensor: Makes a tensor from an array, in a dtype.
        array: Copies a tensor to a NumPy array.
        vjp: Takes a `Call`, its wanted tensors and its others; returns its results, and
            a function from the tuple of cotangents to the gradients.
        jvp: Takes the same and the inputs' tangents; returns those of the outputs. None
            where the framework has no forward mode.
        hvp: Takes the same, cotangents and tangents; returns the gradients of the sum
            of gradient * tangent by the inputs, then by the cotangents.
        wait: Returns when all tensors in its argument are computed.
        forget: Called before another op: drops the code compiled for the last one.
        bind: Makes the function that is differentiated, from a problem, the page's
            function of its op, and `first`.
        dtypes: The dtypes that the framework has.
        copies: Whether tensors are copies in C order, so that layouts are lost.
        shared: Whether the dialect is the same on a page for all frameworks.
    """

    framework: str
    number: str
    dialect: str
    first: Any
    tensor: Callable[[Array, str], Any]
    array: Callable[[Any], Array]
    vjp: Callable[[Call, Sequence[Any], Mapping[str, Any]], tuple[Any, Any]]
    jvp: Callable[..., Sequence[Any]] | None = None
    hvp: Callable[..., Sequence[Any]] | None = None
    wait: Callable[[Any], object] = lambda computed: None
    forget: Callable[[], object] = lambda: None
    bind: Callable[[Problem, Any, Any], Callable[..., Any]] = bound
    dtypes: tuple[str, ...] = ALL
    copies: bool = True
    shared: bool = True

    def version(self) -> str:
        """The framework's version."""
        return self.number

    def missing(self, device: str) -> str:
        """Why a device cannot be used; "" if it can."""
        return "" if device == "cpu" else f"{self.framework} runs only on the CPU here"

    def prepare(self, problem: Problem) -> FunctionalStep:
        """Make tensors, and bind the op's dialect to its attributes."""
        if problem.dtype not in self.dtypes:
            raise Unsupported(f"{self.framework} {self.number} has no {problem.dtype}")
        arrays = [*problem.inputs.values(), *problem.cotangents]
        if self.copies and any(a is not None and _strided(a) for a in arrays):
            raise Unsupported(f"{self.framework} copies every array into C order")
        call = self._call(problem)
        if _last != [problem.op.name]:
            _last[:] = [problem.op.name]
            self.forget()
        return FunctionalStep(self, problem, call)

    def _call(self, problem: Problem) -> Call:
        op, attributes = problem.op, dict(problem.attributes)
        said = op.said(self.dialect, self.framework, own=not self.shared)
        return Call(
            said=said,
            inputs=tuple(problem.arguments({n: n for n in problem.inputs})),
            wanted=problem.wanted,
            returned=(*op.outputs, *op.state),
            floating=tuple(n for n in op.outputs if n not in op.integers),
            attributes=repr(sorted(attributes.items())),
            bound=self.bind(problem, said, self.first),
        )


def _strided(array: Array) -> bool:
    return not array.flags.c_contiguous


class FunctionalStep:
    """A problem as tensors of the framework; see `gradwatch.impls.contract.Step`."""

    def __init__(self, door: Functional, problem: Problem, call: Call) -> None:
        self.door, self.problem, self.call = door, problem, call
        tensors = {n: self._tensor(a) for n, a in problem.inputs.items()}
        self.wanted = [tensors.pop(n) for n in problem.wanted]
        self.others = tensors
        self.cotangents = tuple(
            self._tensor(array)
            for name, array in zip(problem.op.outputs, problem.cotangents, strict=True)
            if name in call.floating and array is not None
        )
        self.computed: list[Any] = []

    def _tensor(self, array: Array) -> Any:
        """A tensor of an array; targets, indices and masks keep their own dtype."""
        own = array.dtype.kind in "biu"
        return self.door.tensor(array, array.dtype.name if own else self.problem.dtype)

    def forward(self) -> None:
        """Compute the outputs, and the values that the backward needs."""
        self.outputs, self.pull = self.door.vjp(self.call, self.wanted, self.others)
        self.computed = [self.outputs, self.pull]

    def backward(self) -> None:
        """Compute the gradients; the same forward serves again."""
        self.gradients = self.pull(self.cotangents)
        self.computed = [self.gradients]

    def jvp(self) -> Result:
        """Compute the outputs' tangents by forward mode."""
        return self._second(self.door.jvp, self.call, self.wanted, self.others)

    def hvp(self) -> Result:
        """Compute the double backward."""
        given = (self.call, self.wanted, self.others, self.cotangents)
        return self._second(self.door.hvp, *given)

    def _second(self, differentiate: Any, *given: Any) -> Result:
        problem = self.problem
        if differentiate is None:
            raise Unsupported(f"{self.door.framework} has no {problem.order} here")
        tangents = tuple(self._tensor(problem.tangents[n]) for n in problem.wanted)
        try:
            self.computed = list(differentiate(*given, tangents))
        except NotImplementedError as words:
            raise Unsupported(f"{self.door.framework}: {words}") from None
        named = zip(problem.derivatives, self.computed, strict=True)
        read = {n: None if t is None else self.door.array(t) for n, t in named}
        dtypes = {n: dtype_name(a.dtype) for n, a in read.items() if a is not None}
        arrays = {n: None if a is None else _legible(a) for n, a in read.items()}
        return Result({}, arrays, {}, dtypes)

    def wait(self) -> None:
        """Wait for the last call's tensors; a lazy framework computes them now."""
        self.door.wait(self.computed)

    def read(self) -> Result:
        """Outputs, gradients and state as NumPy arrays."""
        gradients = {
            f"d{n}": g for n, g in zip(self.problem.wanted, self.gradients, strict=True)
        }
        tensors = {**self.outputs, **gradients}
        read = {n: self.door.array(t) for n, t in tensors.items() if t is not None}
        arrays = {n: _legible(array) for n, array in read.items()}
        return Result(
            outputs={n: arrays[n] for n in self.problem.op.outputs},
            gradients={n: arrays.get(n) for n in gradients},
            state={n: arrays[n] for n in self.problem.op.state},
            dtypes={n: dtype_name(array.dtype) for n, array in read.items()},
        )


def _legible(array: Array) -> Array:
    """An array that NumPy reads; bfloat16 becomes float32, which holds it exactly."""
    return array.astype(np.float32) if dtype_name(array.dtype) == "bfloat16" else array
