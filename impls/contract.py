"""Defines ops, cases and backends. Standard library and NumPy only.

An op is written in up to four *dialects*, and a backend runs one of them:

    formula    formula(xp, *inputs, **attributes): array-API primitives, no backward
    manual     manual(*inputs, **attributes): NumPy, returns (outputs, backward)
    autograd   autograd(F, *inputs, **attributes): the framework's own call
    custom     a class with static forward(ctx, *inputs, **attributes) and
               backward(ctx, *cotangents, **attributes), as in torch.autograd.Function;
               store tensors only with save_for_backward: OneFlow 0.9.0 frees
               attributes of ctx while the backward still needs them

`formula` is pure: it returns the outputs, then the new state. The other dialects
update state (batch_norm's running values) in place, as the frameworks do; a backend
passes copies to them.

Old names stay: the history runs the pages of old commits with this module's users.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]
# As a text: a worker has no use for np.random, which takes 20 ms to import.
Maker = Callable[["np.random.Generator", Shape, Mapping[str, Shape]], Array]
DIALECTS = ("formula", "manual", "autograd", "custom")


class Unsupported(Exception):
    """The page declares that a framework cannot run a dialect; the message says why."""


class Case:
    """A named set of input shapes and attributes: Case("3x8", x=(3, 8), eps=1e-5).

    Instead of a shape, an input can name another input: Case("itself", a=(3,), b="a")
    passes the same tensor twice.
    """

    def __init__(self, name: str, /, **fields: Any) -> None:
        self.name = name
        self.fields = fields

    def __repr__(self) -> str:
        return f"Case({self.name!r}, {self.fields})"


class Op:
    """One operation, in all its dialects; see the module's docstring.

    Args:
        name: The name of its file in impls/ops, or any name for an op of your own.
        inputs: Names of the input tensors, in order, separated by blanks.
        group: The kind of op, such as "loss", by which the overview is sorted.
        outputs: Names of the outputs.
        state: Inputs that the op updates; they have no gradient.
        constants: Inputs without a gradient that are not updated: targets, indices,
            masks. Integers and booleans keep their own dtype. A mapping says how the
            suite draws them: maker(rng, shape, shapes of all inputs); without a maker
            they are drawn from 0 and 1.
        integers: Outputs that are integers; they have no gradient.
        cases: The cases of the agreement suite.
        sizes: The sizes that are timed, smallest first.
        odd: Legal shapes that crash some framework. The fuzzer tries them; the suite
            does not, since each new worker takes seconds.
        domain: Open interval of each input's values, if not all reals are allowed.
        formula: The formula dialect, for your own op without a page.
    """

    def __init__(
        self,
        name: str,
        *,
        inputs: str,
        group: str = "",
        outputs: str = "y",
        state: str = "",
        constants: str | Mapping[str, Maker] = "",
        integers: str = "",
        cases: Sequence[Case] = (),
        sizes: Sequence[Case] = (),
        odd: Sequence[Case] = (),
        domain: Mapping[str, tuple[float, float]] | None = None,
        formula: Callable[..., Any] | None = None,
    ) -> None:
        self.name = name
        self.group = group
        self.inputs = tuple(inputs.split())
        self.outputs = tuple(outputs.split())
        self.state = tuple(state.split())
        self.integers = tuple(integers.split())
        named = constants.split() if isinstance(constants, str) else constants
        self.constants = tuple(named)
        self._makers = constants if isinstance(constants, Mapping) else {}
        _check_inputs(name, self.inputs, (*self.state, *self.constants))
        self.cases = _by_name(name, cases)
        self.sizes = _by_name(name, sizes)
        self.odd = _by_name(name, odd)
        self.domain = dict(domain or {})
        self._said: dict[tuple[str, str], Any] = {}
        self._since: dict[tuple[str, str], tuple[str, str]] = {}
        if formula is not None:
            self.implement("formula")(formula)

    @cached_property
    def differentiable(self) -> tuple[str, ...]:
        """Names of the inputs that have a gradient; that of `a` is called `da`."""
        fixed = (*self.state, *self.constants)
        return tuple(name for name in self.inputs if name not in fixed)

    def shapes(self, case: Case) -> dict[str, Shape]:
        """Shapes of the tensors of a case; an input that repeats another has none."""
        named = {name: case.fields[name] for name in self.inputs}
        return {name: s for name, s in named.items() if not isinstance(s, str)}

    def draw_constants(self, case: Case, rng: np.random.Generator) -> dict[str, Array]:
        """Values of the constants of a case, by their makers."""
        shapes = self.shapes(case)
        return {
            name: np.asarray(self._makers.get(name, _bits)(rng, shapes[name], shapes))
            for name in self.constants
            if name in shapes
        }

    def aliases(self, case: Case) -> dict[str, str]:
        """The inputs that are the same tensor as another one, with that one's name."""
        named = {name: case.fields[name] for name in self.inputs}
        return {name: other for name, other in named.items() if isinstance(other, str)}

    def attributes(self, case: Case) -> dict[str, Any]:
        """The attributes of a case: its fields that are not inputs."""
        return {k: v for k, v in case.fields.items() if k not in self.inputs}

    def implement(
        self, dialect: str, *, framework: str = ""
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator that registers a dialect, for one framework or for all."""

        def register(said: Callable[..., Any]) -> Callable[..., Any]:
            self._register(dialect, framework, said)
            return said

        return register

    def lacks(
        self, dialect: str, *, framework: str, reason: str, before: str = ""
    ) -> None:
        """Declare that a framework cannot run a dialect of this op, and why.

        With `before`, such as "2.4", that holds for its earlier versions alone.
        """
        if before:
            self._since[dialect, framework] = before, reason
        else:
            self._register(dialect, framework, Unsupported(reason))

    def _register(self, dialect: str, framework: str, said: Any) -> None:
        if dialect not in DIALECTS:
            raise ValueError(
                f"{self.name}: no dialect {dialect!r}; one of {', '.join(DIALECTS)}"
            )
        if (dialect, framework) in self._said:
            raise ValueError(f"{self.name}: {dialect} is defined twice {framework}")
        self._said[dialect, framework] = said

    def said(
        self,
        dialect: str,
        framework: str = "",
        *,
        own: bool = False,
        version: str = "",
    ) -> Any:
        """The page's implementation in a dialect; if `own`, for this framework alone.

        Raises:
            Unsupported: The page has none, or declares that the framework, or this
                version of it, lacks it.
        """
        since, lacking = self._since.get((dialect, framework), ("0", ""))
        if version and _release(version) < _release(since):
            raise Unsupported(f"{lacking} before {since}")
        for_all = None if own else self._said.get((dialect, ""))
        found = self._said.get((dialect, framework), for_all)
        if found is None:
            whose = f" of {framework}'s own" if own else ""
            found = Unsupported(f"{self.name} has no {dialect} dialect{whose}")
        if isinstance(found, Unsupported):
            raise found
        return found


@cache
def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version: 2.13.0 of "2.13.0+cpu"."""
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))


