"""Which trials are run: the regimes, the sizes, and what the caller asked for."""

from __future__ import annotations

import math
import os
import re
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gradwatch.harness.check import shapes
from gradwatch.harness.check.report import Report, Row, hidden
from gradwatch.harness.check.shapes import Spec, Specs
from gradwatch.harness.judging.cases import REGIMES, Regime, cotangent
from gradwatch.harness.judging.judgement import Judgement
from gradwatch.harness.judging.layouts import TAILS
from gradwatch.harness.judging.precisions import PRECISIONS
from gradwatch.harness.judging.reference import Reference
from gradwatch.harness.workers.evaluate import in_short
from gradwatch.impls.catalogue import known

#: Elements up to which each regime gets a run; beyond, those below alone.
MANY = 2**18
FEW = ("normal", "dy_zeros")
#: The trials where each takes seconds: a long recurrence, unrolled.
COSTLY = ("normal", "large", "mixed", "dy_zeros", "permuted")
#: Numbers of which most functions promise nothing: they are reported apart.
EDGES = ("huge", "shifted", "constant", "subnormal", "infnan", "empty")
#: The caller's own numbers, handed over in these ways.
HANDED_OVER = (
    *("normal", "permuted", "sliced", "dy_zeros", "dy_large", "dy_expanded"),
    *("large", "tiny"),
)
#: The caller's numbers times these: an eps or a threshold shows elsewhere than at 1.
SCALES = {"large": 1e3, "tiny": 1e-3}


def _peaked(rng: np.random.Generator, shape: tuple[int, ...], _: Any) -> Any:
    """Ordinary numbers, one in each row far above the others, as a sure answer's."""
    values = np.asarray(rng.standard_normal(shape))
    if values.size:
        top = rng.integers(0, shape[-1:] or 1, (*shape[:-1], 1))
        np.put_along_axis(np.atleast_1d(values), top, 20.0, -1)
    return values


#: At the caller's own shape, too: a kernel that reads rows in blocks differs there.
OWN_SHAPE = (REGIMES["large"], REGIMES["mixed"], Regime("peaked", _peaked))


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One call to be judged, whatever its arrays are.

    Attributes:
        name: Such as "mixed 7x33".
        dtype: The precision under test.
        regime: Says how numbers and cotangents are made and laid out.
        thorough: Whether everything is run a second time, with other cotangents and
            with some inputs that need no gradient.
        as_given: Whether these are the caller's own shape and ordinary numbers, or
            own inputs. A module then keeps its parameters as they are.
        seed: Of the cotangents and of the parameters.
    """

    name: str
    dtype: str
    regime: Regime
    thorough: bool = False
    as_given: bool = False
    seed: Sequence[int] = (0,)

    @property
    def edge(self) -> bool:
        """Whether the numbers lie where most functions promise nothing."""
        return self.regime.name in EDGES

    def drawn_tangent(self, shape: Sequence[int], place: int) -> Any:
        """A tangent for one input: random and signed."""
        rng = np.random.default_rng([*self.seed, 3, place])
        return np.asarray(rng.standard_normal(tuple(shape)))

    def drawn_cotangent(self, shape: Sequence[int], place: int) -> Any:
        """A cotangent for one output."""
        rng = np.random.default_rng([*self.seed, 1, place])
        return cotangent(rng, tuple(shape), self.regime.cotangent)

    def row(self, judgement: Judgement, how: str, right: Reference | None) -> Row:
        """A judgement with what is known of its trial."""
        return Row(
            *(self.name, self.dtype, judgement, how, *hidden(judgement, right)),
            own=self.as_given,
            edge=self.edge,
        )


AnyTrial = TypeVar("AnyTrial", bound=Drawn)


def identity(
    name: str, dtype: str, regime: Regime, seed: int, thorough: bool, as_given: bool
) -> dict[str, Any]:
    """The fields of `Drawn`; the seed depends on name and precision alone."""
    return {
        "name": name,
        "dtype": dtype,
        "regime": regime,
        "thorough": thorough,
        "as_given": as_given,
        "seed": (seed, zlib.crc32(f"{name} {dtype}".encode())),
    }


#: What a caller may choose for the edges.
HANDLED = ("report", "fail", "skip")


@dataclass(frozen=True)
class Choice:
    """Which trials are run, and which of them decide.

    `only` and `skip` are names such as "large" or "large 7x33". The caller's own trial
    is always run. `budget` is the time in seconds after which no other one begins.
    """

    only: Sequence[str] = ()
    skip: Sequence[str] = ()
    quick: bool = False
    edges: str = "report"
    strict: bool = False
    budget: float | None = None

    @classmethod
    def read(
        cls,
        only: str | Sequence[str] | None = None,
        skip: str | Sequence[str] | None = None,
        edges: str = "report",
        *,
        strict: bool = False,
        quick: bool = False,
        budget: float | None = None,
    ) -> Choice:
        """What a caller wrote; one name may stand alone.

        Raises:
            UnknownName: `edges` is none of `HANDLED`.
        """
        known("choice of edges", edges, HANDLED)
        first, second = (
            (names,) if isinstance(names, str) else tuple(names or ())
            for names in (only, skip)
        )
        edges = "fail" if strict else edges
        return cls(first, second, quick, edges, strict, budget)

    def of(self, trials: Sequence[AnyTrial]) -> list[AnyTrial]:
        """Those that are to be run.

        Raises:
            UnknownName: A name that no trial bears.
        """
        named = {trial.regime.name: None for trial in trials}
        named |= {trial.name: None for trial in trials}
        for name in (*self.only, *self.skip):
            known("trial", name, named)
        return [trial for trial in trials if trial.as_given or self._takes(trial)]

    def _takes(self, trial: Drawn) -> bool:
        names = {trial.name, trial.regime.name}
        if self.quick or (trial.edge and self.edges == "skip"):
            return False
        return (not self.only or not names.isdisjoint(self.only)) and (
            names.isdisjoint(self.skip)
        )

    def in_time(
        self, trials: Sequence[AnyTrial], started: float, notes: list[str]
    ) -> Iterator[AnyTrial]:
        """The trials, until the time is up; a note names those left out."""
        late = []
        for trial in trials:
            spent = time.monotonic() - started
            if trial.as_given or self.budget is None or spent < self.budget:
                yield trial
            else:
                late.append(trial.name)
        if late:
            notes.append(f"left out, {self.budget:g} s were spent: {', '.join(late)}")

    def report(
        self,
        names: tuple[str, str],
        device: str,
        rows: Sequence[Row],
        notes: Sequence[str],
        started: float,
    ) -> Report:
        """The report on a candidate; `names` are the reference's and its own."""
        return Report(
            *(*names, device, tuple(rows), tuple(dict.fromkeys(notes))),
            time.monotonic() - started,
            edges_fail=self.edges == "fail",
            refusals_fail=self.strict,
        )


