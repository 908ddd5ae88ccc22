"""Chooses the trials: regimes, sizes, the caller's options, and the budget."""

from __future__ import annotations

import functools
import itertools
import math
import re
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from gradwatch.harness.judging.cases import REGIMES, TAILS, Regime, cotangent
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.question import MOST, Cost
from gradwatch.harness.project.machines import memory, release_memory
from gradwatch.impls.catalogue import known

#: Precision of the parts of complex numbers.
COMPLEX = {"complex64": "float32", "complex128": "float64"}
#: Lengths of the small trials: different, odd, one of them above 32 (a warp).
SMALL = (33, 7, 5, 3)
#: A tail of two axes at once, such as height and width.
SQUARED = 65


@dataclass(frozen=True)
class Spec:
    """An input to be made: "float", "complex", "bool", or "int" below `below`.

    `pinned` are lengths that never vary.
    """

    shape: tuple[int, ...]
    kind: str = "float"
    below: int = 0
    pinned: tuple[int, ...] = ()

    @property
    def is_inexact(self) -> bool:
        """Whether its numbers are rounded."""
        return self.kind in ("float", "complex")

    def __str__(self) -> str:
        return "x".join(map(str, self.shape)) or "scalar"


Specs = tuple[Spec, ...]


def with_complex(specs: Specs) -> Specs:
    """Complex numbers in place of floats."""
    floats = {"float": "complex"}
    return tuple(replace(s, kind=floats.get(s.kind, s.kind)) for s in specs)


#: Shapes as a caller writes them: one for each input, or a single one as it is.
Shapes = str | Sequence[int] | Sequence[str | Sequence[int]]


def each(shapes: Shapes) -> Specs:
    """The spec of each input."""
    alone = isinstance(shapes, str) or all(isinstance(n, int) for n in shapes)
    listed: Any = [shapes] if alone else shapes
    return tuple(parsed(shape) for shape in listed)


def parsed(shape: str | Sequence[int]) -> Spec:
    """A shape as the caller wrote it; ValueError where it is none."""
    if not isinstance(shape, str):
        return Spec(tuple(int(n) for n in shape))
    lengths, _, kind = shape.partition(":")
    parts = lengths.split("x") if lengths else []
    try:
        size = tuple(int(n.removeprefix("=")) for n in parts)
        pinned = tuple(int(n[1:]) for n in parts if n.startswith("="))
        if min(size, default=0) < 0:
            raise ValueError
        if kind in ("", "float", "complex", "bool"):
            return Spec(size, kind or "float", pinned=pinned)
        return Spec(size, "int", int(kind), pinned)
    except ValueError:
        raise ValueError(
            f"no shape {shape!r}; write 64x1000, 64x=3 where the 3 must stay,"
            " 64x1000:bool for a mask, 64:complex, or 32:10 for whole numbers below 10"
        ) from None


def named(specs: Specs) -> str:
    """A name of shapes, such as 64x1000-1000."""
    return "-".join(map(str, specs))


def lengths(specs: Specs, pinned: Sequence[int] = ()) -> tuple[int, ...]:
    """The lengths that may vary, longest first; 1 is there to be broadcast."""
    everywhere = {n for spec in specs for n in spec.shape}
    kept = {1, *pinned, *(n for spec in specs for n in spec.pinned)}
    return tuple(sorted(everywhere - kept, reverse=True))


def resized(specs: Specs, change: Mapping[int, int]) -> Specs:
    """The same inputs with some lengths changed; labels stay below what they index."""
    made = []
    for spec in specs:
        # The length that labels index is the one they stay below, or a longer one.
        longer = [new for n, new in change.items() if n > spec.below]
        below = change.get(spec.below, min([spec.below, *longer]))
        shape = tuple(change.get(n, n) for n in spec.shape)
        made.append(replace(spec, shape=shape, below=below))
    return tuple(made)


def smaller(specs: Specs, pinned: Sequence[int] = ()) -> Specs:
    """Shapes of few elements, where a wrong value stands out; short lengths stay."""
    return resized(specs, _shortened(lengths(specs, pinned), SMALL))


