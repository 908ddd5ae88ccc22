"""Which trials are run: the regimes, the sizes, and what the caller asked for."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradwatch.harness.check import shapes
from gradwatch.harness.check.shapes import Spec, Specs
from gradwatch.harness.judging.cases import REGIMES, Regime
from gradwatch.harness.judging.layouts import TAILS
from gradwatch.impls.catalogue import known

#: Elements up to which each regime gets a run; beyond, those below alone.
MANY = 2**18
FEW = ("normal", "dy_zeros")
#: The trials where each takes seconds: a long recurrence, unrolled.
COSTLY = ("normal", "large", "mixed", "dy_zeros", "permuted")
#: Numbers of which most functions promise nothing: they are reported apart.
EDGES = ("huge", "shifted", "constant", "subnormal", "infnan", "empty")


def _peaked(rng: np.random.Generator, shape: tuple[int, ...], _: Any) -> Any:
    """Ordinary numbers, one in each row far above the others, as a sure answer's."""
    values = np.asarray(rng.standard_normal(shape))
    if values.size:
        top = rng.integers(0, shape[-1:] or 1, (*shape[:-1], 1))
        np.put_along_axis(np.atleast_1d(values), top, 20.0, -1)
    return values


#: At the caller's own shape, too: a kernel that reads rows in blocks differs there.
OWN_SHAPE = (REGIMES["large"], REGIMES["mixed"], Regime("peaked", _peaked))


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

    def of(self, trials: Sequence[Any]) -> list[Any]:
        """Those that are to be run.

        Raises:
            UnknownName: A name that no trial bears.
        """
        named = {trial.regime.name: None for trial in trials}
        named |= {trial.name: None for trial in trials}
        for name in (*self.only, *self.skip):
            known("trial", name, named)
        return [trial for trial in trials if trial.as_given or self._takes(trial)]

    def _takes(self, trial: Any) -> bool:
        names = {trial.name, trial.regime.name}
        if self.quick or (trial.edge and self.edges == "skip"):
            return False
        return (not self.only or not names.isdisjoint(self.only)) and (
            names.isdisjoint(self.skip)
        )

    def in_time(
        self, trials: Sequence[Any], started: float, notes: list[str]
    ) -> Iterator[Any]:
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


def planned(
    make: Callable[..., Any],
    specs: Specs,
    pinned: Sequence[int],
    admits: Callable[[Any], bool],
    runs: Callable[[Any], bool],
    costly: Callable[[Any], bool],
    notes: list[str],
    foreign: Sequence[str] = (),
) -> Iterator[Any]:
    """The shapes as given, other sizes, and every regime at a small size.

    Args:
        make: Makes a trial of a regime and specs.
        specs: One for each input.
        pinned: Lengths that cannot vary: a module's own.
        admits: Whether the reference takes a trial.
        runs: Whether the candidate does, too.
        costly: Whether a trial takes so long that few have to do.
        notes: Gets a line for what is left out.
        foreign: Regimes that the framework has no form of.
    """
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
        axes = max((len(s.shape) for s in small if s.kind == "float"), default=0)
        if axes >= regime.axes:
            for at in sizes.of(regime.name, small):
                yield make(regime, at, thorough=regime.name == "normal")


def numbers(
    rng: np.random.Generator, spec: Spec, regime: Regime, plain: bool, precision: Any
) -> Any:
    """The values of an input; `plain` floats are ordinary whatever the regime."""
    if spec.kind == "bool":
        return _mask(rng, spec.shape, regime.name)
    if spec.kind == "int":
        return rng.integers(0, max(spec.below, 1), spec.shape)
    draw = REGIMES["normal"].values if plain else regime.values
    return np.asarray(draw(rng, spec.shape, precision))


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
