"""What each primitive of the engine, and each composite, is tried on."""

import numpy as np

from impls import graph
from tests.balls import balls


def any_sign(rng, shape):
    return rng.standard_normal(shape)


def positive(rng, shape):
    return 0.5 + rng.random(shape)


def inside(rng, shape):
    """Between -.9 and .9."""
    return rng.uniform(-0.9, 0.9, shape)


def above_one(rng, shape):
    return 1.1 + rng.random(shape)


def unary(name):
    return getattr(graph, name), [(5,)]


def as_float(condition, like):
    return graph.where(condition, 1.0, 0.0) * like


INDEX = np.array([1, 1, 0, 1])
# A function of nodes, and shapes of its inputs, for each primitive by its name.
TRIALS = {
    "add": (lambda a, b: a + b, [(2, 3), (3,)]),
    "subtract": (lambda a, b: a - b, [(3, 1), (1, 4)]),
    "multiply": (lambda a, b: a * b, [(2, 3), ()]),
    "divide": (lambda a, b: a / b, [(2, 1), (2, 3)]),
    "negative": (lambda a: -a, [(3,)]),
    "pow": (lambda a, b: a**b, [(2, 3), (3,)]),
    "atan2": (graph.atan2, [(2, 3), (3,)]),
    "sign": (lambda a: a * graph.sign(a), [(3,)]),
    "stop_gradient": (
        lambda a: a * graph.stop_gradient(graph.variable(np.array(3.0))),
        [()],
    ),
    "astype": (lambda a: a * graph.astype(a > 0.0, a.dtype), [(6,)]),
    "compare": (lambda a, b: as_float(a < b, a), [(2, 3), (3,)]),
    "logical": (lambda a, b: as_float((a < b) & ~(a < 0.0), a), [(20,), (20,)]),
    "where": (lambda a, b: graph.where(a < 0.0, a, b), [(2, 3), (3,)]),
    "step": (lambda a: a * graph.floor(3.0 * a), [(6,)]),
    "abs": (graph.abs, [(3,)]),
    "maximum": (graph.maximum, [(2, 3), (3,)]),
    "share": (lambda a, b: a * graph.share(a, b, at_tie=1.0), [(3,), (3,)]),
    "max": (lambda a: graph.max(a, axis=0), [(4, 3)]),
    "pick": (lambda a: a * graph.pick(a, axis=1, convention="even"), [(2, 3)]),
    "argmax": (lambda a: a + graph.argmax(a, axis=0), [(3,)]),
    "sum": (lambda a: graph.sum(a, axis=(0, 2)), [(2, 3, 2)]),
    "sum_to": (lambda a: graph.sum_to(a, shape=(3, 1)), [(2, 3, 4)]),
    "cumulative_sum": (lambda a: graph.cumulative_sum(a, axis=1), [(2, 5)]),
    "matmul": (graph.matmul, [(2, 1, 2, 3), (2, 3, 2)]),
    "reshape": (lambda a: graph.reshape(a, (3, 2)), [(2, 3)]),
    "permute_dims": (lambda a: graph.permute_dims(a, (2, 0, 1)), [(2, 3, 4)]),
    "broadcast_to": (lambda a: graph.broadcast_to(a, (2, 3, 4)), [(3, 1)]),
    "gather": (
        lambda a, b: graph.gather(a, b, index=[[8, 0, -1], [1, 7, 1]]),
        [(2, 3), (3,)],
    ),
    "scatter_add": (
        lambda a: graph.scatter_add(a, index=[[5, 0, 5], [-1, 5, 2]], shape=(3, 2)),
        [(2, 3)],
    ),
}
UNARY = sorted(name for name in graph.PRIMITIVES if name not in TRIALS)
TRIALS |= {name: unary(name) for name in UNARY}

# Where a function is not defined, or not differentiable, everywhere.
DRAWN = {
    **dict.fromkeys(("log", "log2", "log10", "sqrt", "rsqrt", "pow"), positive),
    **dict.fromkeys(("divide", "reciprocal", "remainder"), positive),
    **dict.fromkeys(("asin", "acos", "atanh"), inside),
    "log1p": positive,
    "acosh": above_one,
    "cumulative_prod": positive,
}

