"""JAX: the page's hand-written backward, as a custom_vjp, compiled by XLA."""

from typing import Any

import jax

from gradwatch.impls.backends._jax import compiled, door
from gradwatch.impls.backends._jax_tensor import Tensor
from gradwatch.impls.contract import Problem, as_tuple


class Context:
    """The `ctx` of a page's class: tensors that `forward` saves for `backward`."""

    def __init__(self, saved: Any = ()) -> None:
        self.saved_tensors = tuple(map(Tensor, saved))

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors; they are not written to afterwards."""
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *tensors: Tensor) -> None:
        """Do nothing: JAX sees that they are integers."""


def custom(problem: Problem, said: Any, _: Any) -> Any:
    """The page's class as a function of arrays, which returns the new state, too."""
    op, attributes = problem.op, problem.attributes
    written = [op.inputs.index(name) for name in op.state]

    def forward(*arrays: Any) -> Any:
        context, tensors = Context(), list(map(Tensor, arrays))
        y = as_tuple(said.forward(context, *tensors, **attributes))
        returned = (*y, *(tensors[i] for i in written))
        return tuple(t.array for t in returned), [
            t.array for t in context.saved_tensors
        ]

    def backward(saved: Any, cotangents: Any) -> Any:
        dys = map(Tensor, cotangents[: len(op.outputs)])
        gradients = as_tuple(said.backward(Context(saved), *dys, **attributes))
        return tuple(None if g is None else g.array for g in gradients)

    function = jax.custom_vjp(lambda *arrays: forward(*arrays)[0])
    function.defvjp(forward, backward)
    return function


# JAX refuses forward mode of a custom_vjp. A page's backward is written to be run, not
# to be differentiated: where it fills in a value, JAX gives a slope that is not finite.
backend = door(dialect="custom", bind=custom, vjp=compiled, jvp=None, hvp=None)
