"""The door of HIPS/autograd, which differentiates NumPy and needs no waiting."""

from functools import partial
from importlib.metadata import version
from typing import Any

import autograd.numpy as anp
import numpy as np
from autograd.builtins import tuple as box
from autograd.core import make_vjp
from autograd.extend import defvjp, primitive
from autograd.tracer import getval

from gradwatch.impls.backends._functional import COMPOSED, Functional, Names
from gradwatch.impls.backends._hips_second import hvp, jvp
from gradwatch.impls.backends._hips_special import SPECIAL

TRAITS = {
    "title": "HIPS/autograd",
    "forks": True,
    "second_order_listed": True,
    "names": {
        "": "np",
        "sigmoid": "special.expit",
        "erf": "special.erf",
        "logsumexp": "special.logsumexp",
        "stop_gradient": "getval",
    },
}

stop_gradient = primitive(lambda x: x)
defvjp(stop_gradient, None)


def vjp(call: Any, wanted: Any, others: Any) -> tuple[Any, Any]:
    """The results of a call by name, and its backward."""
    named: dict[str, Any] = {}

    def function(tensors: Any) -> Any:
        floating, everything = call(tensors, others)
        named.update((name, getval(tensor)) for name, tensor in everything.items())
        return box(floating)

    back, _ = make_vjp(function, tuple(wanted))
    return named, back


# It exports all of NumPy, but does not differentiate all of it.
names = Names(anp, *COMPOSED, **SPECIAL, stop_gradient=stop_gradient)
door = partial(
    Functional,
    "autograd",
    version("autograd"),
    first=names,
    tensor=np.asarray,
    array=np.array,
    vjp=vjp,
    jvp=jvp,
    hvp=hvp,
    dtypes=("float64", "float32", "float16"),
    copies=False,
)
