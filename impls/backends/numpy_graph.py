"""NumPy: the op's formula, differentiated by our own graph engine."""

from gradwatch.impls import graph
from gradwatch.impls.backends._numpy import NumpyBackend, NumpyStep
from gradwatch.impls.contract import Array, Result, as_tuple


class Graph(NumpyStep):
    """Builds the graph in `forward`, and that of the gradient in `backward`."""

    def forward(self) -> None:
        """Build and evaluate the formula's graph."""
        self.variables = {n: graph.variable(a) for n, a in self.arrays.items()}
        arguments = self.problem.arguments(self.variables)
        returned = self.said(graph, *arguments, **self.problem.attributes)
        self.nodes = as_tuple(returned)
        graph.forward(self.nodes)
        self.outputs = [node.value for node in self.nodes]

    def backward(self) -> None:
        """Build and evaluate the gradient, from the outputs that have one."""
        op = self.problem.op
        pairs = [
            (node, dy)
            for name, node, dy in zip(
                op.outputs, self.nodes, self.cotangents, strict=False
            )
            if name not in op.integers
        ]
        inputs = [self.variables[name] for name in self.problem.wanted]
        nodes, cotangents = [n for n, _ in pairs], [dy for _, dy in pairs]
        gradients = graph.gradient(nodes, cotangents, inputs)
        graph.forward([node for node in gradients if node is not None])
        values = (None if node is None else node.value for node in gradients)
        self.gradients = dict(zip(self.problem.wanted, values, strict=True))

    def jvp(self) -> Result:
        """Forward mode from two backward sweeps: the gradient is linear in dy."""
        return self.derivatives(self._second()[len(self.problem.wanted) :])

    def hvp(self) -> Result:
        """The engine's gradient is a graph, and is differentiated like any other."""
        return self.derivatives(self._second())

    def _second(self) -> list[Array | None]:
        """Gradients of the sum of dx * v by the inputs, then by the cotangents."""
        self.forward()
        named = zip(self.problem.op.outputs, self.nodes, self.cotangents, strict=False)
        pairs = [
            (node, graph.variable(dy))
            for name, node, dy in named
            if name in self.problem.differentiated
        ]
        inputs = [self.variables[name] for name in self.problem.wanted]
        dy = [cotangent for _, cotangent in pairs]
        first = graph.gradient([node for node, _ in pairs], dy, inputs)
        along = [
            (node, v)
            for node, v in zip(first, self.tangents, strict=True)
            if node is not None
        ]
        second = graph.gradient(
            [node for node, _ in along], [v for _, v in along], [*inputs, *dy]
        )
        graph.forward([node for node in second if node is not None])
        return [None if node is None else node.value for node in second]

    def state(self) -> dict[str, Array]:
        """The formula is pure: it returns the new state after the outputs."""
        op = self.problem.op
        return dict(zip(op.state, self.outputs[len(op.outputs) :], strict=True))


backend = NumpyBackend("formula", Graph)
