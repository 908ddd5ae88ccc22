"""What each primitive of the engine, and each composite, is tried on."""

import numpy as np

from gradwatch.impls import graph


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


def named(name):
    return lambda xp, *inputs: getattr(xp, name)(*inputs)


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
# Names with a dot are another room's: tests/tracing/test_special.py tries those.
ENGINES = {name for name in graph.PRIMITIVES if "." not in name}
UNARY = sorted(ENGINES - set(TRIALS))
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

# What is composed of primitives, tried in the same way: functions of xp and of inputs.
COMPOSED = {
    "a number as the bound": (
        lambda xp, a: xp.maximum(a, 0.5) + xp.minimum(a, -0.5),
        [(5,)],
    ),
    "a number chosen": (
        lambda xp, a: xp.where(a > 0.0, 0.5, a) + xp.where(a > 0.0, a, 0.5),
        [(5,)],
    ),
    "row": (lambda xp, a: a[1], [(3, 2)]),
    "repeated rows": (lambda xp, a: a[INDEX], [(3, 2)]),
    "slices": (lambda xp, a: a[::-1, ..., None, 1:], [(3, 2, 3)]),
    "mask": (lambda xp, a: a[np.array([True, False, True])], [(3, 2)]),
    "index and slice": (lambda xp, a: a[1:, INDEX, np.array([0])], [(3, 2, 2)]),
    "put": (lambda xp, a: xp.put(a, index=1, shape=(3, 2)), [(2,)]),
    "put, repeated": (
        lambda xp, a: xp.put(a, index=np.array([1, 1]), shape=(3, 2)),
        [(2, 2)],
    ),
    "take": (lambda xp, a: xp.take(a, INDEX, axis=1), [(2, 3)]),
    "take_along_axis": (
        lambda xp, a: xp.take_along_axis(a, np.array([[2, 2], [0, 1]]), axis=1),
        [(2, 3)],
    ),
    "expand_dims": (lambda xp, a: xp.expand_dims(a, axis=1), [(2, 3)]),
    "squeeze": (lambda xp, a: a.squeeze(1), [(2, 1, 3)]),
    "mT": (lambda xp, a: a.mT, [(2, 3, 4)]),
    "T": (lambda xp, a: a.T, [(2, 3)]),
    "moveaxis": (lambda xp, a: xp.moveaxis(a, 0, -1), [(2, 3, 4)]),
    "flip": (lambda xp, a: xp.flip(a, axis=1), [(2, 3)]),
    "roll": (lambda xp, a: xp.roll(a, 2, axis=1), [(2, 3)]),
    "repeat": (lambda xp, a: xp.repeat(a, 2, axis=1), [(2, 3)]),
    "tile": (lambda xp, a: xp.tile(a, (2, 2)), [(2, 3)]),
    "sum": (lambda xp, a: xp.sum(a, axis=(0, -1)), [(2, 3, 4)]),
    "cumulative_sum, from 0": (
        lambda xp, a: xp.cumulative_sum(a, axis=0, include_initial=True),
        [(2, 3)],
    ),
    "tril": (named("tril"), [(3, 3)]),
    "triu": (lambda xp, a: xp.triu(a, k=1), [(2, 3, 3)]),
    "diagonal": (named("diagonal"), [(2, 3, 3)]),
    "concat": (lambda xp, a, b: xp.concat([a, b, a], axis=1), [(2, 3), (2, 1)]),
    "stack": (lambda xp, a, b: xp.stack([a, b], axis=-1), [(2, 3), (2, 3)]),
    "unstack": (lambda xp, a: xp.unstack(a, axis=1)[2], [(2, 3)]),
    "pad": (lambda xp, a: xp.pad(a, ((1, 0), (2, 1)), value=3.0), [(2, 3)]),
    "pad, reflected": (lambda xp, a: xp.pad(a, 1, "reflect"), [(2, 3)]),
    "windows": (
        lambda xp, a: xp.sliding_windows(a, (2, 2), stride=2, padding=1, dilation=2),
        [(2, 4, 5)],
    ),
    "convolution": (
        lambda xp, x, w: xp.einsum(
            "bchwij,ocij->bohw", xp.sliding_windows(x, (3, 3), padding=1), w
        ),
        [(2, 2, 4, 3), (3, 2, 3, 3)],
    ),
    "maximum pooling": (
        lambda xp, x: xp.max(
            xp.sliding_windows(x, (2, 2), stride=2, padding=1, value=-np.inf),
            axis=(-2, -1),
        ),
        [(2, 4, 4)],
    ),
    "max, no axis": (lambda xp, a: a.max(), [(2, 3)]),
    "min": (lambda xp, a: xp.min(a, 0, keepdims=True), [(2, 3)]),
    "minimum": (named("minimum"), [(2, 3), (3,)]),
    "clip": (lambda xp, a: xp.clip(a, -0.5, 0.5), [(6,)]),
    "mean": (lambda xp, a: a.mean(axis=1), [(2, 3)]),
    "var": (lambda xp, a: xp.var(a, axis=1, correction=1), [(2, 4)]),
    "std": (lambda xp, a: xp.std(a, axis=0, keepdims=True), [(4, 2)]),
    "prod": (lambda xp, a: xp.prod(a, axis=1), [(2, 5)]),
    "cumulative_prod": (lambda xp, a: xp.cumulative_prod(a, axis=1), [(2, 5)]),
    "logsumexp": (lambda xp, a: xp.logsumexp(a, axis=1), [(2, 4)]),
    "log2": (named("log2"), [(5,)]),
    "log10": (named("log10"), [(5,)]),
    "rsqrt": (named("rsqrt"), [(5,)]),
    "reciprocal": (named("reciprocal"), [(5,)]),
    "hypot": (named("hypot"), [(2, 3), (3,)]),
    "remainder": (lambda xp, a, b: a % b, [(3,), (3,)]),
    "squared": (lambda xp, a: a**2, [(3,)]),
    "cubed": (lambda xp, a: a**3, [(3,)]),
    "power of a number": (lambda xp, a: (2.0 + 0.0 * a) ** a, [(3,)]),
    "vecdot": (named("vecdot"), [(2, 3), (3,)]),
    "outer": (named("outer"), [(2,), (3,)]),
    "tensordot": (lambda xp, a, b: xp.tensordot(a, b, axes=1), [(2, 3), (3, 4)]),
    "tensordot, pairs": (
        lambda xp, a, b: xp.tensordot(a, b, axes=((0, 2), (1, 0))),
        [(2, 3, 4), (4, 2)],
    ),
    "einsum": (
        lambda xp, a, b, c: xp.einsum("bij,bjk,l->bki", a, b, c),
        [(2, 3, 2), (2, 2, 3), (4,)],
    ),
    "einsum, diagonal": (lambda xp, a: xp.einsum("bii->b", a), [(2, 3, 3)]),
    "mask of truth values": (lambda xp, a: a * (a > 0.0), [(6,)]),
}


def on_the_engine(function):
    return lambda *inputs: function(graph, *inputs)


ALL = TRIALS | {n: (on_the_engine(f), shapes) for n, (f, shapes) in COMPOSED.items()}
