"""NumPy: the page's forward and its hand-written backward."""

from gradwatch.impls.backends._numpy import NumpyBackend, NumpyStep
from gradwatch.impls.contract import Array, Result, Unsupported, as_tuple


class Manual(NumpyStep):
    """Calls the page; `manual` returns its outputs and a backward."""

    def forward(self) -> None:
        """Run the page's forward; state is updated in place."""
        arguments = self.problem.arguments(self.arrays)
        outputs, self._backward = self.said(*arguments, **self.problem.attributes)
        self.outputs = list(as_tuple(outputs))

    def backward(self) -> None:
        """Run the page's backward."""
        self.gradients = self._by_input(self._backward(*self.cotangents))

    def jvp(self) -> Result:
        """A page writes one backward."""
        raise Unsupported("a manual page writes no forward mode")

    def hvp(self) -> Result:
        """A page writes one backward."""
        raise Unsupported("a manual page writes no double backward")

    def _by_input(self, gradients: tuple[Array, ...]) -> dict[str, Array | None]:
        """One gradient per tensor; for a tensor passed twice it is the sum."""
        summed: dict[str, Array | None] = {}
        names = self.problem.op.differentiable
        for name, array in zip(names, gradients, strict=True):
            tensor = self.problem.aliases.get(name, name)
            summed[tensor] = summed[tensor] + array if tensor in summed else array
        return summed


backend = NumpyBackend("manual", Manual)