def _check_inputs(op: str, inputs: Sequence[str], named: Iterable[str]) -> None:
    for name in named:
        if name not in inputs:
            raise ValueError(f"{op}: {name!r} is not an input ({' '.join(inputs)})")


def _bits(rng: np.random.Generator, shape: Shape, shapes: Mapping[str, Shape]) -> Array:
    return rng.integers(0, 2, shape)


def _by_name(op: str, cases: Iterable[Case]) -> dict[str, Case]:
    named: dict[str, Case] = {}
    for case in cases:
        if case.name in named:
            raise ValueError(f"{op}: two cases are called {case.name!r}")
        named[case.name] = case
    return named


@dataclass(frozen=True)
class Problem:
    """An op with its arrays: everything that a backend needs to run it.

    `inputs` holds each distinct tensor by name; `cotangents` one array per output
    (None for an integer output). `dtype` is the working precision; if NumPy does not
    have it (bfloat16), the arrays are wider and hold exact values.

    `order` is the derivative: the gradient ("vjp"), forward mode ("jvp"), or the double
    backward ("hvp"); the last two need `tangents`, an array for each wanted input.
    """

    op: Op
    inputs: Mapping[str, Array]
    cotangents: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "float64"
    device: str = "cpu"
    order: str = "vjp"
    tangents: Mapping[str, Array] = field(default_factory=dict)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The inputs whose gradients are wanted: distinct and differentiable."""
        return tuple(n for n in self.op.differentiable if n not in self.aliases)

    @property
    def differentiated(self) -> tuple[str, ...]:
        """The outputs that have a cotangent."""
        pairs = zip(self.op.outputs, self.cotangents, strict=True)
        integers = self.op.integers
        return tuple(n for n, dy in pairs if dy is not None and n not in integers)

    @property
    def derivatives(self) -> tuple[str, ...]:
        """Names of the tensors of its order, as the steps below return them."""
        if self.order == "vjp":
            return tuple(f"d{name}" for name in self.wanted)
        if self.order == "jvp":
            return tuple(f"jvp.{name}" for name in self.differentiated)
        names = (*self.wanted, *(f"d{name}" for name in self.differentiated))
        return tuple(f"hvp.d{name}" for name in names)

    @property
    def empty(self) -> bool:
        """Whether some input has no elements."""
        return any(array.size == 0 for array in self.inputs.values())

    def arguments(self, tensors: Mapping[str, Any]) -> list[Any]:
        """The op's positional arguments, repeated tensors included."""
        return [tensors[self.aliases.get(name, name)] for name in self.op.inputs]


