"""Forward mode and second order of JAX, for its door."""

from typing import Any

import jax


def jvp(call: Any, wanted: Any, others: Any, tangents: Any) -> Any:
    """Forward mode."""
    _, out = jax.jvp(lambda *w: call(w, others)[0], tuple(wanted), tangents)
    return out


def hvp(call: Any, wanted: Any, others: Any, cotangents: Any, tangents: Any) -> Any:
    """The backward of a backward."""

    def first(w: Any, dy: Any) -> Any:
        _, back = jax.vjp(lambda *v: call(v, others)[0], *w)
        return back(dy)

    _, back = jax.vjp(first, tuple(wanted), cotangents)
    by_inputs, by_cotangents = back(tangents)
    return *by_inputs, *by_cotangents