# What is composed of primitives, tried in the same way.
COMPOSED = {
    "row": (lambda a: a[1], [(3, 2)]),
    "repeated rows": (lambda a: a[INDEX], [(3, 2)]),
    "slices": (lambda a: a[::-1, ..., None, 1:], [(3, 2, 3)]),
    "mask": (lambda a: a[np.array([True, False, True])], [(3, 2)]),
    "index and slice": (lambda a: a[1:, INDEX, np.array([0])], [(3, 2, 2)]),
    "put": (lambda a: graph.put(a, index=1, shape=(3, 2)), [(2,)]),
    "put, repeated": (
        lambda a: graph.put(a, index=np.array([1, 1]), shape=(3, 2)),
        [(2, 2)],
    ),
    "take": (lambda a: graph.take(a, INDEX, axis=1), [(2, 3)]),
    "take_along_axis": (
        lambda a: graph.take_along_axis(a, np.array([[2, 2], [0, 1]]), axis=1),
        [(2, 3)],
    ),
    "expand_dims": (lambda a: graph.expand_dims(a, axis=1), [(2, 3)]),
    "squeeze": (lambda a: a.squeeze(1), [(2, 1, 3)]),
    "mT": (lambda a: a.mT, [(2, 3, 4)]),
    "T": (lambda a: a.T, [(2, 3, 4)]),
    "moveaxis": (lambda a: graph.moveaxis(a, 0, -1), [(2, 3, 4)]),
    "flip": (lambda a: graph.flip(a, axis=1), [(2, 3)]),
    "roll": (lambda a: graph.roll(a, 2, axis=1), [(2, 3)]),
    "repeat": (lambda a: graph.repeat(a, 2, axis=1), [(2, 3)]),
    "tile": (lambda a: graph.tile(a, (2, 2)), [(2, 3)]),
    "tril": (graph.tril, [(3, 3)]),
    "triu": (lambda a: graph.triu(a, k=1), [(2, 3, 3)]),
    "diagonal": (graph.diagonal, [(2, 3, 3)]),
    "concat": (lambda a, b: graph.concat([a, b, a], axis=1), [(2, 3), (2, 1)]),
    "stack": (lambda a, b: graph.stack([a, b], axis=-1), [(2, 3), (2, 3)]),
    "unstack": (lambda a: graph.unstack(a, axis=1)[2], [(2, 3)]),
    "pad": (lambda a: graph.pad(a, ((1, 0), (2, 1)), value=3.0), [(2, 3)]),
    "pad, reflected": (lambda a: graph.pad(a, 1, "reflect"), [(2, 3)]),
    "windows": (
        lambda a: graph.sliding_windows(a, (2, 2), stride=2, padding=1, dilation=2),
        [(2, 4, 5)],
    ),
    "convolution": (
        lambda x, w: graph.einsum(
            "bchwij,ocij->bohw", graph.sliding_windows(x, (3, 3), padding=1), w
        ),
        [(2, 2, 4, 3), (3, 2, 3, 3)],
    ),
    "maximum pooling": (
        lambda x: graph.max(
            graph.sliding_windows(x, (2, 2), stride=2, padding=1, value=-9.0),
            axis=(-2, -1),
        ),
        [(2, 4, 4)],
    ),
    "max, no axis": (lambda a: a.max(), [(2, 3)]),
    "min": (lambda a: a.min(0, keepdims=True), [(2, 3)]),
    "minimum": (graph.minimum, [(2, 3), (3,)]),
    "clip": (lambda a: graph.clip(a, -0.5, 0.5), [(6,)]),
    "mean": (lambda a: a.mean(axis=1), [(2, 3)]),
    "var": (lambda a: graph.var(a, axis=1, correction=1), [(2, 4)]),
    "std": (lambda a: graph.std(a, axis=0, keepdims=True), [(4, 2)]),
    "prod": (lambda a: graph.prod(a, axis=1), [(2, 5)]),
    "cumulative_prod": (lambda a: graph.cumulative_prod(a, axis=1), [(2, 5)]),
    "logsumexp": (lambda a: graph.logsumexp(a, axis=1), [(2, 4)]),
    "log2": unary("log2"),
    "log10": unary("log10"),
    "rsqrt": unary("rsqrt"),
    "reciprocal": unary("reciprocal"),
    "hypot": (graph.hypot, [(2, 3), (3,)]),
    "remainder": (lambda a, b: a % b, [(3,), (3,)]),
    "squared": (lambda a: a**2, [(3,)]),
    "cubed": (lambda a: a**3, [(3,)]),
    "power of a number": (lambda a: graph.variable(balls(2.0)) ** a, [(3,)]),
    "vecdot": (graph.vecdot, [(2, 3), (3,)]),
    "outer": (graph.outer, [(2,), (3,)]),
    "tensordot": (lambda a, b: graph.tensordot(a, b, axes=1), [(2, 3), (3, 4)]),
    "tensordot, pairs": (
        lambda a, b: graph.tensordot(a, b, axes=((0, 2), (1, 0))),
        [(2, 3, 4), (4, 2)],
    ),
    "einsum": (
        lambda a, b, c: graph.einsum("bij,bjk,l->bki", a, b, c),
        [(2, 3, 2), (2, 2, 3), (4,)],
    ),
    "einsum, diagonal": (lambda a: graph.einsum("bii->b", a), [(2, 3, 3)]),
    "mask of truth values": (lambda a: a * (a > 0.0), [(6,)]),
}
ALL = TRIALS | COMPOSED
