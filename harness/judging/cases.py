"""Makes the inputs of every op: regimes of values, the same for all backends.

An op page states shapes and, if necessary, a domain; everything else is here. The
name of a case, such as layer_norm[shifted-3x8-float32], is its identity in history and
the seed of its numbers: adding or removing another case changes nothing in it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from gradwatch.harness.judging.orders import run_formula
from gradwatch.harness.judging.precisions import PRECISIONS, Array, Precision
from gradwatch.impls import graph
from gradwatch.impls.contract import Case, Op, Problem

Generator = np.random.Generator
Values = Callable[[Generator, tuple[int, ...], Precision], Array]


def _normal(rng: Generator, shape: tuple[int, ...], _: object = None) -> Array:
    return np.asarray(rng.standard_normal(shape))


def _mixed(rng: Generator, shape: tuple[int, ...], precision: Precision) -> Array:
    """Values of ten decades, none beyond the range: infinities are `infnan`'s."""
    values = _normal(rng, shape) * 10.0 ** rng.uniform(-5, 5, shape)
    return np.clip(values, -precision.largest, precision.largest)


def _constant(rng: Generator, shape: tuple[int, ...], _: Precision) -> Array:
    """Every row a constant, at mean 1e4: a variance of exactly zero."""
    rows = 1e4 * _normal(rng, shape[:-1])
    return np.broadcast_to(rows[..., None], shape).copy() if shape else rows


def _zeros(rng: Generator, shape: tuple[int, ...], _: Precision) -> Array:
    """Zeros of both signs among ordinary numbers."""
    values = _normal(rng, shape)
    return np.where(rng.random(shape) < 0.5, np.copysign(0.0, values), values)


def _infnan(rng: Generator, shape: tuple[int, ...], _: Precision) -> Array:
    """Ordinary numbers, but the first element is infinite and the last is NaN."""
    values = _normal(rng, shape).reshape(-1)
    values[:1], values[-1:] = np.inf, np.nan
    return values.reshape(shape)


def _repeated(rng: Generator, shape: tuple[int, ...], _: Precision) -> Array:
    """Equal values along the first axis longer than 1, so that its stride can be 0."""
    first = next((axis for axis, length in enumerate(shape) if length > 1), None)
    kept = tuple(1 if axis == first else n for axis, n in enumerate(shape))
    return np.broadcast_to(_normal(rng, kept), shape).copy()


#: Just above the block sizes of kernels, which are powers of two.
TAILS = (1025, 257, 129)


def lengths(op: Op, case: Case) -> tuple[int, ...]:
    """The lengths of a case that may vary, in the order in which they appear.

    Equal ones vary together, so that those of linear's x=(4, 5), weight=(3, 5) stay
    equal; a length of 1, which is broadcast, is kept. An op with the same shapes in all
    its cases and sizes (neuron) has no others.
    """
    everywhere = (*op.cases.values(), *op.sizes.values())
    if len({tuple(op.shapes(c).values()) for c in everywhere}) < 2:
        return ()
    varying = (n for shape in op.shapes(case).values() for n in shape if n != 1)
    return tuple(dict.fromkeys(varying))


def resized(op: Op, case: Case, change: Mapping[int, int]) -> Case:
    """The case with some lengths changed, named after its shapes."""
    shapes = {
        name: tuple(change.get(n, n) for n in shape)
        for name, shape in op.shapes(case).items()
    }
    # Such as 4x5-3x5-3; a scalar is called so.
    name = "-".join("x".join(map(str, s)) or "scalar" for s in shapes.values())
    return Case(name, **{**case.fields, **shapes})


def empty(op: Op) -> list[Case]:
    """The first length is 0, in the case that has most of them."""
    richest = max(op.cases.values(), key=lambda case: len(lengths(op, case)))
    return [resized(op, richest, {length: 0}) for length in lengths(op, richest)[:1]]


def single(op: Op) -> Iterable[Case]:
    """Every length is 1: one case for each number of axes."""
    ones: dict[str, Case] = {}
    for case in op.cases.values():
        if varying := lengths(op, case):
            changed = resized(op, case, dict.fromkeys(varying, 1))
            ones.setdefault(changed.name, changed)
    return ones.values()


def tails(op: Op) -> list[Case]:
    """Each length in turn just above a power of two, where a kernel's last block ends.

    Of the case that has most lengths, the last of them longest.
    """
    richest = max(op.cases.values(), key=lambda case: len(lengths(op, case)))
    pairs = zip(lengths(op, richest)[::-1], TAILS, strict=False)
    return [resized(op, richest, {length: tail}) for length, tail in pairs]


