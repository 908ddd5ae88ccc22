"""Outputs and gradients of a function of JAX's.

Nothing is judged here. The module needs JAX alone, and the script of a finding holds
its text (`gradwatch.harness.check.script`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext as nullcontext  # of a script
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradwatch.harness.check.frameworks.observation import Observation
from gradwatch.harness.tracing.lax import is_inexact
from gradwatch.harness.workers.evaluate import in_short
from gradwatch.impls.backends._jax_second import hvp, jvp

Array = Any


def numbers(array: Any) -> Array:
    """Real numbers; of complex ones the last axis has the parts."""
    held = np.asarray(array)
    return np.stack((held.real, held.imag), -1) if np.iscomplexobj(held) else held


def array_of(array: Any) -> Array:
    """The `numbers` in a type that NumPy has: float32 holds bfloat16."""
    held = numbers(array)
    return held if held.dtype.kind in "fiub" else held.astype(np.float32)


def started(
    call: Callable[..., Any], arrays: Sequence[Any], wanted: Sequence[bool]
) -> tuple[list[Any], Callable[..., list[Any]]]:
    """Outputs, and what takes cotangents and gives the gradient by each array.

    An output of another shape than its cotangent's takes no part in the gradients;
    whole numbers have none. Of complex numbers the gradient by x + iy is that by x plus
    i times that by y; JAX's own is the conjugate, and takes conjugates.
    """
    places = [i for i, w in enumerate(wanted) if w]

    def of_wanted(*ws: Any) -> Any:
        return call(*_with(arrays, places, ws))

    outputs, back = jax.vjp(of_wanted, *(jnp.asarray(arrays[i]) for i in places))

    def backward(cotangents: Sequence[Any]) -> list[Any]:
        dys = [*cotangents, *[None] * len(outputs)]
        pulled = back([_like(y, dy) for y, dy in zip(outputs, dys, strict=False)])
        found = dict(zip(places, map(np.asarray, map(jnp.conj, pulled)), strict=True))
        return [found.get(i) for i in range(len(arrays))]

    return list(map(np.asarray, outputs)), backward


def _with(arrays: Sequence[Any], places: Sequence[int], ws: Sequence[Any]) -> list[Any]:
    instead = dict(zip(places, ws, strict=True))
    return [instead.get(i, jnp.asarray(a)) for i, a in enumerate(arrays)]


def _like(y: Any, dy: Any) -> Any:
    """A cotangent as JAX wants it: of the output's own type."""
    if not is_inexact(y.dtype):
        return np.zeros(y.shape, jax.dtypes.float0)
    if dy is None or dy.shape != y.shape:
        return jnp.zeros(y.shape, y.dtype)
    return jnp.conj(jnp.asarray(dy, y.dtype))


def observe(
    call: Callable[..., Any],
    tensors: Sequence[Any],
    wanted: Sequence[bool],
    cotangents: Sequence[Any],
    frozen: Sequence[Any] = (),
    thorough: bool = True,
) -> Observation[Any]:
    """Run a function forward and backward, and again under `jax.jit`."""
    outputs, back = started(call, tensors, wanted)
    seen = Observation(outputs, back(cotangents), list(tensors))
    try:
        if thorough:
            again, back = started(jax.jit(call), tensors, wanted)
            seen.others.append(("under jit", (), [*back(cotangents), *again]))
    except (Exception, SystemExit) as error:  # noqa: BLE001  # whatever it raises
        seen.raised.append(("under jit", (), in_short(error)))
    return seen


def differentiated(
    order: str,
    call: Callable[..., Any],
    tensors: Sequence[Any],
    wanted: Sequence[bool],
    cotangents: Sequence[Any],
    tangents: Sequence[Any],
) -> list[Any]:
    """The second derivatives of a function; see `runs.differentiated`."""
    places = [i for i, w in enumerate(wanted) if w]
    kept = [i for i, dy in enumerate(cotangents) if dy is not None]

    def of_wanted(ws: Sequence[Any], _: Any) -> tuple[Any, Any]:
        out = call(*_with(tensors, places, ws))
        return [out[i] for i in kept], None

    ws = [jnp.asarray(tensors[i]) for i in places]
    vs = tuple(jnp.asarray(tangents[i]) for i in places)
    if order == "jvp":
        found = jvp(of_wanted, ws, None, vs)
    else:
        dys = [jnp.conj(jnp.asarray(cotangents[i])) for i in kept]
        found = hvp(of_wanted, ws, None, dys, vs)
        found = (*map(jnp.conj, found[: len(ws)]), *found[len(ws) :])
    return [np.asarray(a) for a in jax.tree.leaves(list(found))]