@dataclass(frozen=True)
class Result:
    """The results of a backend, as NumPy arrays; `dtypes` has their original dtypes."""

    outputs: dict[str, Array]
    gradients: dict[str, Array | None]
    state: dict[str, Array]
    dtypes: dict[str, str]

    @property
    def tensors(self) -> dict[str, Array | None]:
        """All tensors by name, gradients first."""
        return {**self.gradients, **self.outputs, **self.state}


class Step(Protocol):
    """A problem prepared in a framework, so that only the work remains to be timed."""

    def forward(self) -> None:
        """Run the forward pass and keep the values that the backward needs."""

    def backward(self) -> None:
        """Run the backward pass; may be called again after one forward."""

    def wait(self) -> None:
        """Return when the device has finished all work."""

    def read(self) -> Result:
        """Outputs, gradients and state as NumPy arrays."""


class SecondOrderStep(Protocol):
    """The methods that a step may have for the other orders; neither is required.

    Both raise `Unsupported` where the framework refuses. A result's gradients are named
    by `Problem.derivatives`; it holds nothing else.
    """

    def jvp(self) -> Result:
        """Forward mode: the tangent of each output along the inputs' tangents."""

    def hvp(self) -> Result:
        """The double backward of the sum of dx * v over the wanted inputs.

        v are the tangents; it is differentiated by each wanted input, then by the
        cotangent of each output.
        """


class Backend(Protocol):
    """Runs ops in one way; each module impls/backends/<name>.py exports `backend`."""

    framework: str
    dialect: str

    def version(self) -> str:
        """The framework's version."""

    def missing(self, device: str) -> str:
        """Why a device cannot be used; "" if it can."""

    def prepare(self, problem: Problem) -> Step:
        """Move a problem to the framework.

        Raises:
            Unsupported: The op has no such dialect for this framework.
        """


#: The name of a dtype, such as "float32"; composing it takes NumPy 5 us.
dtype_name: Callable[[Any], str] = cache(str)


def as_tuple(value: Any) -> tuple[Any, ...]:
    """The outputs as a tuple; a single output becomes a tuple of one."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def sum_to(array: Any, shape: Shape) -> Any:
    """Sum over the axes along which an input of this shape was copied.

    This is the transpose of broadcasting, and so its gradient. It works for NumPy
    arrays and for tensors.
    """
    new = array.ndim - len(shape)
    copied = (i for i, n in enumerate(array.shape) if i < new or n != shape[i - new])
    axes = tuple(copied)
    return array.sum(axes).reshape(tuple(shape)) if axes else array