def tails(specs: Specs, pinned: Sequence[int] = ()) -> Iterator[Specs]:
    """The shapes with each length in turn just above a power of two, others small.

    Two axes of one length grow together, and less.
    """
    free = lengths(specs, pinned)
    base = _shortened(free, SMALL[1:])
    turns = [*zip(free, TAILS, strict=False)]
    turns += [(free[0], TAILS[-1])] * (len(free) == 1)
    for n, tail in turns:
        twice = any(spec.shape.count(n) > 1 for spec in specs)
        yield resized(specs, {**base, n: SQUARED if twice else tail})


def _shortened(free: Sequence[int], to: Sequence[int]) -> dict[int, int]:
    """Lengths mapped to the shorter ones of `to`, longest first; its last repeats."""
    short = itertools.chain(to, itertools.repeat(to[-1]))
    return {n: min(n, s) for n, s in zip(free, short, strict=False)}


def rows_varied(specs: Specs, length: int) -> Specs:
    """The shapes with another first length, for equal lengths that mean two axes."""
    first = specs[0].shape[:1]
    if {*first} & {n for s in specs for n in s.pinned}:
        return specs
    return tuple(
        replace(s, shape=(length, *s.shape[1:])) if s.shape[:1] == first else s
        for s in specs
    )


#: Tried first at the small size: where each takes seconds, time is up after a few.
FIRST = ("normal", "large", "mixed", "dy_zeros", "permuted")
#: Inputs for which most functions guarantee nothing: they are reported apart.
EDGES = ("huge", "shifted", "constant", "subnormal", "infnan", "empty")
#: Regimes whose layout and cotangents the caller's own numbers get.
HANDED_OVER = (
    *("dy_zeros", "large", "permuted", "sliced", "dy_large", "dy_expanded", "tiny"),
)
#: Factors of the caller's numbers: an eps or a threshold shows elsewhere than at 1.
SCALES = {"large": 1e3, "tiny": 1e-3}


def _peaked(rng: np.random.Generator, shape: tuple[int, ...], _: Any) -> Any:
    """Normal numbers, but one of 20 in each row, like the logits of a sure answer."""
    values = np.asarray(rng.standard_normal(shape))
    if values.size:
        top = rng.integers(0, shape[-1:] or 1, (*shape[:-1], 1))
        np.put_along_axis(np.atleast_1d(values), top, 20.0, -1)
    return values


#: Regimes of the caller's own shape, too: a kernel may read long rows in blocks.
OWN_SHAPE = (REGIMES["large"], REGIMES["mixed"], Regime("peaked", _peaked))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One call to be judged.

    Attributes:
        dtype: The precision under test.
        framework: The tensors' framework; see `gradwatch.harness.check.frameworks`.
        name: Such as "mixed 7x33".
        regime: The values and layouts of inputs and cotangents.
        args, kwargs: The arguments of both functions, in the layout of the trial.
        thorough: Whether everything is run a second time, with other cotangents and
            with some inputs that need no gradient.
        as_given: Whether these are the caller's own shape and ordinary numbers, or
            own inputs. A module then keeps its parameters as they are.
        seed: The seed of the cotangents and of the parameters.
        cotangents: Cotangents in place of the regime's.
        main: The widest type of the caller's tensors, which alone becomes `dtype`.
        state: The module's tensors at a step of a training: then a gradient is taken
            only by inputs that require one.
    """

    dtype: str
    framework: Any
    name: str = ""
    regime: Regime = REGIMES["normal"]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    thorough: bool = False
    as_given: bool = False
    seed: Sequence[int] = (0,)
    device: str = "cpu"
    cotangents: tuple[Any, ...] = ()
    order: str = "vjp"
    main: str = ""
    state: Mapping[str, Any] | None = None

    def called(self, name: str, **fields: Any) -> Trial:
        """A copy under another name; its seed depends on name and precision alone."""
        seed = self.seed[0], zlib.crc32(f"{name} {self.dtype}".encode())
        return replace(self, name=name, seed=seed, **fields)

    @property
    def edge(self) -> bool:
        """Whether most functions guarantee nothing for these inputs."""
        return self.regime.name in EDGES

    @property
    def tensors(self) -> list[Any]:
        """The tensors among the arguments."""
        found: list[Any] = self.framework.tensors((self.args, dict(self.kwargs)))
        return found

    @property
    def sizes(self) -> list[int]:
        """The number of elements of each tensor."""
        return [math.prod(t.shape) for t in self.tensors]

    def held(self, tensor: Any) -> Any:
        """A tensor of the caller's, on the device and in the type of the trial."""
        return self.framework.moved(tensor, self.dtype, self.main, self.device)

    def tangent(self, like: Any, place: int) -> Any:
        """A tangent for one input: random and signed."""
        rng = np.random.default_rng([*self.seed, 3, place])
        shape = tuple(self.framework.numbers(like).shape)
        return self.framework.filled(np.asarray(rng.standard_normal(shape)), like)

    def cotangent(self, like: Any, place: int) -> Any:
        """A cotangent for one output: of the regime, where `cotangents` has none."""
        if self.cotangents:
            return self.cotangents[place]
        rng = np.random.default_rng([*self.seed, 1, place])
        shape = tuple(self.framework.numbers(like).shape)
        values = cotangent(rng, shape, self.regime.cotangent)
        return self.framework.filled(values, like, self.regime.cotangent_layout)