def judged(
    trials: Iterable[AnyTrial],
    judge: Callable[[AnyTrial], Iterable[Row]],
    notes: list[str],
) -> Iterator[Row]:
    """Every judgement on the trials.

    Where the reference refuses numbers that the caller did not give, that trial is left
    out, and a note says so.
    """
    left_out = dict[str, list[str]]()
    for trial in trials:
        try:
            yield from judge(trial)
        except Exception as error:  # every library refuses numbers in its own way
            why = out_of_memory(error)
            if trial.as_given and not why:
                raise
            if trial.as_given:
                raise ValueError(f"{trial.name} {why}: give smaller inputs") from error
            why = why or f"the reference raised {in_short(error)}"
            left_out.setdefault(why, []).append(trial.name)
    for why, names in left_out.items():
        notes.append(f"left out, {why}: {', '.join(names)}")


def out_of_memory(error: Exception) -> str:
    """How much was asked for, and how much there is; "" if that is not why."""
    said = re.search(r"allocate ([\d.]+) ?([KMGTP]?i?B|bytes)", str(error))
    if said is None:
        return "needs more memory" if isinstance(error, MemoryError) else ""
    size, unit = float(said[1]), said[2]
    needs = f"{size / 2**30:.3g} GiB" if unit == "bytes" else f"{size:g} {unit}"
    has = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"needs {needs} in one piece, and this machine has {has:.3g} GiB"


def widest(dtypes: Iterable[str]) -> str:
    """The widest of our precisions among some types; else float32."""
    ours = [name for name in dtypes if name in PRECISIONS]
    return max(ours, key=lambda n: PRECISIONS[n].digits, default="float32")


