"""What an op, a case and a backend are. Standard library and NumPy only.

An op is said in up to four *dialects*, and a backend speaks one of them:

    formula    formula(xp, *inputs, **attributes): array-API primitives, no backward
    manual     manual(*inputs, **attributes): NumPy, returns (outputs, backward)
    autograd   autograd(F, *inputs, **attributes): the framework's own call
    custom     a class with static forward(ctx, *inputs, **attributes) and
               backward(ctx, *cotangents, **attributes), as in torch.autograd.Function;
               ctx keeps what save_for_backward takes and nothing else, for OneFlow
               0.9.0 frees attributes of ctx while the backward still needs them

`formula` is pure: it returns the outputs, then the new state. The other dialects
update state (batch_norm's running values) in place, as the frameworks do; a backend
hands them copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Shape = tuple[int, ...]
Maker = Callable[[np.random.Generator, Shape, Mapping[str, Shape]], Array]
DIALECTS = ("formula", "manual", "autograd", "custom")


class Unsupported(Exception):
    """A dialect that the page declares impossible for a framework; says why."""


class Case:
    """A named set of input shapes and attributes: Case("3x8", x=(3, 8), eps=1e-5).

    An input may name another one instead of a shape: Case("itself", a=(3,), b="a")
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
        outputs: Names of the outputs.
        state: Those inputs that the op updates and that have no gradient.
        constants: Those inputs that have no gradient and are not updated: targets,
            indices, masks. Integers and truth values keep their own dtype. A mapping
            says how the suite draws them: maker(rng, shape, shapes of all inputs);
            without a maker they are drawn from 0 and 1.
        integers: Those outputs that are integers and have no gradient.
        cases: What the agreement suite runs.
        sizes: What the timer runs, smallest first.
        odd: Legal shapes that kill some framework: the fuzzer tries them, the suite
            does not, to which a dead worker is a matter of seconds.
        domain: Open interval of each input's values, where it is not all reals.
        formula: The formula dialect, for an op of your own that needs no page.
    """

    def __init__(
        self,
        name: str,
        *,
        inputs: str,
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
        if formula is not None:
            self.implement("formula")(formula)

    @property
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
        """Inputs that are the same tensor as another one, and which."""
        named = {name: case.fields[name] for name in self.inputs}
        return {name: other for name, other in named.items() if isinstance(other, str)}

    def attributes(self, case: Case) -> dict[str, Any]:
        """The case's fields that are no inputs."""
        return {k: v for k, v in case.fields.items() if k not in self.inputs}

    def implement(
        self, dialect: str, *, framework: str = ""
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Decorator that registers a dialect, for one framework or for all."""

        def register(said: Callable[..., Any]) -> Callable[..., Any]:
            self._register(dialect, framework, said)
            return said

        return register

    def lacks(self, dialect: str, *, framework: str, reason: str) -> None:
        """Declare that a framework cannot speak a dialect of this op, and why."""
        self._register(dialect, framework, Unsupported(reason))

    def _register(self, dialect: str, framework: str, said: Any) -> None:
        if dialect not in DIALECTS:
            raise ValueError(
                f"{self.name}: no dialect {dialect!r}; one of {', '.join(DIALECTS)}"
            )
        if (dialect, framework) in self._said:
            raise ValueError(f"{self.name}: {dialect} is said twice {framework}")
        self._said[dialect, framework] = said

    def said(self, dialect: str, framework: str = "") -> Any:
        """What the page says in a dialect.

        Raises:
            Unsupported: the page declares that the framework lacks it, or says nothing.
        """
        found = self._said.get((dialect, framework), self._said.get((dialect, "")))
        if found is None:
            found = Unsupported(f"{self.name} does not say its {dialect} dialect")
        if isinstance(found, Unsupported):
            raise found
        return found


def _check_inputs(op: str, inputs: Sequence[str], named: Iterable[str]) -> None:
    for name in named:
        if name not in inputs:
            raise ValueError(f"{op}: {name!r} is none of its inputs {' '.join(inputs)}")


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
    """One op at one point: everything that a backend needs to run it.

    `inputs` holds each distinct tensor by name; `cotangents` one array per output
    (None for an integer output). `dtype` is the working precision; arrays of a
    precision that NumPy lacks (bfloat16) travel as wider arrays of exact values.
    """

    op: Op
    inputs: Mapping[str, Array]
    cotangents: Sequence[Array | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    dtype: str = "float64"
    device: str = "cpu"

    @property
    def wanted(self) -> tuple[str, ...]:
        """The inputs whose gradients are asked for: distinct and differentiable."""
        return tuple(n for n in self.op.differentiable if n not in self.aliases)

    @property
    def empty(self) -> bool:
        """Whether some input has no elements."""
        return any(array.size == 0 for array in self.inputs.values())

    def arguments(self, tensors: Mapping[str, Any]) -> list[Any]:
        """The op's positional arguments, repeated tensors included."""
        return [tensors[self.aliases.get(name, name)] for name in self.op.inputs]


@dataclass(frozen=True)
class Result:
    """What a backend computed. Arrays are NumPy's; `dtypes` is what they were."""

    outputs: dict[str, Array]
    gradients: dict[str, Array | None]
    state: dict[str, Array]
    dtypes: dict[str, str]

    @property
    def tensors(self) -> dict[str, Array | None]:
        """All of them by name, gradients first."""
        return {**self.gradients, **self.outputs, **self.state}


class Step(Protocol):
    """A problem made ready in a framework; only the work is left to do and time."""

    def forward(self) -> None:
        """Run the forward pass and keep what the backward needs."""

    def backward(self) -> None:
        """Run the backward pass; may be called again after one forward."""

    def wait(self) -> None:
        """Return when the device has finished all that was asked of it."""

    def read(self) -> Result:
        """Outputs, gradients and state as NumPy arrays."""


class Backend(Protocol):
    """One way of running ops; a module impls/backends/<name>.py exports `backend`."""

    framework: str
    dialect: str

    def version(self) -> str:
        """The framework's version."""

    def missing(self, device: str) -> str:
        """Why a device cannot be used; empty where it can."""

    def prepare(self, problem: Problem) -> Step:
        """Move a problem to the framework.

        Raises:
            Unsupported: the op does not say this dialect for this framework.
        """


def as_tuple(value: Any) -> tuple[Any, ...]:
    """One output is as good as a tuple of one."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def sum_to(array: Any, shape: Shape) -> Any:
    """Sum over the axes along which an input of this shape was copied.

    The transpose of broadcasting, and so its gradient; for NumPy's arrays and for
    tensors alike.
    """
    new = array.ndim - len(shape)
    copied = (i for i, n in enumerate(array.shape) if i < new or n != shape[i - new])
    axes = tuple(copied)
    return array.sum(axes).reshape(tuple(shape)) if axes else array
