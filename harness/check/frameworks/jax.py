"""JAX for `check`: its arrays, its VJPs and its second derivatives.

Arrays have no strides and cannot be written to, so there are fewer ways for a candidate
to fail than in PyTorch: it is run once more, under `jax.jit`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import keystr

from gradwatch.harness.check.frameworks import Forward, dtype_of, observation
from gradwatch.harness.check.frameworks.observation import Observation
from gradwatch.harness.tracing.lax import is_complex, is_inexact
from gradwatch.harness.workers.arrays import values_of
from gradwatch.harness.workers.evaluate import in_short
from gradwatch.impls.backends._functional import Names
from gradwatch.impls.backends._jax_second import hvp, jvp
from gradwatch.impls.contract import Array, Unsupported

TITLE = "JAX"
#: Regimes that differ from "normal" by strides alone.
FOREIGN = ("permuted", "sliced", "expanded", "negative", "dy_transposed", "dy_expanded")
RAISED = (Exception,)  # TypeError for shapes, and any other
_OWN = {n: getattr(jax.nn, n) for n in ("sigmoid", "logsumexp")}
_OWN |= {n: getattr(jax.lax, n) for n in ("stop_gradient", "erf", "rsqrt")}
ARRAYS = Names(jnp, **_OWN)
#: Each leaf with its path in a container, and the name of such a path.
paths, path_name = jax.tree.leaves_with_path, keystr
copies = list


def _is_array(value: Any) -> bool:
    """Whether a value is an array."""
    return isinstance(value, (np.ndarray, np.generic, jax.Array))


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Containers with a function applied to each array."""
    return jax.tree.map(lambda v: function(v) if _is_array(v) else v, tree)


def tensors(tree: Any) -> list[Any]:
    """The arrays among containers."""
    return [leaf for leaf in jax.tree.leaves(tree) if _is_array(leaf)]


def made(values: Array, dtype: str, kind: str, device: str, layout: str) -> Array:
    """An array of a kind (`shapes.Spec`) and type; whole numbers have 32 bits."""
    if kind == "complex":
        return _paired(values, dtype)
    kinds = {"float": jnp.dtype(dtype), "int": np.int32, "bool": np.bool_}
    with np.errstate(over="ignore"):
        return np.asarray(values, kinds[kind])


def _paired(values: Array, dtype: str) -> Array:
    """The complex array whose real and imaginary parts are the last axis."""
    if dtype not in ("float32", "float64"):
        raise ValueError(f"JAX has no complex numbers of {dtype}")
    parts = np.asarray(values, dtype)
    return np.asarray(parts[..., 0] + 1j * parts[..., 1])


def filled(values: Array, like: Any, layout: str = "contiguous") -> Array:
    """An array of the type of another one, from values as `numbers` returns them."""
    if is_complex(like.dtype):
        return _paired(values, dtype_of(like.real))
    return np.asarray(values, like.dtype)


def moved(array: Any, dtype: str, main: str, device: str) -> Array:
    """An array, converted to `dtype` if it is of type `main`."""
    held = np.asarray(array)
    if is_complex(held.dtype) and dtype_of(held.real) == main:
        return _paired(numbers(held), dtype)
    with np.errstate(over="ignore"):
        return held.astype(jnp.dtype(dtype)) if dtype_of(held) == main else held


def written(array: Any) -> str:
    """An expression that constructs an array."""
    values = values_of(array_of(array))
    if is_complex(array.dtype):
        values = f'np.array({values}).view("complex128")[..., 0]'
    return f'jnp.array({values}, "{dtype_of(array)}")'


def relaid(array: Any, layout: str, scale: float = 1.0) -> Array:
    """An array, times `scale` if of floats; JAX has no other layouts."""
    held = np.asarray(array)
    return np.asarray(held * held.dtype.type(scale)) if is_inexact(held.dtype) else held


def array_of(array: Any) -> Array:
    """The `numbers` of an array in a type of NumPy's: bfloat16 becomes float32."""
    held = numbers(array)
    return held if held.dtype.kind in "fiub" else held.astype(np.float32)


def numbers(array: Any) -> Array:
    """An array as real numbers; a complex one gets a last axis of its two parts."""
    held = np.asarray(array)
    return np.stack((held.real, held.imag), -1) if np.iscomplexobj(held) else held


def same(a: Any, b: Any) -> bool:
    """Whether two arrays are equal, NaN being as good as another NaN."""
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and np.array_equal(array_of(a), array_of(b), True)


# Functions ----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)  # jax.jit wants a hash
class Call:
    """A function of arrays alone, which returns a list of them."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Any
    state: tuple[str, ...] = ()
    within: Callable[..., Any] = mapped  # of the caller's framework

    def __call__(self, *arrays: Any) -> list[Any]:
        """Call the function with these in place of its arrays; return its arrays."""
        given = iter(arrays)
        tree = self.args, dict(self.kwargs)
        args, kwargs = self.within(lambda _: next(given), tree)
        return list(jax.tree.leaves(self.function(*args, **kwargs)))


def bind(candidate: Callable[..., Any], reference: Call, tensors: Any) -> Call:
    """The candidate as a function of the arrays of the reference's call."""
    return replace(reference, function=candidate)


def forward(call: Any, tensors: Sequence[Any], wanted: Sequence[bool]) -> Forward:
    """Run a call; every output of floats is differentiable."""
    outputs = tuple(map(np.asarray, call(*map(jnp.asarray, tensors))))
    return Forward(outputs, tuple(is_inexact(y.dtype) for y in outputs), frozenset())


def started(
    call: Callable[..., Any], arrays: Sequence[Any], wanted: Sequence[bool]
) -> tuple[list[Any], Callable[..., list[Any]]]:
    """Outputs, and the VJP: from cotangents to the gradient by each array.

    An output of another shape than its cotangent contributes nothing to the gradients;
    whole numbers have none. The gradient by a complex x + iy is that by x plus i times
    that by y; JAX's own is the conjugate, and takes conjugates.
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
    """A cotangent as JAX requires it: of the output's own type."""
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


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Raise `Unsupported`, with JAX's message, where JAX does not support an order."""
    try:
        yield
    except (TypeError, NotImplementedError) as error:
        raise Unsupported(in_short(error)) from None


def forks() -> bool:
    """False: a fork of this process would lack JAX's threads."""
    return False


def cause_of(call: Any, bound: Any) -> str:
    """No cause: JAX does not show why a double backward is wrong."""
    return ""


# Settings -----------------------------------------------------------------------------


def device(name: str) -> str:
    """The device that JAX has chosen; ValueError where another one is asked for."""
    if name != "cpu":
        raise ValueError("a function of JAX's runs where JAX does: JAX_PLATFORMS=...")
    return str(jax.default_backend())


def precision(dtype: str) -> contextlib.AbstractContextManager[Any]:
    """Enable JAX's 64-bit types for float64, and where the caller has enabled them."""
    wide = jax.config.jax_enable_x64 or dtype == "float64"
    setting: contextlib.AbstractContextManager[Any] = jax.enable_x64(wide)
    return setting


def settings(
    device: str, compute: str | None
) -> contextlib.AbstractContextManager[Any]:
    """Set nothing: JAX needs no other settings."""
    return contextlib.nullcontext()


# Scripts ------------------------------------------------------------------------------

#: The imports of the script of a failure, and the source that it quotes.
IMPORTS = """\
from contextlib import nullcontext

import jax
import jax.numpy as jnp
from jax.tree_util import tree_leaves"""
HELD = (
    *(observation, is_inexact, numbers, array_of, _with, _like),
    *(started, observe, jvp, hvp, differentiated),
)
