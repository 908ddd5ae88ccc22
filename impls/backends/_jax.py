"""JAX's door: the CPU, 64 bits, and as many threads as were asked for."""

import os
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gradwatch.impls.backends._functional import Functional, Names, own_names
from gradwatch.impls.backends._jax_second import hvp, jvp

TRAITS = {
    "title": "JAX",
    "compiles": True,
    "flushes": "XLA's threads on the CPU take subnormal numbers for zero",
    "learns_wanted": False,
    "second_order_listed": True,
    "names": {
        "": "jnp",
        "take": "jnp.take",
        "astype": "jnp.astype",
        "sigmoid": "jax.nn.sigmoid",
        "logsumexp": "jax.nn.logsumexp",
        "stop_gradient": "jax.lax.stop_gradient",
        "erf": "jax.lax.erf",
        "rsqrt": "jax.lax.rsqrt",
    },
}


def settled() -> str:
    """JAX's version, once it is set up; XLA counts the cores unless NPROC does."""
    os.environ["NPROC"] = os.environ.get("OMP_NUM_THREADS", "1")
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    return str(jax.__version__)


def vjp(call: Any, wanted: Any, others: Any) -> tuple[Any, Any]:
    """The results of a call by name, and its backward."""
    _, back, named = jax.vjp(lambda *w: call(w, others), *wanted, has_aux=True)
    return named, back


forward = jax.jit(vjp, static_argnums=0)
backward = jax.jit(lambda back, cotangents: back(cotangents))


def compiled(call: Any, wanted: Any, others: Any) -> tuple[Any, Any]:
    """Likewise, compiled by XLA as a whole, once for all tensors of the same shapes."""
    named, back = forward(call, wanted, others)
    return named, partial(backward, back)


door = partial(
    Functional,
    "jax",
    settled(),
    first=Names(jnp, **own_names(TRAITS, jax=jax)),
    tensor=jnp.array,
    array=np.array,
    vjp=vjp,
    jvp=jvp,
    hvp=hvp,
    wait=jax.block_until_ready,
    forget=jax.clear_caches,
)