@dataclass
class Choice:
    """The arguments of `check` that choose the trials, and those that can fail it."""

    only: str | Sequence[str] | None = None
    skip: str | Sequence[str] | None = None
    quick: bool = False
    edges: str = "report"
    strict: bool = False
    budget: float | None = None
    train: int = 0

    def __post_init__(self) -> None:
        known("choice of edges", self.edges, ("report", "fail", "skip"))
        self.edges = "fail" if self.strict else self.edges
        self._only, self._skip = (
            (names,) if isinstance(names, str) else tuple(names or ())
            for names in (self.only, self.skip)
        )

    def of(self, trials: Sequence[Trial]) -> list[Trial]:
        """The chosen trials; UnknownName for a name that none of the trials has."""
        named = {trial.regime.name: None for trial in trials}
        named |= {trial.name: None for trial in trials}
        for name in (*self._only, *self._skip):
            known("trial", name, named)
        chosen = []
        for trial in trials:
            names = {trial.name, trial.regime.name}
            left_out = self.quick or (trial.edge and self.edges == "skip")
            asked = not self._only or not names.isdisjoint(self._only)
            takes = asked and names.isdisjoint(self._skip) and not left_out
            chosen += [trial] * (trial.as_given or takes)
        return chosen


def handed_over(blank: Trial, label: str, args: Sequence[Any]) -> Iterator[Trial]:
    """The caller's numbers as they are, in several layouts, with several cotangents."""
    used = blank.framework
    given = used.mapped(blank.held, (tuple(args), dict(blank.kwargs)))
    own = replace(blank, args=given[0], kwargs=given[1])
    yield own.called(label, thorough=True, as_given=True)
    marked = any(getattr(t, "requires_grad", False) for t in own.tensors)
    for name in HANDED_OVER:
        if name not in used.FOREIGN:

            def relaid(tensor: Any, name: str = name) -> Any:
                kept = marked and not tensor.requires_grad  # a target, a mask
                scale = 1.0 if kept else SCALES.get(name, 1.0)
                return used.relaid(tensor, REGIMES[name].layout, scale)

            changed = used.mapped(relaid, own.args)
            yield own.called(f"{label}, {name}", regime=REGIMES[name], args=changed)


