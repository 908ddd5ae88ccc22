"""The other judges of gradients, called as their users call them.

Users compare with another implementation in the same precision, not with a wider
reference; here that is PyTorch's own gradient. The tolerances are the documented
defaults of NumPy 2, PyTorch 2 and OneFlow 0.9
(`oneflow.test_utils.automated_test_util`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradwatch.impls import catalogue

Array = NDArray[Any]
#: Called with `got`, `expected` and the name of the precision; raises if they differ.
Comparison = Callable[[Any, Array, str], None]


def _allclose(got: Any, expected: Array, dtype: str, **tolerances: Any) -> None:
    assert np.allclose(got, expected, **tolerances)


#: jax.test_util.check_grads, by dtype, before it is multiplied by the array's size.
_JAX = {"float64": 1e-5, "float32": 2e-3, "float16": 1e-2, "bfloat16": 1e-1}


def _as_jax(got: Any, expected: Array, dtype: str) -> None:
    _allclose(got, expected, dtype, rtol=_JAX[dtype], atol=_JAX[dtype])


def _torch(name: str) -> Callable[..., None]:
    """One of PyTorch's judges; only `impls.backends` imports the framework."""

    def judge(*arguments: Any, **more: Any) -> None:
        door = importlib.import_module(
            f"{catalogue.__package__}.backends._torch_judges"
        )
        getattr(door, name)(*arguments, **more)

    return judge


COMPARISONS: dict[str, Comparison] = {
    "numpy.allclose": _allclose,
    "allclose, atol=1e-5": partial(_allclose, atol=1e-5),
    "KernelBench": partial(_allclose, rtol=1e-2, atol=1e-2),
    "JAX check_grads": _as_jax,
    "OneFlow autotest": partial(_allclose, rtol=1e-4, atol=1e-5, equal_nan=True),
    "assert_close": _torch("assert_close"),
}
GRADCHECKS: dict[str, Callable[..., None]] = {
    "gradcheck, slow": partial(_torch("gradcheck"), fast=False),
    "gradcheck, fast": partial(_torch("gradcheck"), fast=True),
}
OF_TORCH = ("assert_close", *GRADCHECKS)  # these run only where PyTorch is


def accusers(
    names: Sequence[str],
    got: Mapping[str, Array | None],
    expected: Mapping[str, Array | None],
    dtype: str,
) -> tuple[str, ...]:
    """The names of the comparisons that reject at least one tensor."""
    return tuple(
        name
        for name in names
        if any(_rejects(COMPARISONS[name], got[t], expected[t], dtype) for t in got)
    )


def gradcheckers(run: Callable[..., Any], inputs: Sequence[Array]) -> tuple[str, ...]:
    """The gradchecks that reject a NumPy forward and its backward.

    `run` is called like the `manual` dialect, in float64 only.
    """
    names = GRADCHECKS.items()
    return tuple(name for name, check in names if _rejects(check, run, inputs))


def _rejects(check: Callable[..., None], *arguments: Any) -> bool:
    try:
        check(*arguments)
    except Exception:  # noqa: BLE001  # a judge may reject by any exception, TypeError too
        return True
    return False