@dataclass(frozen=True)
class Regime:
    """How shapes (else the page's cases), values, cotangents and layouts are chosen.

    Where `axes` is set, only cases with an input of that many axes are run: with fewer,
    the layout is that of C order. `first_only` leaves the other inputs normal:
    infinities everywhere say nothing.
    """

    name: str
    values: Values = _normal
    shapes: Callable[[Op], Iterable[Case]] | None = None
    cotangent: str = "random"
    layout: str = "contiguous"
    cotangent_layout: str = "contiguous"
    axes: int = 0
    dtypes: tuple[str, ...] = tuple(PRECISIONS)
    first_only: bool = False

    def cases(self, op: Op) -> Iterator[Case]:
        """The cases of an op that this regime runs; its formula takes them all."""
        for case in self.shapes(op) if self.shapes else op.cases.values():
            axes = max(map(len, op.shapes(case).values()))
            if axes >= self.axes and (not self.shapes or admits(op, case)):
                yield case


_ALL = (
    Regime("normal"),
    Regime("shifted", lambda rng, shape, _: 1e4 + 1e-3 * _normal(rng, shape)),
    Regime("large", lambda rng, shape, _: 1e3 * _normal(rng, shape)),
    # Integers of float32 are no longer exact at 1e7; less where that overflows.
    Regime(
        "huge", lambda rng, shape, p: min(1e7, p.largest / 64) * _normal(rng, shape)
    ),
    Regime("tiny", lambda rng, shape, _: 1e-6 * _normal(rng, shape)),
    Regime("mixed", _mixed),
    # So few different values that most maxima occur twice.
    Regime("ties", lambda rng, shape, _: rng.integers(-1, 2, shape) / 2.0),
    Regime("constant", _constant),
    Regime("zeros", _zeros),
    Regime("subnormal", lambda rng, shape, p: _normal(rng, shape) * p.smallest / 8),
    Regime("infnan", _infnan, first_only=True),
    Regime("dy_ones", cotangent="ones"),
    Regime("dy_zeros", cotangent="zeros"),
    Regime("dy_large", cotangent="large"),
    Regime("dy_transposed", cotangent_layout="permuted"),
    Regime("dy_expanded", cotangent="repeated", cotangent_layout="expanded"),
    Regime("permuted", layout="permuted", axes=2),
    Regime("sliced", layout="sliced", axes=1),
    Regime("expanded", _repeated, layout="expanded", axes=1),
    Regime("negative", layout="negative", axes=1),
    # Only once: OneFlow crashes on many of them, and sizes do not depend on precision.
    Regime("empty", shapes=empty, dtypes=("float32",)),
    Regime("single", shapes=single),
    Regime("tails", shapes=tails),
)
REGIMES = {regime.name: regime for regime in _ALL}


@dataclass(frozen=True)
class Trial:
    """One case of an op with its input values; every backend runs it."""

    op: str
    case: str
    regime: str
    problem: Problem
    layout: str = "contiguous"
    cotangent_layout: str = "contiguous"

    @property
    def stress(self) -> bool:
        """Whether backends are run in unusual ways, too: once, for it costs as much."""
        return self.regime == "normal" and self.order == "vjp"

    @property
    def order(self) -> str:
        """One of `harness.judging.orders`."""
        return self.problem.order

    @cached_property
    def name(self) -> str:
        """Such as layer_norm[shifted-3x8-float32-hvp], without a first order's vjp."""
        order = "" if self.order == "vjp" else f"-{self.order}"
        dtype = f"{self.problem.dtype}{order}"
        return case_name(self.problem.op.name, self.regime, self.case, dtype)


def case_name(op: str, regime: str, case: str, dtype: str) -> str:
    """The stable, readable name of a case."""
    return f"{op}[{regime}-{case}-{dtype}]"


def trials(
    op: Op,
    *,
    regimes: Iterable[str] = tuple(REGIMES),
    dtypes: Iterable[str] = ("float32", "float64"),
    seed: int = 0,
    source: str = "",
    orders: Sequence[str] = ("vjp",),
) -> Iterator[Trial]:
    """All cases of an op in some regimes and precisions, with their numbers.

    Workers find the op by `source`: its name, or the path of its page.
    """
    dtypes = tuple(dtypes)
    for regime in map(REGIMES.__getitem__, regimes):
        for case in regime.cases(op):
            for dtype in dtypes:
                if dtype in regime.dtypes:
                    first = trial(op, case, regime, dtype, seed, source)
                    yield from (of_order(first, order, seed) for order in orders)