def planned(
    blank: Trial,
    specs: Specs,
    *,
    takes: Callable[..., bool],
    notes: list[str],
    pinned: Sequence[int],
) -> Iterator[Trial]:
    """The shapes as given, other sizes, and every regime at a small size.

    `blank` has no arguments yet. `takes` says whether the reference takes a trial, with
    a second True whether both sides do; `notes` gets a line for what is left out, and
    `pinned` lengths, a module's own, cannot vary.
    """
    precision, used = PRECISIONS[blank.dtype], blank.framework

    def make(
        regime: Regime, specs: Specs, thorough: bool = False, as_given: bool = False
    ) -> Trial:
        name = f"{regime.name} {named(specs)}"
        marks = {"thorough": thorough, "as_given": as_given}
        trial = blank.called(name, regime=regime, **marks)
        rng = np.random.default_rng(trial.seed)
        first = next((i for i, s in enumerate(specs) if s.is_inexact), 0)
        args = []
        for i, spec in enumerate(specs):
            plain = regime.first_only and i != first
            values = _numbers(rng, spec, regime, plain, precision)
            where = blank.device, regime.layout
            args.append(used.made(values, blank.dtype, spec.kind, *where))
        return replace(trial, args=tuple(args))

    normal = REGIMES["normal"]
    yield make(normal, specs, thorough=True, as_given=True)
    admitted = functools.cache(lambda s: takes(make(normal, s)))
    small, special = _sizes(specs, pinned, lambda s: takes(make(normal, s), True))
    if small is None:
        notes.append(f"sizes hardly varied: the code takes {named(specs)}")
    small = small or specs
    yield from (make(regime, specs) for regime in OWN_SHAPE)
    for regime in map(REGIMES.__getitem__, dict.fromkeys((*FIRST, *REGIMES))):
        if regime.name in used.FOREIGN or (small == specs and regime in OWN_SHAPE):
            continue
        if max((len(s.shape) for s in small if s.is_inexact), default=0) >= regime.axes:
            for at in special.get(regime.name, [small]):
                if at == small or regime.name == "empty" or admitted(at):
                    yield make(regime, at, thorough=regime.name == "normal")


def _numbers(
    rng: np.random.Generator, spec: Spec, regime: Regime, plain: bool, precision: Any
) -> Any:
    """The values of an input; `plain` floats are normal whatever the regime."""
    if spec.kind == "bool":  # three quarters true; in constant rows all or none is
        if regime.name == "constant" and spec.shape:
            rows = rng.random(spec.shape[:-1]) < 0.5
            return np.broadcast_to(rows[..., None], spec.shape).copy()
        return np.asarray(rng.random(spec.shape) < 0.75)
    if spec.kind == "int":
        return rng.integers(0, max(spec.below, 1), spec.shape)
    draw = REGIMES["normal"].values if plain else regime.values
    parts = (2,) if spec.kind == "complex" else ()
    return np.asarray(draw(rng, (*spec.shape, *parts), precision))


def _sizes(
    specs: Specs, pinned: Sequence[int], takes: Callable[[Specs], bool]
) -> tuple[Specs | None, dict[str, list[Specs]]]:
    """The small size, which both sides take, and the sizes of some regimes."""
    free = lengths(specs, pinned)
    ways = list(tails(specs, pinned)) if free else []
    tried = [smaller(specs, pinned)] if free else []
    if specs[0].shape:
        tried += [rows_varied(specs, n) for n in SMALL[1:2]]
        ways = ways or [rows_varied(specs, TAILS[-1])]
    ones = resized(specs, dict.fromkeys(free, 1))
    none = resized(specs, dict.fromkeys(free[-1:], 0))
    special = {"tails": [*dict.fromkeys(ways)], "single": [ones], "empty": [none]}
    return next(filter(takes, tried), None), special


# Budget ---------------------------------------------------------------------------

#: Seconds of processor time for a check where no budget is given; not of the clock, so
#: that a busy machine runs as many trials as a quiet one.
BUDGET = 30.0
#: Bytes that judging takes at least for each element that a call computes: a float64.
LEAST = 8
#: Elements of the inputs from which memory is estimated first, and given back early.
MANY = 1 << 20
#: Seconds that an element takes at least; `OPERATION` has where it comes from.
FASTEST = 0.5e-6