def planned(
    construct: Callable[..., AnyTrial],
    specs: Specs,
    dtype: str,
    seed: int,
    admits: Callable[[AnyTrial], bool],
    runs: Callable[[AnyTrial], bool],
    costly: Callable[[AnyTrial], bool],
    notes: list[str],
    foreign: Sequence[str],
    pinned: Sequence[int] = (),
) -> Iterator[AnyTrial]:
    """The shapes as given, other sizes, and every regime at a small size.

    Args:
        construct: Makes a trial of NumPy arrays, specs, and the fields of `Drawn`.
        specs: One for each input.
        dtype: The precision.
        seed: Of all numbers.
        admits: Whether the reference takes a trial.
        runs: Whether the candidate does, too.
        costly: Whether a trial takes so long that few have to do.
        notes: Gets a line for what is left out.
        foreign: Regimes that the framework has no form of.
        pinned: Lengths that cannot vary: a module's own.
    """
    precision = PRECISIONS[known("dtype", dtype, PRECISIONS)]

    def make(
        regime: Regime, specs: Specs, thorough: bool = False, as_given: bool = False
    ) -> AnyTrial:
        name = f"{regime.name} {shapes.named(specs)}"
        fields = identity(name, dtype, regime, seed, thorough, as_given)
        rng = np.random.default_rng(fields["seed"])
        first = next((i for i, s in enumerate(specs) if s.is_inexact), 0)
        arrays = [
            _numbers(rng, spec, regime, regime.first_only and i != first, precision)
            for i, spec in enumerate(specs)
        ]
        return construct(arrays, specs, **fields)

    normal = REGIMES["normal"]
    yield make(normal, specs, thorough=True, as_given=True)
    sizes = Sizes(
        specs,
        pinned,
        lambda s: admits(make(normal, s)),
        lambda s: runs(make(normal, s)),
    )
    if sizes.small is None:
        notes.append(f"sizes hardly varied: the code takes {shapes.named(specs)}")
    small = sizes.small or specs
    many = sum(math.prod(s.shape) for s in specs) > MANY
    yield from (make(r, specs) for r in OWN_SHAPE[-1 if many else 0 :])
    names = COSTLY if costly(make(normal, small)) else tuple(REGIMES)
    for regime in map(REGIMES.__getitem__, names):
        if regime.name in foreign or (small == specs and regime in OWN_SHAPE):
            continue
        axes = max((len(s.shape) for s in small if s.is_inexact), default=0)
        if axes >= regime.axes:
            for at in sizes.of(regime.name, small):
                yield make(regime, at, thorough=regime.name == "normal")


def _numbers(
    rng: np.random.Generator, spec: Spec, regime: Regime, plain: bool, precision: Any
) -> Any:
    """The values of an input; `plain` floats are ordinary whatever the regime."""
    if spec.kind == "bool":
        return _mask(rng, spec.shape, regime.name)
    if spec.kind == "int":
        return rng.integers(0, max(spec.below, 1), spec.shape)
    draw = REGIMES["normal"].values if plain else regime.values
    parts = (2,) if spec.kind == "complex" else ()
    return np.asarray(draw(rng, (*spec.shape, *parts), precision))


def _mask(rng: np.random.Generator, shape: tuple[int, ...], regime: str) -> Any:
    """Three quarters true; in constant rows all or none is."""
    if regime == "constant" and shape:
        rows = rng.random(shape[:-1]) < 0.5
        return np.broadcast_to(rows[..., None], shape).copy()
    return np.asarray(rng.random(shape) < 0.75)


class Sizes:
    """Other sizes than the given ones, as far as the reference takes them.

    The small one, at which most is tried, the candidate takes as well.
    """

    def __init__(
        self,
        specs: Specs,
        pinned: Sequence[int],
        admits: Callable[[Specs], bool],
        runs: Callable[[Specs], bool],
    ) -> None:
        self.admits = admits
        free = shapes.lengths(specs, pinned)
        self.ways = list(shapes.tails(specs, pinned)) if free else []
        self.ones = shapes.resized(specs, dict.fromkeys(free, 1))
        self.none = shapes.resized(specs, dict.fromkeys(free[-1:], 0))
        tried = [shapes.smaller(specs, pinned)] if free else []
        if specs[0].shape:
            tried += [shapes.rows_varied(specs, n) for n in shapes.SMALL[1:2]]
            self.ways = self.ways or [shapes.rows_varied(specs, TAILS[-1])]
        self.small = next((s for s in tried if admits(s) and runs(s)), None)

    def of(self, regime: str, small: Specs) -> list[Specs]:
        """The sizes that a regime is run at."""
        special = {"tails": self.ways, "single": [self.ones], "empty": [self.none]}
        if regime not in special:
            return [small]
        fit = [specs for specs in special[regime] if self.admits(specs)]
        return list(dict.fromkeys(fit))