def of_order(one: Trial, order: str, seed: int = 0) -> Trial:
    """The trial in another order, along random tangents, the same in each order."""
    if order == "vjp":
        return one
    problem, name = one.problem, one.name
    # The 2 tells them apart from the inputs and cotangents of the same case.
    rng = np.random.default_rng([seed, zlib.crc32(name.encode()), 2])
    tangents = dict[str, Array]()
    for name in problem.wanted:
        held = PRECISIONS[problem.dtype].round(_normal(rng, problem.inputs[name].shape))
        tangents[name] = held.astype(problem.inputs[name].dtype)
    return replace(one, problem=replace(problem, order=order, tangents=tangents))


def trial(
    op: Op, case: Case, regime: Regime, dtype: str, seed: int = 0, source: str = ""
) -> Trial:
    """One case with its numbers, exactly representable in `dtype`."""
    name = case_name(op.name, regime.name, case.name, dtype)
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    values, constants = dict[str, Array](), op.draw_constants(case, rng)
    for i, (tensor, shape) in enumerate(op.shapes(case).items()):
        draw = _normal if regime.first_only and i else regime.values
        given = constants.get(tensor)
        values[tensor] = draw(rng, shape, PRECISIONS[dtype]) if given is None else given
    cotangents = [
        None if shape is None else cotangent(rng, shape, regime.cotangent)
        for shape in output_shapes(op, case)
    ]
    return Trial(
        source or op.name,
        case.name,
        regime.name,
        problem_with(op, case, values, cotangents, dtype),
        regime.layout,
        regime.cotangent_layout,
    )


def is_floating(array: Array) -> bool:
    """False of integers and truth values, which are constants and never rounded."""
    return array.dtype.kind not in "biu"


def problem_with(
    op: Op,
    case: Case,
    values: Mapping[str, Array],
    cotangents: Sequence[Array | None],
    dtype: str,
) -> Problem:
    """A case with these numbers, brought into the domain and rounded to `dtype`."""
    held = "float32" if dtype == "bfloat16" else dtype

    def exact(array: Array) -> Array:
        with np.errstate(over="ignore"):
            return PRECISIONS[dtype].round(np.asarray(array)).astype(held)

    return Problem(
        op,
        {
            name: exact(_into(a, op.domain.get(name))) if is_floating(a) else a
            for name, a in values.items()
        },
        [None if a is None else exact(a) for a in cotangents],
        op.attributes(case),
        op.aliases(case),
        dtype,
    )


def _into(values: Array, domain: tuple[float, float] | None) -> Array:
    """Scale values into a bounded domain; mirror them into a half line."""
    if domain is None:
        return values
    low, high = domain
    if np.isinf(high):
        return low + np.maximum(np.abs(values), np.finfo(np.float32).tiny)
    reach = min(-low, high)
    largest = np.abs(values[np.isfinite(values)]).max(initial=0.0)
    return values * (0.99 * reach / largest) if largest > reach else values


def cotangent(rng: Generator, shape: tuple[int, ...], kind: str) -> Array:
    """Numbers for a cotangent, in float64.

    random  signed: ones hide wrong backwards of softmax and of the norms
    ones    as sum().backward() gives
    zeros   half of the elements are 0, as behind a mask or an unused output
    large   around 1e3, as with a scaled loss
    repeated  the same along the first axis, whose stride can then be 0
    """
    if kind == "ones":
        return np.ones(shape)
    if kind == "repeated":
        return _repeated(rng, shape, PRECISIONS["float64"])
    values = np.asarray(rng.standard_normal(shape))
    if kind == "zeros":
        return np.where(rng.random(shape) < 0.5, 0.0, values)
    return np.asarray(1e3 * values if kind == "large" else values)


#: How NumPy and Python refuse shapes.
REFUSALS = (ValueError, IndexError, ZeroDivisionError)


def admits(op: Op, case: Case) -> bool:
    """Whether the op's formula takes shapes that its page does not list."""
    try:
        output_shapes(op, case)
    except REFUSALS:
        return False
    return True


@lru_cache(maxsize=1024)  # all cases of all pages; the fuzzer draws new ones for ever
def output_shapes(op: Op, case: Case) -> tuple[tuple[int, ...] | None, ...]:
    """Shapes of the outputs of a case; None for an integer output, without gradient."""
    arrays = {n: np.ones(s) for n, s in op.shapes(case).items()}
    arrays |= op.draw_constants(case, np.random.default_rng(0))
    leaves = {n: graph.variable(a) for n, a in arrays.items()}
    problem = Problem(op, {}, (), op.attributes(case), op.aliases(case))
    outputs = run_formula(problem, leaves)
    for node in graph.topological_order(outputs):
        if node.primitive and node.primitive.name == "max":
            np.max(node.inputs[0].value, node.attributes["axis"])  # of no elements
    return tuple(
        None if name in op.integers else node.value.shape  # computed: that may fail
        for name, node in zip(op.outputs, outputs, strict=False)
    )
