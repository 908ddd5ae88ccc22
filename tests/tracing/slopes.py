"""The gradient of a traced function, by the engine's rules."""

from gradwatch.impls import graph


def gradients(made, cotangents, wanted=None):
    """The gradient by each wanted leaf (all, if not said), named "d" + its name.

    None where no path leads to a leaf; outputs that have no cotangent get none.
    """
    wanted = list(made.leaves if wanted is None else wanted)
    outputs = [made.outputs[name] for name in cotangents]
    leaves = [made.leaves[name] for name in wanted]
    nodes = graph.gradient(outputs, list(cotangents.values()), leaves)
    return {f"d{name}": node for name, node in zip(wanted, nodes, strict=True)}
