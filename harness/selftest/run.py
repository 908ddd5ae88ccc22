"""Runs the self-test: all planted errors and all right gradients, on every backend.

The trials are those of the agreement suite. The worker of each framework examines its
own backends. The PyTorch worker also plants the errors; without PyTorch, the NumPy
worker does.
"""

from __future__ import annotations

import itertools
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradwatch.harness.judging.cases import REGIMES, Trial, of_order, trial
from gradwatch.harness.judging.orders import ORDERS, SECOND
from gradwatch.harness.project.requested import by_default
from gradwatch.harness.project.traits import traits_of
from gradwatch.harness.selftest.examine import read
from gradwatch.harness.selftest.mutants import PLANTED, read_mistakes
from gradwatch.harness.selftest.scoring import Score
from gradwatch.harness.workers.interpreters import interpreter_of, on_request
from gradwatch.harness.workers.pool import Fleet, Outcome, Task
from gradwatch.impls import catalogue
from gradwatch.impls.contract import Op


@dataclass(frozen=True)
class Extent:
    """The extent of a self-test: its regimes, by precision.

    tensors: the least number of right tensors, in float64 and in float32.
    """

    planted: dict[str, Sequence[str]]
    gradcheck: Sequence[str]
    right: dict[str, Sequence[str]]
    tensors: int
    second: dict[str, Sequence[str]]  # of the second order
    second_tensors: int


_USUAL = *("normal", "shifted", "large", "tiny", "mixed", "ties", "constant"), "dy_ones"
# Without "infnan": allclose counts two NaNs as different.
_FINITE = tuple(name for name in REGIMES if name != "infnan")
# Without memory layouts, which change no number; that leaves 20,000 tensors.
_PLAIN = tuple(
    name
    for name in _FINITE
    if {REGIMES[name].layout, REGIMES[name].cotangent_layout} == {"contiguous"}
)
_WIDE, _HALF = ("float64", "float32"), ("float16", "bfloat16")
_IN_HALF = dict.fromkeys(_HALF, ("normal", "tiny", "mixed", "dy_ones"))
FULL = Extent(
    planted={**dict.fromkeys(_WIDE, _USUAL), **_IN_HALF},
    gradcheck=("normal",),  # its users take torch.randn
    right={**dict.fromkeys(_WIDE, _FINITE), **_IN_HALF},
    tensors=10_000,
    second=dict.fromkeys(_WIDE, _PLAIN),
    second_tensors=20_000,
)
QUICK = Extent(
    planted=dict.fromkeys(FULL.planted, ("normal",)),
    gradcheck=(),
    right=dict.fromkeys(FULL.right, ("normal", "mixed")),
    tensors=100,
    second=dict.fromkeys(_WIDE, ("normal",)),
    second_tensors=1_000,
)


def chosen(
    extent: Extent, ops: Sequence[str], seed: int, orders: Sequence[str] = ORDERS
) -> Iterator[Trial]:
    """The trials of some ops that an extent includes."""
    second = [order for order in orders if order in SECOND]
    for op in map(catalogue.load_op, ops):
        if ORDERS[0] in orders:
            yield from _turns(extent.right, op, seed)
        for one in _turns(extent.second, op, seed) if second else ():
            yield from (of_order(one, order, seed) for order in second)


def _turns(regimes: Mapping[str, Sequence[str]], op: Op, seed: int) -> Iterator[Trial]:
    """Trials of one case for each precision and regime, in turn: all take an hour."""
    turns = itertools.cycle(op.cases.values())
    for dtype, names in regimes.items():
        for name, case in zip(names, turns, strict=False):
            if case in (regime := REGIMES[name]).cases(op):
                yield trial(op, case, regime, dtype, seed)


def try_judges(
    extent: Extent = FULL,
    *,
    ops: Sequence[str] = (),
    orders: Sequence[str] = ORDERS,
    seed: int = 0,
    jobs: int = 2,
    timeout: float = 60.0,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Score:
    """Count which planted errors each judge rejects, and its false alarms.

    By default, `ops` are all; `timeout` is in seconds, for one trial.
    """
    there = not interpreter_of("torch").why_missing
    frameworks = set(map(catalogue.framework_of, examined()))
    leader = "torch" if there and "torch" in frameworks else "numpy"
    asked = {
        (one.name, task.backend): task
        for one in chosen(extent, ops or catalogue.op_names(), seed, orders)
        for task in tasks(one, extent, leader)
    }
    outcome_of = dict[tuple[str, str], Outcome]()
    with Fleet(jobs=jobs) as fleet:
        outcomes = fleet.run([*asked.values()], timeout=timeout)
        for done, outcome in enumerate(outcomes, 1):
            outcome_of[outcome.task.trial.name, outcome.task.backend] = outcome
            progress(done, len(asked))
    score, lost = Score(), defaultdict[str, list[str]](list)
    for place, task in asked.items():  # in the order of the tasks, not of the answers
        outcome = outcome_of[place]
        if outcome.kind == "result":
            score.add(task.trial, *read(outcome.reply))
        else:
            lost[task.backend].append(f"{outcome.kind}: {outcome.message}")
    for backend, whats in lost.items():
        more = f"; and {len(whats) - 1} more trials" if len(whats) > 1 else ""
        score.missing[backend] = whats[0] + more
    return score


def examined() -> list[str]:
    """The backends that take part.

    They exclude compilers, which need half an hour for all of these trials, and those
    made on request.
    """
    return [
        name
        for name in sorted(by_default())
        if not (traits_of(name).compiles or on_request(catalogue.framework_of(name)))
    ]


def tasks(trial: Trial, extent: Extent, leader: str) -> Iterator[Task]:
    """The tasks of one trial, one for each framework that takes part.

    `leader` is the framework whose worker plants the errors.
    """
    problem = trial.problem
    second = trial.order in SECOND
    plants = trial.regime in extent.planted[problem.dtype]
    if second:
        planted = problem.dtype == PLANTED[0] and trial.regime in PLANTED[1]
        plants = trial.order == "hvp" and planted
    hosts = defaultdict[str, list[str]](list)
    for name in examined():  # the leader also runs NumPy's
        framework = catalogue.framework_of(name)
        hosts[leader if framework == "numpy" else framework].append(name)
    for framework, own in hosts.items():
        leads = framework == leader
        if second and not traits_of(framework).second_order:
            continue
        if problem.dtype in _HALF and not traits_of(framework).half:
            continue
        options: dict[str, Any] = {"backends": own, "planted": leads and plants}
        if second:
            options["seed"] = zlib.crc32(trial.name.encode())
        else:
            options["gradcheck"] = leads and trial.regime in extent.gradcheck
            if options["planted"]:
                options["edits"] = read_mistakes().get(problem.op.name, ())
                asked = (problem.dtype, trial.regime)
                options["diagnosed"] = asked == ("float32", "normal")
        first = next(b for b in own if catalogue.framework_of(b) == framework)
        # The first by name is the framework's autograd.
        yield Task(trial, first, request="examine", options=options)
