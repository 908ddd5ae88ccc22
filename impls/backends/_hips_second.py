"""Forward mode and second order of HIPS/autograd, for its door."""

from typing import Any

from autograd.builtins import tuple as box
from autograd.core import make_jvp, make_vjp


def jvp(call: Any, wanted: Any, others: Any, tangents: Any) -> Any:
    """Forward mode."""
    pushed = make_jvp(lambda w: box(call(w, others)[0]), tuple(wanted))
    return tuple(pushed(tangents)[1])


def hvp(call: Any, wanted: Any, others: Any, cotangents: Any, tangents: Any) -> Any:
    """The backward of a backward."""

    def first(both: Any) -> Any:
        back, _ = make_vjp(lambda w: box(call(w, others)[0]), both[0])
        return back(both[1])

    back, _ = make_vjp(first, box((box(tuple(wanted)), box(cotangents))))
    by_inputs, by_cotangents = back(tangents)
    return *by_inputs, *by_cotangents
