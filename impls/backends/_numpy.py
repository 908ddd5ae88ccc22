"""Shared code of the two NumPy backends: NumPy arrays, and no device to wait for."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gradwatch.impls.contract import Array, Problem, Result, Unsupported, dtype_name

TRAITS = {
    "title": "gradwatch with NumPy",
    "forks": True,
    "shares_memory": True,
    "learns_wanted": False,
    "second_order_listed": True,
}


class NumpyStep:
    """A problem as NumPy arrays of its dtype; see `gradwatch.impls.contract.Step`."""

    outputs: list[Array]
    gradients: dict[str, Array | None]

    def __init__(self, problem: Problem, said: Callable[..., Any]) -> None:
        self.problem, self.said = problem, said
        dtype = np.dtype(problem.dtype)
        self.arrays = {
            n: a.astype(dtype, copy=n in problem.op.state) if a.dtype.kind == "f" else a
            for n, a in problem.inputs.items()
        }
        self.cotangents = [
            None if a is None else a.astype(dtype, copy=False)
            for a in problem.cotangents
        ]

        self.tangents = [
            problem.tangents[n].astype(dtype, copy=False)
            for n in (problem.wanted if problem.tangents else ())
        ]

    def derivatives(self, arrays: Iterable[Array | None]) -> Result:
        """The tensors of a second order, in the order of `Problem.derivatives`."""
        named = dict(zip(self.problem.derivatives, arrays, strict=True))
        dtypes = {n: dtype_name(a.dtype) for n, a in named.items() if a is not None}
        return Result({}, named, {}, dtypes)

    def wait(self) -> None:
        """NumPy returns when it is done."""

    def state(self) -> dict[str, Array]:
        """The state that the op updated in place."""
        return {name: self.arrays[name] for name in self.problem.op.state}

    def read(self) -> Result:
        """Outputs, gradients and state, as they are."""
        op = self.problem.op
        outputs = dict(zip(op.outputs, self.outputs, strict=False))
        gradients = {f"d{n}": self.gradients[n] for n in self.problem.wanted}
        everything = {**outputs, **gradients, **self.state()}
        return Result(
            outputs=outputs,
            gradients=gradients,
            state=self.state(),
            dtypes={
                n: dtype_name(a.dtype) for n, a in everything.items() if a is not None
            },
        )


class NumpyBackend:
    """A backend that runs its own kind of step on the CPU."""

    framework = "numpy"

    def __init__(self, dialect: str, step: type[Any]) -> None:
        self.dialect, self.step = dialect, step

    def version(self) -> str:
        """NumPy's version."""
        return np.__version__

    def missing(self, device: str) -> str:
        """NumPy runs only on the CPU."""
        return "" if device == "cpu" else "NumPy runs only on the CPU"

    def prepare(self, problem: Problem) -> Any:
        """Convert the arrays, and find the page's dialect."""
        if not hasattr(np, problem.dtype):
            raise Unsupported(f"NumPy has no {problem.dtype}")
        return self.step(problem, problem.op.said(self.dialect, "numpy"))