@dataclass
class Budget:
    """The time and memory left, estimated from the trials that have run.

    A trial's time is its graph's size times the rate of the caller's own trials, or of
    slow ones; `cost` counts the elements of a trial's graph up to a second argument.
    """

    seconds: float | None
    cost: Callable[[Trial, float], Cost]

    def __post_init__(self) -> None:
        self.allowed = BUDGET if self.seconds is None else self.seconds
        self.clock = time.process_time
        self.began, self.rate, self.most = self.clock(), math.inf, MOST
        self.memory = memory()

    def affordable(self, trials: Sequence[Trial], notes: list[str]) -> Iterator[Trial]:
        """The trials that fit, the caller's own first; a note says which do not."""
        own = [trial for trial in trials if trial.as_given]
        for trial in own:
            if sum(trial.sizes) >= MANY:
                self.require(trial.name, self.cost(trial, math.inf).elements)
        for trial in own:
            yield from self._timed(trial, len(trials))
        if math.isinf(self.rate):  # the caller's own have no elements
            self.rate = FASTEST
        left_out = list[tuple[Trial, Cost]]()
        for trial in (trial for trial in trials if not trial.as_given):
            # A trial without elements costs nothing, and the reference may refuse it.
            cost = self.cost(trial, self.room) if all(trial.sizes) else Cost(0, 0)
            # Hundreds of bytes an element; other layouts take up to 1.7 times as long.
            large = self.seconds is None and cost.elements > self.most
            if large or self.spent + 2 * self.rate * cost.work > self.allowed:
                left_out.append((trial, cost))
            else:
                yield from self._timed(trial, len(trials))
        if left_out:
            works = [cost.work for _, cost in left_out]
            needs = math.ceil(self.spent + self.rate * (sum(works) + max(works)))
            more = "" if all(cost.whole for _, cost in left_out) else " or more"
            names = "; ".join(dict.fromkeys(trial.name for trial, _ in left_out))
            notes.append(
                f"left out, the budget being {self.allowed:g} s: {names};"
                f" budget={needs}{more} has them"
            )
        release_memory()

    def require(self, name: str, elements: int) -> None:
        """Raise ValueError where the numbers alone are more than the memory."""
        if elements * LEAST > self.memory:
            raise ValueError(
                f"{name} needs some {elements * LEAST / 2**30:.3g} GiB, and this"
                f" machine has {self.memory / 2**30:.3g} GiB: give smaller inputs"
            )

    def _timed(self, trial: Trial, count: int) -> Iterator[Trial]:
        before = self.clock()
        yield trial
        took = self.clock() - before
        # An empty trial runs in another process. Of the others only slow ones correct
        # the rate of the caller's own: a fast one may have had no work to do, such as
        # a long row of a matrix that is decomposed by its few columns.
        if all(trial.sizes) and (trial.as_given or took * count > self.allowed):
            cost = self.cost(trial, math.inf)
            self.rate = min(self.rate, took / cost.work or FASTEST)  # a coarse clock
            self.most = max(self.most, cost.elements * trial.as_given)

    @property
    def spent(self) -> float:
        """Seconds of processor time since the start."""
        return self.clock() - self.began

    @property
    def room(self) -> float:
        """The number of elements that still fit into the time."""
        return (self.allowed - self.spent) / min(self.rate, FASTEST)


def out_of_memory(error: Exception) -> str:
    """The memory an error says was needed, and this machine's; "" for other errors."""
    said = re.search(r"allocate ([\d.]+) ?([KMGTP]?i?B|bytes)", str(error))
    if said is None:
        return "needs more memory" if isinstance(error, MemoryError) else ""
    size, unit = float(said[1]), said[2]
    gpu = re.search(r"total capacity of (.+? free)", str(error))
    needs = f"{size / 2**30:.3g} GiB" if unit == "bytes" else f"{size:g} {unit}"
    here = f"this machine has {memory() / 2**30:.3g} GiB"
    return f"needs {needs} in one piece, and {f'the GPU has {gpu[1]}' if gpu else here}"
