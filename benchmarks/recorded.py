"""Benchmarks that give asv figures which one process has measured before.

asv starts a process for each combination of parameters. For 20 ops on 8 backends these
would import frameworks for an hour, and times to be compared would be measured minutes
apart. So `setup_cache` measures everything once for a commit and an environment, in
turn, and a benchmark looks up its figure. For a time, asv's own sampling reads a clock
that replays the recorded samples, so asv computes median and interval of real samples.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from gradwatch.harness.history.measure import Figures, MeasurementTarget, measure
from gradwatch.harness.judging.cases import REGIMES, Trial, trial
from gradwatch.harness.project.machines import has_cuda
from gradwatch.harness.project.paths import ROOT, alone
from gradwatch.harness.project.requested import by_default, has_dialect
from gradwatch.impls.catalogue import framework_of, load_op, op_names
from gradwatch.impls.contract import Op

# asv passes combinations by number, so these lists come from files and from variables
# that all processes of a run share, and must not depend on an environment's packages.
LEFT_OUT = os.environ.get("ASV_LEFT_OUT", "").split()  # see harness.history.measure
OPS = {name: load_op(name) for name in op_names() if name not in LEFT_OUT}
OFFERED = os.environ.get("ASV_OFFERED", "").split()  # by one of the environments
BACKENDS = [b for b in by_default() if not OFFERED or framework_of(b) in OFFERED]
ASKED = os.environ.get("ASV_DEVICES", "cpu cuda").split()
DEVICES = [device for device in ASKED if device == "cpu" or has_cuda()]

#: The parameters of a benchmark, and the figures found for them, op first.
Found = Mapping[tuple[str, ...], Figures]


def middle(op: Op) -> str:
    """The middle size: large enough to measure, small enough to be quick."""
    sizes = tuple(op.sizes)
    return sizes[len(sizes) // 2]


def sized(op: Op, size: str, dtype: str) -> Trial:
    """A size of an op, with values of the normal regime."""
    return trial(op, op.sizes[size], REGIMES["normal"], dtype)


def recorded(trials: Iterable[Trial], *, processes: int, seconds: float) -> Found:
    """Figures by op, size, dtype, device and backend; see `harness.history.measure`.

    If the environment variable ASV_OPS is set, only the ops that it names.
    """
    chosen = os.environ.get("ASV_OPS", " ".join(OPS)).split()
    with alone(ROOT / ".asv" / "measuring", "a measurement of this checkout"):
        by_point = measure(
            [trial for trial in trials if trial.op in chosen],
            BACKENDS,
            DEVICES,
            MeasurementTarget.here(),
            processes=processes,
            seconds=seconds,
        )
    return {tuple(point): figures for point, figures in by_point.items()}


class Recorded:
    """The base of all benchmarks of one op; `each_op` makes a class for every op."""

    op = ""
    version = "1"  # raise it when figures are no longer comparable with earlier ones
    timeout = 60  # seconds to look a figure up
    rounds, number, warmup_time = 1, 1, 0  # one reading of the clock is one sample

    def setup(self, found: Found, *parameters: str) -> None:
        """Select the figures of these parameters; asv calls it before each sample."""
        figures = found.get((self.op, *parameters))
        if figures is None:
            raise NotImplementedError(f"{parameters[-1]} is not in this environment")
        if not hasattr(self, "figures"):
            self.figures, self.now = figures, 0.0
            self.taken = {"forward": iter(figures.forward)}
            self.taken["backward"] = iter(figures.backward)
            self.repeat = max(1, len(figures.forward))

    def timer(self) -> float:
        """Seconds on the clock that replays the recorded samples."""
        return self.now

    def pass_by(self, phase: str) -> None:
        """Advance that clock by the next sample of a phase."""
        if not self.figures.forward:
            skip(self.figures.why)
        self.now += next(self.taken[phase])

    def known(self, figure: float | None, otherwise: str) -> float:
        """The figure, or n/a if there is none."""
        if figure is None:
            skip(self.figures.why or otherwise)
        return figure


def skip(why: str) -> NoReturn:
    """Make this combination n/a; asv shows the reason with --show-stderr."""
    # Imported here: only asv calls this, and the suite can be imported without asv.
    from asv_runner.benchmarks.mark import SkipNotImplemented

    print(f"n/a: {why}")  # noqa: T201  # asv keeps what a benchmark prints
    raise SkipNotImplemented(why)


def backends_of(op: Op) -> list[str]:
    """The backends whose dialect the page has."""
    return [name for name in BACKENDS if has_dialect(op, name)]


def each_op(
    base: type[Recorded],
    names: Sequence[str],
    values: Callable[[Op], Sequence[Sequence[str]]],
) -> dict[str, type[Any]]:
    """A class for each op, with its parameters."""
    return {
        name: type(
            name,
            (base,),
            {
                "op": name,
                "param_names": [*names, "device", "backend"],
                "params": [*map(list, values(op)), DEVICES, backends_of(op)],
            },
        )
        for name, op in OPS.items()
    }
